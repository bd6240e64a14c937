"""A nineteenth batch, committed before the judge has seen any of it: networks whose ports are built of other parts.

Four blocks in stages, flat, in one stack of weights or as a function; a block that is used three times, a decoder, two streams, skips, pairs of
halves, an equation solved in steps. Where there are four blocks, the third has the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth_scans import numbers
from pair_fourteenth_sights import renamed
from torch import nn

W, LENGTH = 16, 10
State = dict[str, torch.Tensor]
Faults = dict[str, tuple[dict[str, Any], tuple[str, ...]]]
"""For each fault what the port is given, and the modules of which any may be named."""


def family(name: str, way: str, make: Callable[..., Made], faults: Faults) -> None:
    healthy(name, way, make)
    for fault, (bad, names) in faults.items():
        broken(name, fault, lambda bad=bad: make(**bad), *names)  # type: ignore[misc]


def filled(model: Any, other: Any, inputs: Any, convert: Callable[[State], State] = dict, given: dict[str, Any] | None = None) -> Made:
    other.load_state_dict(convert(dict(spread(model).state_dict())))
    return model, other, inputs, dict(MEAN) if given is None else given


def seeded(made: Callable[..., Any], /, **ways: Any) -> Any:
    torch.manual_seed(0)
    return made(**ways)


class Block(nn.Module):
    """A filter over time and a network for each token, in a residual stream."""

    def __init__(self, ahead: bool = False, slope: str = "none", bare: bool = False, turned: bool = False) -> None:
        super().__init__()
        self.ahead, self.slope, self.bare, self.turned = ahead, slope, bare, turned
        self.norm, self.taps = nn.LayerNorm(W), nn.Conv1d(W, W, 3, groups=W)
        self.up, self.down = nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        mixed = self.taps(F.pad(y.mT, (1, 1) if self.ahead else (2, 0))).mT
        made = self.down(F.gelu(self.up(mixed), approximate=self.slope))
        return made if self.bare else x + made


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.blocks, self.head = nn.Linear(6, W), nn.Sequential(*(Block() for _ in range(4))), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.inside(x)).mean(1))


class Stages(nn.Module):
    """Two stages of two blocks under other names. The mean over time comes after the head."""

    def __init__(self, **bad: Any) -> None:
        super().__init__()
        self.stem = nn.Linear(6, W)
        self.stages = nn.ModuleList([nn.ModuleList([Block(), Block()]), nn.ModuleList([Block(**bad), Block()])])
        self.classify = nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                x = block(x)
        return self.classify(x).mean(1)


def in_stages(state: State) -> State:
    pairs = [(f"blocks.{number}.", f"stages.{number // 2}.{number % 2}.") for number in range(4)]
    return renamed(state, ("inside", "stem"), ("head", "classify"), *pairs)


class Later(nn.Module):
    """A block with time as first axis, whose filter is a sum of shifted rows and whose gelu is written out."""

    def __init__(self, early: bool = False, back: bool = False, half: float = 0.5) -> None:
        super().__init__()
        self.early, self.back, self.half = early, back, half
        self.ln, self.kernel, self.offset = nn.LayerNorm(W), nn.Parameter(torch.zeros(3, W)), nn.Parameter(torch.zeros(W))
        self.fc1, self.fc2 = nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.pad(self.ln(x), (0, 0, 0, 0, 2, 0))
        taps = self.kernel.flip(0) if self.back else self.kernel
        mixed = sum(y[tap : tap + len(x)] * taps[tap] for tap in range(3)) + self.offset
        hidden = self.fc1(mixed.to(x.dtype))
        return self.fc2(self.half * hidden * (1 + torch.erf(hidden * (1.0 if self.early else 2.0) / 2**0.5 / 2))) + x


class TimeFirst(nn.Module):
    def __init__(self, **bad: Any) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = Later(), Later(), Later(**bad), Later()
        self.first, self.last = nn.Linear(6, W), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.d(self.c(self.b(self.a(self.first(x.transpose(0, 1)))))).mean(0))


def time_first(state: State) -> State:
    parts = [("norm", "ln"), ("taps.weight", "kernel"), ("taps.bias", "offset"), ("up", "fc1"), ("down", "fc2")]
    found = renamed(state, ("inside", "first"), ("head", "last"), *((f"blocks.{at}", "abcd"[at]) for at in range(4)), *parts)
    return {name: value[:, 0].mT.contiguous() if name.endswith("kernel") else value for name, value in found.items()}


class Stacked(nn.Module):
    """All blocks' weights in one tensor of each kind, as a scan over layers has them. `order`: which norm each block has."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 2, 3), scaled: float = 1.0) -> None:
        super().__init__()
        self.order, self.scaled = order, scaled
        shapes = {"norm": (2, W), "taps": (W, 1, 3), "at": (W,), "up": (24, W), "over": (24,), "down": (W, 24), "under": (W,)}
        self.held = nn.ParameterDict({name: nn.Parameter(torch.zeros(4, *shape)) for name, shape in shapes.items()})
        self.inside, self.head = nn.Linear(6, W), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, held = self.inside(x), self.held
        for place, norm in enumerate(self.order):
            y = F.layer_norm(x, (W,), *held["norm"][norm])
            y = F.conv1d(F.pad(y.mT, (2, 0)), held["taps"][place], held["at"][place], groups=W).mT
            made = F.linear(F.gelu(F.linear(y, held["up"][place], held["over"][place])), held["down"][place], held["under"][place])
            x = x + made * (self.scaled if place == 2 else 1.0)
        return self.head(x.mean(1))


