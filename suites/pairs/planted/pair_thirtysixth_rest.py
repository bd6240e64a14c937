"""The thirty-sixth batch, second part: PVT of transformers, a cell with a matrix for its memory, and a codec of sounds, beside ports.

PVT with channels last, patches cut out of the picture and filters of each channel as sums of shifts. The cell (as of xLSTM) step by step in `model`,
and all steps at once in the port. The codec with filters and their transposes by products with what was cut out, and codes by distances that are
written out. Faults as in the first part, and those of gates, of what keeps exponents small, of codes and of the gradient that passes them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, spread
from pair_fourteenth_scans import numbers
from pair_thirtieth import TOP, State, beside, family
from pair_thirtyfifth import Logits
from pair_thirtysecond import of_kind
from torch import nn


class Reduced(nn.Module):
    """Attention whose keys are patches of two by two, by a layer on what they hold."""

    def __init__(self, wide: int, count: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.count, self.q, self.kv, self.out = wrong, count, nn.Linear(wide, wide), nn.Linear(wide, 2 * wide), nn.Linear(wide, wide)
        self.reduce, self.norm = nn.Linear(4 * wide, wide), nn.LayerNorm(wide, 1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cut = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 5, 4, 2) if self.wrong == "taps" else (
            x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 5, 2, 4))  # fmt: skip
        less = self.reduce(cut.flatten(3).flatten(1, 2))
        less = less if self.wrong == "bare" else self.norm(less)
        q = x.flatten(1, 2) if self.wrong == "not asked" else self.q(x).flatten(1, 2)
        k, v = self.kv(less).chunk(2, -1)
        q, k, v = (each.unflatten(-1, (self.count, -1)).transpose(1, 2) for each in (q, k, v))
        size = x.shape[-1] if self.wrong == "width" else q.shape[-1]
        made = (q @ k.mT / size**0.5).softmax(-1) @ v
        return self.out(made.transpose(1, 2).flatten(2)).unflatten(1, x.shape[1:3])


class Shifted(nn.Module):
    """A layer, a filter of three by three for each channel, a function and a layer."""

    def __init__(self, wide: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.up, self.down = wrong, nn.Linear(wide, 2 * wide), nn.Linear(2 * wide, wide)
        self.taps, self.bias = nn.Parameter(torch.zeros(9, 2 * wide)), nn.Parameter(torch.zeros(2 * wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.up(x)) if self.wrong == "before" else self.up(x)
        rows, columns = y.shape[1:3]
        around = F.pad(y, (0, 0, 2, 0, 1, 1) if self.wrong == "side" else (0, 0, 1, 1, 1, 1))
        taps = self.taps.flip(0) if self.wrong == "flipped" else self.taps
        y = sum(around[:, n // 3 : n // 3 + rows, n % 3 : n % 3 + columns] * taps[n] for n in range(9)) + (0 if self.wrong == "bias" else self.bias)
        return self.down(y if self.wrong == "before" else F.relu(y) if self.wrong == "relu" else F.gelu(y))


class Pyramid(nn.Module):
    def __init__(self, wide: int, count: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.n1, self.n2 = wrong, nn.LayerNorm(wide, 1e-6), nn.LayerNorm(wide, 1e-6)
        self.mix, self.feed = Reduced(wide, count, wrong), Shifted(wide, wrong)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.n1(x))
        y = self.n2(x)
        return (y if self.wrong == "normed sum" else x) + self.feed(self.n1(x) if self.wrong == "first norm" else y)


class Patches(nn.Module):
    def __init__(self, narrow: int, wide: int, size: int, stride: int, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.size, self.stride, self.line, self.norm = wrong, size, stride, nn.Linear(narrow * size**2, wide), nn.LayerNorm(wide, 1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = self.size // 2
        x = F.pad(x, (0, 0, *(((2 * side, 0) if self.wrong == "side" else (side, side)) * 2)))
        cut = x.unfold(1, self.size, self.stride).unfold(2, self.size, self.stride)
        y = self.line(cut.flatten(3))
        return y if self.wrong == "bare" else self.norm(y)


class Pyramids(nn.Module):
    def __init__(self, wrong: str = "", patches: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.patches = top, nn.ModuleList([Patches(3, 8, 7, 4), Patches(8, 16, 3, 2, patches)])
        self.blocks = nn.ModuleList(Pyramid(8 if n < 2 else 16, 1 if n < 2 else 2, wrong if n == 3 else "") for n in range(4))
        self.norms, self.head = nn.ModuleList([nn.LayerNorm(8, 1e-6), nn.LayerNorm(16, 1e-6)]), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 2, 3, 1)
        for n, (patch, norm) in enumerate(zip(self.patches, self.norms, strict=True)):
            x = self.blocks[2 * n + 1](self.blocks[2 * n](patch(x)))
            x = x if self.top == "bare" and n == 0 else norm(x)
        return self.head(x.amax((1, 2)) if self.top == "largest" else x.mean((1, 2)))


def pvt(lost: str = "", **ways: Any) -> Made:
    model = spread(of_kind("PvtV2", "ForImageClassification", image_size=[32, 48], depths=[2, 2], hidden_sizes=[8, 16], sr_ratios=[2, 2],
                           strides=[4, 2], patch_sizes=[7, 3], num_attention_heads=[1, 2], mlp_ratios=[2, 2], num_encoder_blocks=2,
                           num_labels=5)).eval()  # fmt: skip
    there, state = dict(model.state_dict()), State()
    for n in range(4):
        of, here = f"pvt_v2.encoder.layers.{n // 2}.blocks.{n % 2}", f"blocks.{n}"
        for part in ("weight", "bias"):
            state |= {f"{here}.{a}.{part}": there[f"{of}.{b}.{part}"] for a, b in (
                ("n1", "layer_norm_1"), ("n2", "layer_norm_2"), ("mix.q", "attention.query"), ("mix.out", "attention.proj"),
                ("mix.norm", "attention.layer_norm"), ("feed.up", "mlp.dense1"), ("feed.down", "mlp.dense2"))}  # fmt: skip
            order = ("value", "key") if lost == "order" and n == 3 else ("key", "value")
            state[f"{here}.mix.kv.{part}"] = torch.cat([there[f"{of}.attention.{each}.{part}"] for each in order])
        state[f"{here}.mix.reduce.weight"] = there[f"{of}.attention.spatial_reduction.weight"].flatten(1)
        state[f"{here}.mix.reduce.bias"] = there[f"{of}.attention.spatial_reduction.bias"]
        state[f"{here}.feed.taps"] = there[f"{of}.mlp.dwconv.dwconv.weight"].flatten(1).t()
        state[f"{here}.feed.bias"] = there[f"{of}.mlp.dwconv.dwconv.bias"]
    for n in range(2):
        of = f"pvt_v2.encoder.layers.{n}"
        state |= {f"patches.{n}.line.weight": there[f"{of}.patch_embedding.proj.weight"].flatten(1),
                  f"patches.{n}.line.bias": there[f"{of}.patch_embedding.proj.bias"]}  # fmt: skip
        state |= {f"patches.{n}.norm.{part}": there[f"{of}.patch_embedding.layer_norm.{part}"] for part in ("weight", "bias")}
        state |= {f"norms.{n}.{part}": there[f"{of}.layer_norm.{part}"] for part in ("weight", "bias")}
    state |= {f"head.{part}": there[f"classifier.{part}"] for part in ("weight", "bias")}
    return beside(Logits(model), Pyramids(**ways), state, MEAN["loss"], numbers(2, 3, 32, 48))


BLOCK, READ, FEED = ("blocks.3",), ("blocks.3.mix",), ("blocks.3.feed",)
family("pvt with channels last", "by shifts", pvt, {
    "rows and columns of a patch": ({"wrong": "taps"}, READ, ""), "patches without a norm": ({"wrong": "bare"}, READ, ""),
    "queries without their layer": ({"wrong": "not asked"}, READ, ""), "scaled by the whole width": ({"wrong": "width"}, READ, r"0\.707|1\.41"),
    "the function before the filter": ({"wrong": "before"}, FEED, ""), "taps turned round": ({"wrong": "flipped"}, FEED, ""),
    "no bias of the filter": ({"wrong": "bias"}, FEED, "bias"), "relu for gelu": ({"wrong": "relu"}, FEED, "relu|gelu"),
    "columns padded on the left": ({"wrong": "side"}, FEED, "pad|shift|element"), "the normed one in the sum": ({"wrong": "normed sum"}, BLOCK, ""),
    "the first norm twice": ({"wrong": "first norm"}, BLOCK, ""),
    "values before keys": ({"lost": "order"}, (*READ, "blocks.3.mix.kv"), "order|which is right"),
    "patches of the other side": ({"patches": "side"}, ("patches.1",), ""), "patches not normed": ({"patches": "bare"}, ("patches.1",), ""),
    "a stage without its norm": ({"top": "bare"}, TOP, ""), "pooled by the largest": ({"top": "largest"}, TOP, "max|largest|mean"),
})  # fmt: skip


class Cell(nn.Module):
    """A memory of one matrix for each of two heads, step by step. Exponents of gates are kept small by the largest of them so far."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        enters, keeps = gates.unflatten(-1, (2, 2)).unbind(-2)
        memory, norm = torch.zeros_like(k[:, 0, :, :, None] * v[:, 0, :, None]), torch.zeros_like(k[:, 0])
        largest = torch.full_like(enters[:, 0], -1e4)
        made = []
        for t in range(q.shape[1]):
            kept = F.logsigmoid(keeps[:, t]) + largest
            largest = torch.maximum(kept, enters[:, t])
            old, new = (kept - largest).exp()[..., None], (enters[:, t] - largest).exp()[..., None]
            key = k[:, t] / k.shape[-1] ** 0.5
            memory, norm = old[..., None] * memory + new[..., None] * key[..., None] * v[:, t, :, None], old * norm + new * key
            below = torch.maximum((norm * q[:, t]).sum(-1).abs(), (-largest).exp())[..., None]
            made.append((q[:, t, :, None] @ memory)[..., 0, :] / below)
        return torch.stack(made, 1)


