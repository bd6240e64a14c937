"""A twenty-seventh batch, committed before the judge has seen any of it. Its faults were drawn from public issues of ports, engines and trainers.

Layers that read the keys of other layers, attention beside a scan with multipliers, places on three axes, a delta rule with decays. In the other
parts experts in groups, adapters with magnitudes, points that are looked up, two streams of a diffusion, a codec, a transducer, groups of answers,
molecules with forces.

The issues of this part: keys that are not shared (transformers 45253), queries at a later place (mlx-lm 1702), multipliers that are not folded
(mlxstudio 129), scaled logits (vllm 52158), a cap that is lost (Megatron-Bridge 4645), sections of places (xllm 746), no places handed on
(Megatron-LM 4938), places of later chunks (mlx-vlm 1621).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy
from pair_twentyfifth import WORDS
from pair_twentyfourth import LENGTH, TOP, State, W, ported
from pair_twentythird import Faults
from torch import nn

ATTEND = ("layers.1.attend",)


def family(name: str, way: str, make: Callable[..., Made], faults: Faults, **more: dict[str, Any]) -> None:
    """As `pair_twentyfourth.family`, so that this batch can be chosen by its name."""
    for other, ways in {way: dict[str, Any](), **more}.items():
        healthy(name, other.replace("_", " "), lambda ways=ways: make(**ways))  # type: ignore[misc]
    for fault, (bad, names, said) in faults.items():
        broken(name, fault, lambda bad=bad: make(**bad), *names, said=said)  # type: ignore[misc]


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return rotated(x, places[:, None] * 20.0 ** (-torch.arange(half) / half))


def visible(length: int, window: int = 0) -> torch.Tensor:
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    return mask & ~mask.tril(-window) if window else mask


class Shares(nn.Module):
    """Attention of a layer that either makes its keys, or reads those of a donor."""

    def __init__(self, number: int, window: int, donor: int | None) -> None:
        super().__init__()
        self.number, self.window, self.donor = number, window, donor
        self.q, self.k, self.v, self.out = (nn.Linear(W, W) for _ in range(4))
        self.q_norm, self.k_norm = nn.RMSNorm(W, eps=1e-5), nn.RMSNorm(W, eps=1e-5)

    def forward(self, x: torch.Tensor, kept: dict[int, Any]) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        if self.donor is None:
            kept[self.number] = turned(self.k_norm(self.k(x)), places), self.v(x)
        keys, values = kept[self.number if self.donor is None else self.donor]
        scores = turned(self.q_norm(self.q(x)), places) @ keys.mT / 4
        return self.out(scores.masked_fill(~visible(x.shape[1], self.window), -math.inf).softmax(-1) @ values)


class Block(nn.Module):
    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.norm, self.attend, self.last, self.feed = nn.RMSNorm(W, eps=1e-5), attend, nn.RMSNorm(W, eps=1e-5), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        x = x + self.attend(self.norm(x), *more)
        return x + F.gelu(self.feed(self.last(x)))


DONORS = {2: 0, 3: 1}


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(20, W), nn.RMSNorm(W, eps=1e-5), nn.Linear(W, 20)
        self.layers = nn.ModuleList([Block(Shares(n, (3, 0)[n % 2], DONORS.get(n))) for n in range(4)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, kept = self.words(tokens), dict[int, Any]()
        for layer in self.layers:
            x = layer(x, kept)
        return self.head(self.norm(x))


class Handed(Shares):
    """The same, which is given the donor's keys and returns its own. The kernel of torch."""

    def __init__(self, number: int, window: int, donor: int | None, wrong: str = "", written: bool = False) -> None:
        super().__init__(number, window, donor)
        self.wrong, self.written = wrong, written

    def forward(self, x: torch.Tensor, given: Any = None) -> Any:
        places, wrong = torch.arange(x.shape[1]), self.wrong
        if given is None or wrong == "own":
            keys = self.k(x)
            made = turned(keys if wrong == "plain" else self.k_norm(keys), places), self.v(x)
        keys, values = made if given is None or wrong == "own" else given
        q = turned(self.q(x) if wrong == "norm" else self.q_norm(self.q(x)), places + LENGTH if wrong == "later" else places)
        mask = visible(x.shape[1], 0 if wrong == "whole" else self.window)
        if self.written:
            scores = torch.einsum("btw,bsw->bts", q.float(), keys.float()) / math.sqrt(W) + torch.zeros(mask.shape).masked_fill(~mask, -1e9)
            y = self.out(torch.einsum("bts,bsw->btw", scores.softmax(-1).to(values.dtype), values))
        else:
            y = self.out(F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=0.25))
        return y, ((turned(self.k_norm(self.k(x)), 0 * places), values) if wrong == "unturned" else (keys, values))