def in_stacks(state: State) -> State:
    def all_(name: str) -> torch.Tensor:
        return torch.stack([state[f"blocks.{place}.{name}"] for place in range(4)])

    names = {"taps": "taps.weight", "at": "taps.bias", "up": "up.weight", "over": "up.bias", "down": "down.weight", "under": "down.bias"}
    found = {f"held.{name}": all_(given) for name, given in names.items()}
    found["held.norm"] = torch.stack([all_("norm.weight"), all_("norm.bias")], 1)
    return found | {name: value for name, value in state.items() if not name.startswith("blocks")}


ROWS = numbers(3, LENGTH, 6)
THIRD = "stages.1.0"
family("four blocks in stages", "a head before the mean", lambda **bad: filled(seeded(Tower), Stages(**bad), ROWS, in_stages), {
    "the third looks ahead": ({"ahead": True}, (THIRD, f"{THIRD}.taps")), "the third's other gelu": ({"slope": "tanh"}, (THIRD,)),
    "the third without its residual": ({"bare": True}, (THIRD,)),
})  # fmt: skip
family("four blocks, time first", "shifted rows", lambda **bad: filled(seeded(Tower), TimeFirst(**bad), ROWS, time_first), {
    "the third's gelu of half": ({"early": True}, ("c",)), "the third's taps turned round": ({"back": True}, ("c",)),
    "the third's gelu doubled": ({"half": 1.0}, ("c",)),
})  # fmt: skip
family("four blocks in a stack", "a tensor of each kind", lambda **bad: filled(seeded(Tower), Stacked(**bad), ROWS, in_stacks), {
    "the second's norm twice": ({"order": (0, 1, 1, 3)}, ("", "held")), "the third scaled": ({"scaled": 0.9}, ("", "held")),
})  # fmt: skip


