"""A twenty-fifth batch, committed before the judge has seen any of it. Its faults were drawn from public issues of ports, and not from the code.

Streams that mix, masks by the kind of a layer, a network beside the main one, a loop that halts. In the other parts a converted checkpoint,
rays, a flow between pictures, slots, sounds, hooks, styles, a voice, words that are copied, two views.

The issues of this part and of the checkpoint: a gain of norms that is added twice (mlx-lm 1623), weights of a layer that are copied twice (deep_q_rl
16), norms that are shared (tabnet 76), a buffer that is not in the checkpoint (vllm 44371), the mask of another kind of layer (transformers 48482), a
mask that a block does not hand on (mistral-inference 218), positions that are made and not given (vllm 32143) or not read (Megatron-LM 453), a
residual that is added twice (diffusers 3932) or taken from the list for good (diffusers 5751), streams that mix by too few steps (mlx-vlm 2053).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyfourth import LENGTH, TOP, B, W, family, ported
from torch import nn


def balanced(logits: torch.Tensor, steps: int, logs: bool) -> torch.Tensor:
    """Shares whose rows and columns add up to one."""
    if logs:
        for _ in range(steps):
            logits = logits - logits.logsumexp(-1, keepdim=True)
            logits = logits - logits.logsumexp(-2, keepdim=True)
        return logits.exp()
    shares = logits.exp()
    for _ in range(steps):
        shares = shares / shares.sum(-1, keepdim=True)
        shares = shares / shares.sum(-2, keepdim=True)
    return shares


class Streams(nn.Module):
    """A layer that reads a part of each of four streams, and writes to all of them. `apart`: a list of streams."""

    def __init__(self, logs: bool = False, apart: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.logs, self.apart, self.wrong = logs, apart, wrong
        self.norm, self.line, self.mix = nn.LayerNorm(W), nn.Linear(W, W), nn.Parameter(torch.zeros(4, 4))
        self.read, self.write = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))

    def forward(self, given: Any) -> Any:
        x = torch.stack(given, -2) if self.apart else given
        mix = balanced(3 * self.mix, 1 if self.wrong == "few" else 20, self.logs)
        mix = mix.T if self.wrong == "turned" else mix
        read = self.read.softmax(-1) if self.wrong == "softmax" else self.read.sigmoid()
        y = F.silu(self.line(self.norm((x * read[:, None].to(x.dtype)).sum(-2))))
        write = self.write.sigmoid() * (1 if self.wrong == "once" else 2)
        made = torch.einsum("st,bltw->blsw", mix.to(x.dtype), x) + y[..., None, :] * write[:, None]
        return list(made.unbind(-2)) if self.apart else made


class Wide(nn.Module):
    def __init__(self, second: str = "", top: str = "", **ways: bool) -> None:
        super().__init__()
        self.top, self.apart, self.inside, self.head = top, ways.get("apart", False), nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Streams(**ways), Streams(**ways, wrong=second), Streams(**ways)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        first = x / 4 if self.top == "divided" else x
        made: Any = [first] * 4 if self.apart else first[..., None, :].expand(-1, -1, 4, -1)
        for number, layer in enumerate(self.layers):
            if self.top == "turned" and number == 1:
                made = made[::-1] if self.apart else made.flip(-2)
            made = layer(made)
        made = torch.stack(made, -2) if self.apart else made
        return self.head(made[..., 0, :] if self.top == "first" else made.sum(-2))


family("streams that mix", "shares by logarithms", lambda **bad: ported(Wide(), Wide(**{"logs": True, **bad})), {
    "one step of mixing": ({"second": "few"}, B, ""), "streams mixed the other way": ({"second": "turned"}, B, ""),
    "shares that add up to one": ({"second": "softmax"}, B, ""), "written once": ({"second": "once"}, B, ""),
    "a list mixed the other way": ({"second": "turned", "apart": True}, B, ""), "a list turned round": ({"top": "turned", "apart": True}, TOP, ""),
    "a quarter each": ({"top": "divided"}, TOP, ""), "the first stream alone": ({"top": "first"}, TOP, ""),
}, a_list_of_streams={"apart": True})  # fmt: skip


class Attend(nn.Module):
    """Rotated attention of two heads, under a mask that is true where a word is seen. `kernel`: by torch's kernel."""

    def __init__(self, kernel: bool = False) -> None:
        super().__init__()
        self.kernel, self.qkv, self.out = kernel, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (2, W // 2)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        q, k = (each * cos.to(each.dtype) + torch.cat([-each[..., 4:], each[..., :4]], -1) * sin.to(each.dtype) for each in (q, k))
        if self.kernel:
            mixed = F.scaled_dot_product_attention(q, k, v, mask)
        else:
            scores = q @ k.mT / math.sqrt(W // 2)
            scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Kinded(nn.Module):
    """A block of one kind, that takes its mask and its angles from a table of all kinds."""

    def __init__(self, kind: str, kernel: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.kind, self.wrong, self.norm, self.attend = kind, wrong, nn.LayerNorm(W), Attend(kernel)
        self.last, self.feed = nn.LayerNorm(W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, masks: dict[str, torch.Tensor], angles: dict[str, torch.Tensor]) -> torch.Tensor:
        other = {"near": "all", "all": "near"}[self.kind]
        mask = masks[other if self.wrong == "mask" else self.kind]
        angle = angles[other if self.wrong == "angles" else self.kind]
        x = x + self.attend(self.norm(x), angle.cos(), angle.sin(), None if self.wrong == "none" else mask)
        return x + torch.tanh(self.feed(self.norm(x) if self.wrong == "norm" else self.last(x)))


class Decoder(nn.Module):
    """Layers that see all words before, and layers that see the last three. Words of a picture have places of rows and columns."""

    def __init__(self, kernel: bool = False, second: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.words, self.head = top, nn.Embedding(20, W), nn.Linear(W, 20, bias=False)
        self.layers = nn.ModuleList([Kinded("near", kernel), Kinded("all", kernel, second), Kinded("near", kernel)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, length = self.words(tokens), tokens.shape[1]
        far = torch.arange(length)[:, None] - torch.arange(length)
        masks = {"all": far >= 0, "near": (far >= 0) & (far < (4 if self.top == "window" else 3))}
        if self.top == "later":
            masks["all"] = torch.ones_like(masks["all"])
        flat = torch.arange(length)
        rows, columns = flat.clamp(max=4) // 2, flat - flat.clamp(max=4) // 2
        places = torch.stack([flat, flat] if self.top == "flat" else [columns, rows] if self.top == "columns" else [rows, columns])
        angles = {}
        for kind, base in (("near", 10.0), ("all", 10.0 if self.top == "base" else 1000.0)):
            rates = base ** (-torch.arange(4, dtype=x.dtype) / 4)
            angles[kind] = torch.cat([places[number % 2, :, None] * rate for number, rate in enumerate(rates)] * 2, -1)
        for number, layer in enumerate(self.layers):
            x = layer(x, {**masks, "all": masks["near"]} if self.top == "one" and number == 1 else masks, angles)
        return self.head(x)


WORDS = torch.randint(20, (3, LENGTH), generator=torch.Generator().manual_seed(5))

family("masks by the kind of layer", "torch's kernel", lambda **bad: ported(Decoder(), Decoder(**{"kernel": True, **bad}), WORDS), {
    "the mask of another kind": ({"second": "mask"}, B, ""), "a mask not handed on": ({"second": "none"}, B, ""),
    "the angles of another kind": ({"second": "angles"}, B, ""), "the first norm twice": ({"second": "norm"}, B, ""),
    "a window of four": ({"top": "window"}, TOP, ""), "words to come": ({"top": "later"}, TOP, ""), "flat places": ({"top": "flat"}, TOP, ""),
    "columns for rows": ({"top": "columns"}, TOP, ""), "one base for all": ({"top": "base"}, TOP, ""),
    "one mask in one layer": ({"top": "one"}, TOP, ""),
})  # fmt: skip


class Level(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.line, self.time = nn.LayerNorm(W), nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return x + self.line(F.silu(self.norm(x) + self.time(time)[:, None]))


class Beside(nn.Module):
    """A copy of the way down, with a hint, and a residual for each level and for the middle."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.hint, self.levels, self.middle = wrong, nn.Linear(4, W), nn.ModuleList([Level() for _ in range(3)]), Level()
        self.outs = nn.ModuleList([nn.Linear(W, W) for _ in range(4)])

    def forward(self, x: torch.Tensor, hint: torch.Tensor, time: torch.Tensor, scale: float = 1.0) -> tuple[list[torch.Tensor], torch.Tensor]:
        x = x if self.wrong == "hint" else x + self.hint(hint)
        found = []
        for level, out in zip(self.levels, self.outs, strict=False):
            x = level(x, time)
            found.append(out(x))
        middle = self.outs[2 if self.wrong == "out" else 3](self.middle(x, time))
        found = found if self.wrong == "levels" else [each * scale for each in found]
        return found, middle if self.wrong == "middle" else middle * scale


class Painted(nn.Module):
    """The way down, the middle, and the way up with what the way down has left. `pops`: what is left is taken from lists."""

    def __init__(self, pops: bool = False, beside: str = "", top: str = "") -> None:
        super().__init__()
        self.pops, self.top, self.inside, self.beside = pops, top, nn.Linear(6, W), Beside(beside)
        self.down, self.middle = nn.ModuleList([Level() for _ in range(3)]), Level()
        self.up, self.join = nn.ModuleList([Level() for _ in range(3)]), nn.ModuleList([nn.Linear(2 * W, W) for _ in range(3)])
        self.times, self.head = nn.Embedding(8, W), nn.Linear(W, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, hint, time = self.inside(x[..., :6]), x[..., 6:], self.times(torch.arange(len(x)) + (1 if self.top == "time" else 0))
        levels, middle = self.beside(x, hint, time, 1.0 if self.top == "scale" else 0.7)
        two = [self.guided(x, time, levels, middle), self.guided(x.flip(1), time, levels, middle)]
        return self.head(two[1] + 3 * (two[0] - two[1]))

    def guided(self, x: torch.Tensor, time: torch.Tensor, levels: list[torch.Tensor], middle: torch.Tensor) -> torch.Tensor:
        left = []
        for level in self.down:
            x = level(x, time)
            left.append(x)
        x = self.middle(x, time) + (2 * middle if self.top == "twice" else middle)
        given = levels if self.top == "popped" else list(levels)
        given = given[::-1] if self.top == "order" else given
        for number, (level, join) in enumerate(zip(self.up, self.join, strict=True)):
            if self.pops:
                more = given.pop() if given else 0
                last = left.pop()
            else:
                more, last = given[2 - number], left[2 - number]
            last = last + more if not (self.top == "skip" and number == 1) else last
            x = level(join(torch.cat([last, x] if self.top == "join" else [x, last], -1)), time)
        return x


HINTED = numbers(3, LENGTH, 10)
family("a network beside the main one", "lists that are emptied", lambda **bad: ported(Painted(), Painted(**{"pops": True, **bad}), HINTED), {
    "taken for good": ({"top": "popped"}, TOP, ""), "a middle twice": ({"top": "twice"}, TOP, ""),
    "the first level for the last": ({"top": "order"}, TOP, ""),
    "a level left out": ({"top": "skip"}, TOP, ""), "joined the other way": ({"top": "join"}, TOP, ""), "the next time": ({"top": "time"}, TOP, ""),
    "a scale of one": ({"top": "scale"}, TOP, ""), "no hint": ({"beside": "hint"}, ("beside",), ""),
    "levels not scaled": ({"beside": "levels"}, ("beside",), ""),
    "a middle not scaled": ({"beside": "middle"}, ("beside",), ""), "the layer of the last level": ({"beside": "out"}, ("beside",), ""),
}, as_it_is={"pops": False})  # fmt: skip


class Step(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.norm, self.up, self.down = wrong, nn.LayerNorm(W), nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        y = self.down(F.gelu(self.up(self.norm(x))))
        return x + y if self.wrong == "time" else x + y * (1 + number.to(x.dtype) / 4)


class Halting(nn.Module):
    """One block up to four times, until a row has had enough. `picked`: the block gets the rows that still run."""

    def __init__(self, picked: bool = False, block: str = "", top: str = "") -> None:
        super().__init__()
        self.picked, self.top, self.inside, self.block, self.halt, self.head = (
            picked,
            top,
            nn.Linear(6, W),
            Step(block),
            nn.Linear(W, 1),
            nn.Linear(W, 5),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.inside(x.flatten(0, 1))
        left, made, cost, runs = torch.ones_like(x[:, :1]), torch.zeros_like(x), torch.zeros_like(x[:, :1]), torch.ones(len(x), dtype=torch.bool)
        for number in range(4):
            steps = torch.full((len(x), 1), 0 if self.top == "number" else number)
            new = x.index_put((runs,), self.block(x[runs], steps[runs]).to(x.dtype)) if self.picked else self.block(x, steps)
            before = x if self.top == "before" else new
            x = torch.where(runs[:, None], new, x)
            share = self.halt(before).sigmoid()
            last = (left - share < 0.2) | torch.tensor(number == 3)
            share = torch.where(last & torch.tensor(self.top != "rest"), left, share.to(left.dtype)) * runs[:, None].to(left.dtype)
            made = made + share * (x.detach() if self.top == "cut" else x)
            cost = cost + runs[:, None] * (left if self.top != "steps" else 1)
            left = left - share
            runs = runs & ~last[:, 0]
        return self.head(made), cost.mean()


def halted(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[0].float().square().mean() + 0.1 * out[1].float()


family("a loop that halts", "rows that still run", lambda **bad: ported(Halting(), Halting(**{"picked": True, **bad}), loss=halted), {
    "the same number": ({"top": "number"}, TOP, ""), "the state before": ({"top": "before"}, TOP, ""),
    "no rest at the end": ({"top": "rest"}, TOP, ""),
    "states that teach nothing": ({"top": "cut"}, TOP, ""), "a cost of whole steps": ({"top": "steps"}, TOP, ""),
    "a block without a number": ({"block": "time"}, ("block",), ""),
    "all rows, no number": ({"block": "time", "picked": False}, ("block",), ""),
}, as_it_is={"picked": False})  # fmt: skip