class Handing(nn.Module):
    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.norm, self.attend, self.last, self.feed = nn.RMSNorm(W, eps=1e-5), attend, nn.RMSNorm(W, eps=1e-5), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, given: Any = None) -> Any:
        y, kept = self.attend(self.norm(x), given)
        x = x + y
        return x + F.gelu(self.feed(self.last(x))), kept


class Handled(nn.Module):
    def __init__(self, top: str = "", wrong: str = "", at: int = 2, written: bool = False) -> None:
        super().__init__()
        self.top, self.words, self.norm, self.head = top, nn.Embedding(20, W), nn.RMSNorm(W, eps=1e-5), nn.Linear(W, 20)
        made = [Handed(n, (3, 0)[n % 2], DONORS.get(n), wrong if n == at else "", written) for n in range(4)]
        self.layers = nn.ModuleList(map(Handing, made))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, kept = self.words(tokens), []
        donors = {"exchanged": {2: 1, 3: 0}, "last": {2: 1, 3: 1}, "none": {3: 1}}.get(self.top, DONORS)
        for n, layer in enumerate(self.layers):
            given = kept[donors[n]] if n in donors else None
            if self.top == "cut" and given is not None:
                given = given[0].detach(), given[1].detach()
            x, made = layer(x, given)
            kept.append(made)
        return self.head(self.norm(x))


THIRD, FIRST = ("layers.2.attend",), ("layers.0.attend",)
family("keys of a donor", "keys handed on", lambda **bad: ported(Shared(), Handled(**bad), WORDS), {
    "receivers make their own": ({"wrong": "own"}, THIRD, ""), "queries at a later place": ({"wrong": "later"}, THIRD, ""),
    "queries without a norm": ({"wrong": "norm"}, THIRD, ""), "no window": ({"wrong": "whole"}, THIRD, ""),
    "keys handed on before they are turned": ({"wrong": "unturned", "at": 0}, FIRST, ""), "the donors exchanged": ({"top": "exchanged"}, TOP, ""),
    "the last donor for all": ({"top": "last"}, TOP, ""), "a receiver that is given none": ({"top": "none"}, TOP, ""),
    "receivers do not teach the donor": ({"top": "cut"}, TOP, ""),
}, formulas={"written": True})  # fmt: skip


class Scan(nn.Module):
    """A scan with a decay for each of four heads, after a filter of three taps."""

    def __init__(self, wrong: str = "", written: bool = False) -> None:
        super().__init__()
        self.wrong, self.written = wrong, written
        self.into, self.conv, self.out = nn.Linear(W, 2 * W + 4), nn.Conv1d(2 * W, 2 * W, 3, groups=2 * W), nn.Linear(W, W)
        self.log, self.bias, self.skip = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, step = self.into(x).split([2 * W, 4], -1)
        y = self.conv(F.pad(y.mT, (1, 1) if self.wrong == "both" else (2, 0))).mT
        y, key = (y if self.wrong == "linear" else F.silu(y)).chunk(2, -1)
        step = step + self.bias
        step = step.exp() if self.wrong == "step" else F.softplus(step)
        decay = (-(self.log if self.wrong == "log" else self.log.exp()) * step).exp()
        y, key = y.unflatten(-1, (4, 4)), key.unflatten(-1, (4, 4))
        fresh = (y if self.wrong == "unscaled" else y * step[..., None]) * key
        if self.written:
            logs = decay.log().cumsum(1)
            weigh = (logs[:, :, None] - logs[:, None]).masked_fill(~visible(x.shape[1])[..., None], -math.inf).exp()
            made = torch.einsum("btsh,bshd->bthd", weigh, fresh)
        else:
            state, found = torch.zeros_like(fresh[:, 0]), []
            for n in range(x.shape[1]):
                state = state * decay[:, n, :, None] + fresh[:, n]
                found.append(state)
            made = torch.stack(found, 1)
        return self.out((made if self.wrong == "skip" else made + self.skip[:, None] * y).flatten(2))


class Causal(nn.Module):
    def __init__(self, key: float = 1.0, wrong: str = "") -> None:
        super().__init__()
        self.key, self.wrong, self.qkv, self.out = key, wrong, nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        k = k if self.wrong == "key" else k * self.key
        return self.out((q @ k.mT / 4).masked_fill(~visible(x.shape[1]), -math.inf).softmax(-1) @ v)