class Shared(nn.Module):
    """One block that is used three times, each time with an embedding of the step added."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.steps, self.block, self.head = nn.Linear(6, W), nn.Embedding(3, W), Block(), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for step in range(3):
            x = self.block(x + self.steps(torch.tensor(step)))
        return self.head(x)


class SharedPort(nn.Module):
    """Three modules of one weight. The embeddings lie in a buffer of its own."""

    def __init__(self, late: bool = False, own: bool = False, once: bool = False) -> None:
        super().__init__()
        self.late, self.own, self.once = late, own, once
        self.inside, self.steps, self.head = nn.Linear(6, W), nn.Parameter(torch.zeros(3, W)), nn.Linear(W, 5)
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for step, row in enumerate(self.steps.unbind()):
            if step < 2 or not self.once:
                x = self.block(x + (self.steps[1] if self.late and step == 2 else row))
                x = x.detach() if self.own and step == 1 else x
        return self.head(x)


def thrice(**bad: Any) -> Made:
    return filled(seeded(Shared), SharedPort(**bad), ROWS, lambda state: renamed(state, ("steps.weight", "steps")))


family("a block thrice", "a parameter for steps", thrice, {
    "the second's step twice": ({"late": True}, ("",)), "used twice": ({"once": True}, ("",)), "cut off between": ({"own": True}, ("",)),
})  # fmt: skip


class Cross(nn.Module):
    """A layer of a decoder that looks at itself, at a memory, and has a network."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = (nn.MultiheadAttention(W, 2, batch_first=True) for _ in range(2))
        self.norms, self.up, self.down = nn.ModuleList(nn.LayerNorm(W) for _ in range(3)), nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        y = self.norms[0](x)
        x = x + self.own(y, y, y, attn_mask=mask, need_weights=False)[0]
        x = x + self.cross(self.norms[1](x), memory, memory, need_weights=False)[0]
        return x + self.down(F.relu(self.up(self.norms[2](x))))


class Attend(nn.Module):
    """Queries apart from keys and values, which are side by side in one layer."""

    def __init__(self, causal: bool, swapped: bool = False) -> None:
        super().__init__()
        self.causal, self.swapped, self.q, self.kv, self.out = causal, swapped, nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        k, v = self.kv(read).chunk(2, -1)
        k, v = (v, k) if self.swapped else (k, v)
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (self.q(x), k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class CrossPort(nn.Module):
    def __init__(self, swapped: bool = False, itself: bool = False, normed: bool = False, open_: bool = False) -> None:
        super().__init__()
        self.itself, self.normed = itself, normed
        self.own, self.cross = Attend(not open_), Attend(False, swapped)
        self.norms, self.up, self.down = nn.ModuleList(nn.LayerNorm(W) for _ in range(3)), nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.own(y, y)
        y = self.norms[1](x)
        x = x + self.cross(y, y if self.itself else self.norms[1](memory) if self.normed else memory)
        return x + self.down(self.up(self.norms[2](x)).clamp(min=0))


class Decoder(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.reader, self.layers, self.head = nn.Linear(6, W), nn.ModuleList([first, second]), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        memory, x = torch.tanh(self.reader(seen)), torch.tanh(self.reader(x))
        for layer in self.layers:
            x = layer(x, memory)
        return self.head(x)


def apart(state: State) -> State:
    found = dict(state)
    for name in [each for each in state if "in_proj" in each]:
        kind, value = name.rpartition("_")[2], found.pop(name)
        base = name.rpartition(".")[0]
        found[f"{base}.q.{kind}"], found[f"{base}.kv.{kind}"] = value[:W], value[W:]
    return renamed(found, ("out_proj", "out"))


def decoded(**bad: Any) -> Made:
    torch.manual_seed(0)
    return filled(Decoder(Cross(), Cross()), Decoder(CrossPort(), CrossPort(**bad)), (ROWS, numbers(3, 7, 6)), apart)


family("a decoder", "keys beside values", decoded, {
    "values for keys": ({"swapped": True}, ("layers.1.cross",)), "itself for the memory": ({"itself": True}, ("layers.1",)),
    "the memory normed too": ({"normed": True}, ("layers.1",)), "tokens that come later": ({"open_": True}, ("layers.1", "layers.1.own")),
})  # fmt: skip