class AtOnce(nn.Module):
    """The same for all steps at once, by a table of decays."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        enters, keeps = gates.unflatten(-1, (2, 2)).permute(2, 0, 3, 1)
        keeps = torch.sigmoid(keeps) if self.wrong == "plain" else F.logsigmoid(keeps)
        sums = keeps.cumsum(-1)
        decays = sums[..., :, None] - (sums - keeps if self.wrong == "late" else sums)[..., None, :]
        decays = decays if self.wrong == "no input" else decays + enters[..., None, :]
        decays = decays.masked_fill(torch.ones(decays.shape[-2:], dtype=torch.bool).triu(0 if self.wrong == "itself" else 1), -1e30)
        largest = decays.amax(-1, keepdim=True).clamp(min=-1e3)
        scores = q @ k.mT / (1 if self.wrong == "scale" else k.shape[-1] ** 0.5) * (decays - largest).exp()
        total = scores.sum(-1, keepdim=True).abs()
        below = torch.ones_like(largest) if self.wrong == "one" else (-largest).exp()
        return (scores @ v / (total + below if self.wrong == "sum" else torch.maximum(total, below))).transpose(1, 2)


class Remembers(nn.Module):
    """A block around the cell. `wrong` is None in `model`."""

    def __init__(self, wrong: str | None) -> None:
        super().__init__()
        self.wrong, self.norm, self.up, self.down = wrong, nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(16, 16)
        self.filter, self.skip = nn.Conv1d(16, 16, 4, groups=16), nn.Parameter(torch.ones(16))
        self.q, self.k, self.v, self.gates = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(48, 4)
        self.cell, self.each = Cell() if wrong is None else AtOnce(wrong), nn.GroupNorm(1 if wrong == "all heads" else 2, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner, gate = self.up(self.norm(x)).chunk(2, -1)
        bent = F.silu(self.filter(F.pad(inner.mT, (2, 1) if self.wrong == "centred" else (3, 0))).mT)
        q, k = self.q(bent), self.k(inner if self.wrong == "keys" else bent)
        v = self.v(bent if self.wrong == "values" else inner)
        gates = self.gates(torch.cat([k, q, v] if self.wrong == "parts" else [q, k, v], -1))
        made = self.cell(*(each.unflatten(-1, (2, 8)) for each in (q, k, v)), gates).flatten(2)
        made = self.each(made.flatten(0, 1)).unflatten(0, x.shape[:2])
        made = made if self.wrong == "no skip" else made + self.skip * (inner if self.wrong == "straight" else bent)
        return x + self.down(made * (torch.sigmoid(gate) if self.wrong == "gate" else F.silu(gate)))


class Memories(nn.Module):
    def __init__(self, kind: bool, wrong: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.words = top, nn.Embedding(20, 16)
        self.layers = nn.ModuleList(Remembers((wrong if n == 1 else "") if kind else None) for n in range(3))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for n, layer in enumerate(self.layers):
            x = layer(x.flip(1)).flip(1) if self.top == "turned" and n == 1 else layer(x)
        return self.head(x if self.top == "bare" else self.norm(x))


TOKENS = torch.randint(0, 20, (2, 9), generator=torch.Generator().manual_seed(36))


def memory(lost: str = "", **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Memories(False), 0.4)
    state: State = dict(model.state_dict())
    if lost == "gates":
        for part in ("weight", "bias"):
            state[f"layers.1.gates.{part}"] = state[f"layers.1.gates.{part}"].roll(2, 0)
    return beside(model, Memories(True, **ways), state, MEAN["loss"], TOKENS)


KEEPS, CELL = ("layers.1",), ("layers.1.cell",)
family("a memory of matrices", "at once", memory, {
    "a gate that is no logarithm": ({"wrong": "plain"}, CELL, "sigmoid"), "a decay one step late": ({"wrong": "late"}, CELL, ""),
    "inputs without their gate": ({"wrong": "no input"}, CELL, ""), "steps do not see themselves": ({"wrong": "itself"}, CELL, "mask"),
    "keys not scaled": ({"wrong": "scale"}, CELL, r"2\.828"),
    "one for the least divisor": ({"wrong": "one"}, CELL, ""), "the divisor and its least": ({"wrong": "sum"}, CELL, ""),
    "a norm of both heads": ({"wrong": "all heads"}, (*KEEPS, "layers.1.each"), "group|1"),
    "a filter that sees the next": ({"wrong": "centred"}, KEEPS, ""),
    "keys of what was not filtered": ({"wrong": "keys"}, KEEPS, ""), "values of what was filtered": ({"wrong": "values"}, KEEPS, ""),
    "keys before queries for the gates": ({"wrong": "parts"}, KEEPS, ""), "nothing goes past the cell": ({"wrong": "no skip"}, KEEPS, ""),
    "the unfiltered goes past": ({"wrong": "straight"}, KEEPS, ""), "sigmoid for silu": ({"wrong": "gate"}, KEEPS, "sigmoid|silu"),
    "gates exchanged": ({"lost": "gates"}, ("layers.1.gates",), "order"), "a layer turned round": ({"top": "turned"}, TOP, ""),
    "no last norm": ({"top": "bare"}, TOP, ""),
})  # fmt: skip


class Snake(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.ones(wide, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.rate * x).sin() ** 2 / self.rate


class Unit(nn.Module):
    def __init__(self, wide: int, step: int) -> None:
        super().__init__()
        self.one, self.two, self.first, self.last = Snake(wide), Snake(wide), nn.Conv1d(wide, wide, 3, 1, step, step), nn.Conv1d(wide, wide, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(self.two(self.first(self.one(x))))


class Codes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(12, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rest, found = x.mT, torch.zeros_like(x.mT)
        for table in self.tables:
            nearest = table(torch.cdist(rest, table.weight).argmin(-1))
            found, rest = found + nearest, rest - nearest
        return (x.mT + (found - x.mT).detach() + 0.1 * (found - found.detach())).mT


class Codec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.units = nn.Conv1d(1, 6, 7, 1, 3), nn.Conv1d(6, 8, 4, 2, 1), nn.ModuleList([Unit(6, 1), Unit(8, 2), Unit(6, 2)])
        self.codes, self.up, self.snake, self.last = Codes(), nn.ConvTranspose1d(8, 6, 4, 2, 1), Snake(6), nn.Conv1d(6, 1, 7, 1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.codes(self.units[1](self.down(self.units[0](self.first(x)))))
        return torch.tanh(self.last(self.snake(self.units[2](self.up(x)))))


def cut(x: torch.Tensor, size: int, stride: int, step: int, sides: tuple[int, int]) -> torch.Tensor:
    """What a filter reads at each place of sounds with channels last: (batch, places, channels * size)."""
    x = F.pad(x, (0, 0, *sides))
    places = torch.arange(0, x.shape[1] - step * (size - 1), stride)[:, None] + step * torch.arange(size)
    return x[:, places].transpose(2, 3).flatten(2)


class Bent(nn.Module):
    def __init__(self, wide: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.rate = wrong, nn.Parameter(torch.ones(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wave = (self.rate * x).cos() if self.wrong == "cosine" else (self.rate * x).sin()
        wave = wave if self.wrong == "plain" else wave.square()
        return x + (wave * self.rate if self.wrong == "rate" else wave / self.rate)


class Residual(nn.Module):
    def __init__(self, wide: int, step: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.step, self.one, self.two = wrong, 1 if wrong == "step" else step, Bent(wide, wrong), Bent(wide, "")
        self.first, self.last = nn.Linear(3 * wide, wide), nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sides = (2 * self.step, 0) if self.wrong == "past" else (self.step, self.step)
        made = self.first(cut(self.one(x), 3, 1, self.step, sides))
        made = self.last(made if self.wrong == "bare" else self.two(made))
        return made if self.wrong == "no sum" else x + made


class Nearest(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.table = wrong, nn.Parameter(torch.zeros(2, 12, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rest, found = x, torch.zeros_like(x)
        for table in self.table:
            near = 2 * rest @ table.T - (0 if self.wrong == "product" else table.square().sum(-1))
            code = F.one_hot(near.argmax(-1), 12).to(x.dtype) @ table
            found, rest = code if self.wrong == "last" else found + code, rest if self.wrong == "rest" else rest - code
        straight = found.detach() if self.wrong == "untaught" else x + (found - x).detach()
        return straight if self.wrong == "no table" else straight + 0.1 * (found - found.detach())


class Grows(nn.Module):
    """A transposed filter: zeros between the places, and a filter turned round."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.weight, self.bias = wrong, nn.Parameter(torch.zeros(8, 6, 4)), nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.stack([x, x if self.wrong == "repeated" else torch.zeros_like(x)], 2).flatten(1, 2)[:, :-1]
        weight = self.weight if self.wrong == "straight" else self.weight.flip(-1)
        return cut(wide, 4, 1, 1, (3, 1) if self.wrong == "late" else (2, 2)) @ weight.transpose(1, 2).flatten(0, 1) + self.bias