WORD, KEY, SIDE, GATE, DOWN, HEAD, CAP = 3.0, 0.4, (0.8, 0.6), 0.7, 0.5, 0.25, 5.0


class Beside(nn.Module):
    """Attention and a scan of the same input, then a gated layer, with multipliers. `folded`: those of the outputs lie in the weights."""

    def __init__(self, folded: bool = False, wrong: str = "", scan: str = "", attend: str = "") -> None:
        super().__init__()
        self.folded, self.wrong, self.norm, self.last = folded, wrong, nn.RMSNorm(W, eps=1e-5), nn.RMSNorm(W, eps=1e-5)
        self.attend, self.scan = Causal(KEY, attend), Scan(scan, folded)
        self.gate, self.up, self.down = nn.Linear(W, 24, bias=False), nn.Linear(W, 24, bias=False), nn.Linear(24, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, wrong = self.norm(x), self.wrong
        attended = self.attend(y) * (1 if self.folded else SIDE[0])
        scanned = self.scan(self.norm(x + attended) if wrong == "after" else y) * (SIDE[0] if wrong == "side" else SIDE[1])
        x = x + (attended + scanned) / (2 if wrong == "mean" else 1)
        y = self.last(x)
        gate = F.silu(self.gate(y)) * GATE if wrong == "gate" else F.silu(self.gate(y) * GATE)
        return x + self.down(gate * self.up(y)) * (1 if self.folded else DOWN)


class Hybrid(nn.Module):
    def __init__(self, folded: bool = False, top: str = "", **second: str) -> None:
        super().__init__()
        self.folded, self.top, self.words, self.head = folded, top, nn.Embedding(20, W), nn.Linear(W, 20, bias=False)
        self.layers = nn.ModuleList([Beside(folded, **(second if n == 1 else {})) for n in range(3)])
        self.norm = nn.RMSNorm(W, eps=1e-5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) * (1 if self.folded or self.top == "words" else WORD)
        for layer in self.layers:
            x = layer(x)
        out = self.head(self.norm(x)) * (1 if self.folded and self.top != "twice" else HEAD)
        out = out if self.top == "uncapped" else CAP * torch.tanh(out / CAP)
        return CAP * torch.tanh(out / CAP) if self.top == "capped twice" else out


def hybrid(load: str = "", **ways: Any) -> Made:
    """Models that are served: no weight has a gradient."""

    def convert(state: State) -> State:
        if not ways.get("folded"):
            return state
        found = dict(state)
        found["head.weight"] = state["head.weight"] * HEAD
        found["words.weight"] = state["words.weight"] * (1 if load == "words" else WORD)
        for n in range(3):
            found[f"layers.{n}.attend.out.weight"] = state[f"layers.{n}.attend.out.weight"] * SIDE[0]
            down = 1 if load == "down" and n == 1 else DOWN
            found[f"layers.{n}.down.weight"] = state[f"layers.{n}.down.weight"] * down
        return found

    model, other, inputs, _ = ported(Hybrid(), Hybrid(**ways), WORDS, convert)
    return model.requires_grad_(False), other.requires_grad_(False), inputs, {}


SCAN = ("layers.1.scan",)
family("attention beside a scan", "the scan at once", lambda **bad: hybrid(**{"folded": True, **bad}), {
    "words not multiplied": ({"load": "words"}, ("words", *TOP), ""), "a product not folded": ({"load": "down"}, ("layers.1.down",), ""),
    "logits multiplied twice": ({"top": "twice"}, TOP, ""), "no cap": ({"top": "uncapped"}, TOP, ""),
    "a cap too many": ({"top": "capped twice"}, TOP, ""),
    "keys not multiplied": ({"attend": "key"}, ATTEND, ""), "a scan of what attention made": ({"wrong": "after"}, ("layers.1",), ""),
    "the other multiplier": ({"wrong": "side"}, ("layers.1",), ""), "a gate multiplied late": ({"wrong": "gate"}, ("layers.1",), ""),
    "a mean of both": ({"wrong": "mean"}, ("layers.1",), ""), "taps on both sides": ({"scan": "both"}, SCAN, ""),
    "decays without exp": ({"scan": "log"}, SCAN, ""), "no skip": ({"scan": "skip"}, SCAN, ""), "exp for softplus": ({"scan": "step"}, SCAN, ""),
    "what is written not scaled": ({"scan": "unscaled"}, SCAN, ""),
}, multipliers_in_code={"folded": False})  # fmt: skip