class Sounds(nn.Module):
    def __init__(self, wrong: str = "", codes: str = "", up: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.first, self.down = top, nn.Linear(7, 6), nn.Linear(24, 8)
        self.units = nn.ModuleList([Residual(6, 1, ""), Residual(8, 2, wrong), Residual(6, 2, "")])
        self.codes, self.up, self.snake, self.last = Nearest(codes), Grows(up), Bent(6, ""), nn.Linear(42, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.units[0](self.first(cut(x.mT, 7, 1, 1, (3, 3))))
        x = self.units[1](self.down(cut(x, 4, 2, 1, (2, 0) if self.top == "side" else (1, 1))))
        x = self.units[2](self.up(self.codes(x)))
        x = self.last(cut(x if self.top == "bare" else self.snake(x), 7, 1, 1, (3, 3))).mT
        return x if self.top == "no tanh" else torch.tanh(x)


def codec(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Codec())
    state: State = {}
    for name, value in model.state_dict().items():
        if name.startswith("up.") or "tables" in name:
            state[name] = value
        else:
            state[name] = value.flatten(1) if name.endswith("weight") else value.flatten()
    state["codes.table"] = torch.stack([state.pop(f"codes.tables.{n}.weight") for n in range(2)])
    return beside(model, Sounds(**ways), state, MEAN["loss"], numbers(2, 1, 24))


UNIT = ("units.1",)
family("a codec of sounds", "channels last", codec, {
    "a wave times its rate": ({"wrong": "rate"}, ("units.1.one",), "mul|div"),
    "cosines for sines": ({"wrong": "cosine"}, ("units.1.one",), "cos|sin"),
    "a wave that is not squared": ({"wrong": "plain"}, ("units.1.one",), ""), "a step of one": ({"wrong": "step"}, UNIT, ""),
    "the past alone": ({"wrong": "past"}, UNIT, ""), "no second wave": ({"wrong": "bare"}, UNIT, ""), "no sum": ({"wrong": "no sum"}, UNIT, ""),
    "codes by products": ({"codes": "product"}, ("codes",), ""), "the last code alone": ({"codes": "last"}, ("codes",), ""),
    "the second code of the same": ({"codes": "rest"}, ("codes",), ""), "codes that teach nothing before": ({"codes": "untaught"}, ("codes",), ""),
    "a table that is not taught": ({"codes": "no table"}, ("codes",), ""), "places repeated": ({"up": "repeated"}, ("up",), ""),
    "taps not turned round": ({"up": "straight"}, ("up",), ""), "one place late": ({"up": "late"}, ("up",), "shift|element"),
    "a filter that begins early": ({"top": "side"}, TOP, ""), "no last wave": ({"top": "bare"}, TOP, ""),
    "no tanh": ({"top": "no tanh"}, TOP, "tanh"),
})  # fmt: skip
