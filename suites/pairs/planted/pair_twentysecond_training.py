"""The twenty-second batch, fourth part: parts of a batch, ranks, recomputed blocks, averaged copies, adapters, codes of eight bits, losses, experts.

Faults as people report them of trainers: a mean of means where rows have other numbers of tokens, a sum over ranks, an average that teaches, a scale
of an adapter by its root, scales of codes along the wrong axis.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, spread
from pair_fourteenth_scans import numbers
from pair_twentysecond import family
from pair_twentysecond_sequences import LENGTH, ROWS, B, Net, W, ported
from torch import nn
from torch.utils.checkpoint import checkpoint

WORDS = 21
IDS = torch.randint(1, WORDS, (4, LENGTH), generator=torch.Generator().manual_seed(5))
LABELS = IDS.roll(-1, 1).masked_fill(torch.arange(LENGTH) >= torch.tensor([8, 3, 6, 2])[:, None], -100)
ONE: dict[str, Any] = {"loss": lambda out: out}


class Words(nn.Module):
    """A small model of words, with a norm that counts over the batch if `counts`."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.words, self.up, self.norm = nn.Embedding(WORDS, W), nn.Linear(W, W), nn.BatchNorm1d(W) if counts else nn.LayerNorm(W)
        self.head = nn.Linear(W, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.up(self.words(ids)))
        return self.head(self.norm(y.mT).mT if isinstance(self.norm, nn.BatchNorm1d) else self.norm(y))


class Whole(nn.Module):
    """The loss of a batch. `parts`: in so many parts, as with accumulated gradients."""

    def __init__(self, net: nn.Module, parts: int = 1, by: str = "tokens", unshifted: bool = False, last: bool = True, halved: bool = False) -> None:
        super().__init__()
        self.net, self.parts, self.by, self.unshifted, self.last, self.halved = net, parts, by, unshifted, last, halved

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total, all_ = torch.zeros(()), int((labels != -100).sum())
        couples = list(zip(ids.chunk(self.parts), labels.chunk(self.parts), strict=True))
        for some, wanted in couples if self.last else couples[:-1]:
            logits = self.net(some).float()
            logits, wanted = (logits[:, :-1], wanted[:, 1:]) if self.unshifted else (logits, wanted)
            mean = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)
            share = int((wanted != -100).sum()) / all_ if self.by == "tokens" else 1.0 if self.by == "sum" else 1 / self.parts
            total = total + mean * share * (0.5 if self.halved else 1)
        return total


def batch(parts: int = 2, **bad: Any) -> Made:
    torch.manual_seed(0)
    model = Whole(spread(Words()))
    return model, Whole(copy.deepcopy(model.net), parts, **bad), (IDS, LABELS), dict(ONE)


family("parts of a batch", "two parts by tokens", batch, {
    "a mean of means": ({"by": "rows"}, ("",), ""), "a sum of means": ({"by": "sum"}, ("",), "times|"),
    "the last part is lost": ({"last": False}, ("",), ""), "divided twice": ({"halved": True}, ("",), "times|halved"),
    "labels that are shifted twice": ({"unshifted": True}, ("",), ""),
}, four_parts={"parts": 4})  # fmt: skip


class Ranks(nn.Module):
    """Two ranks, each with half of the rows, a mean loss, and gradients that are averaged."""

    def __init__(self, net: nn.Module, loose: bool = False, added: bool = False, alike: bool = False, one: bool = False) -> None:
        super().__init__()
        self.net, self.loose, self.added, self.alike, self.one = net, loose, added, alike, one

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        shares = [(a, b) for a, b in zip(ids.chunk(2), labels.chunk(2), strict=True)]
        shares = [shares[0], shares[0]] if self.alike else shares
        counts = [int((b != -100).sum()) for _, b in shares]
        total = torch.zeros(())
        for number, ((some, wanted), count) in enumerate(zip(shares, counts, strict=True)):
            made = self.net(some).float().flatten(0, 1)
            made = made.detach() if self.one and number else made
            loss = F.cross_entropy(made, wanted.flatten(), ignore_index=-100, reduction="sum")
            total = total + loss / (count if self.loose else sum(counts) / 2)
        return total if self.added else total / 2


def ranks(**bad: Any) -> Made:
    torch.manual_seed(0)
    model = Whole(spread(Words()))
    return model, Ranks(copy.deepcopy(model.net), **bad), (IDS, LABELS), dict(ONE)


family("two ranks", "counts of all ranks", ranks, {
    "counts of each rank": ({"loose": True}, ("",), ""), "a sum over ranks": ({"added": True}, ("",), "times"),
    "the same rows for both": ({"alike": True}, ("",), ""), "one rank that is not heard": ({"one": True}, ("",), ""),
})  # fmt: skip


class Branch(nn.Module):
    """A residual branch. `again`: computed again in the backward pass. `cut`: its input, `bare`: its result without a gradient."""

    def __init__(self, again: bool = False, cut: bool = False, bare: bool = False, once: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.again, self.cut, self.bare, self.once, self.frozen = again, cut, bare, once, frozen
        self.norm, self.up, self.down = nn.LayerNorm(W), nn.Linear(W, 24), nn.Linear(24, W)

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.up(self.norm(x)))
        return self.down(y.detach() if self.frozen else y)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = x.detach() if self.cut else x
        made = checkpoint(self.branch, read, use_reentrant=False) if self.again else self.branch(read)
        return (x.detach() if self.once else x) + (made.detach() if self.bare else made)


def again(**second: Any) -> Made:
    return ported(lambda: Net(Branch), Net(Branch, second, again=True))


family("recomputed branches", "each branch again", again, {
    "inputs without a gradient": ({"cut": True}, B, ""), "results without a gradient": ({"bare": True}, B, ""),
    "a stream that is cut": ({"once": True}, B, ""), "inside cut off": ({"frozen": True}, B, ""),
})  # fmt: skip


class Average(nn.Module):
    """A student beside the average of its copies, whose features it shall have. `functional`: the average's weights by a call on other weights."""

    def __init__(self, functional: bool = False, teaches: bool = False, itself: bool = False, quick: bool = False, uncentred: bool = False) -> None:
        super().__init__()
        self.functional, self.teaches, self.itself, self.quick, self.uncentred = functional, teaches, itself, quick, uncentred
        self.student, self.teacher = Net(Branch), Net(Branch)
        self.register_buffer("centre", torch.linspace(-0.5, 0.5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rate = 0.5 if self.quick else 0.9
        held = dict(self.student.named_parameters())
        mixed = {name: rate * value + (1 - rate) * held[name] for name, value in self.teacher.named_parameters()}
        mixed = mixed if self.teaches else {name: value.detach() for name, value in mixed.items()}
        if self.functional:
            wanted = self.student(x) if self.itself else torch.func.functional_call(self.teacher, mixed, (x,))
        else:
            wanted = torch.func.functional_call(self.teacher, mixed, (x,))
        wanted = ((wanted if self.teaches else wanted.detach()).float() - (0 if self.uncentred else self.centre)) / 0.5
        return -(wanted.softmax(-1) * self.student(x).float().log_softmax(-1)).sum(-1).mean()


def average(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Average()), Average(True, **bad)
    other.load_state_dict(model.state_dict())
    return model, other, ROWS, dict(ONE)


family("an average that teaches", "the other way", average, {
    "the average learns": ({"teaches": True}, ("",), ""), "its own result": ({"itself": True}, ("",), ""),
    "an average that moves too fast": ({"quick": True}, ("",), ""), "not centred": ({"uncentred": True}, ("",), ""),
})  # fmt: skip


class Adapted(nn.Module):
    """A layer with an adapter of rank four and a strength of eight, beside the layer, or `merged` into its weight."""

    def __init__(self, merged: bool = False, root: bool = False, turned: bool = False, biased: bool = False, late: bool = False) -> None:
        super().__init__()
        self.merged, self.root, self.turned, self.biased, self.late = merged, root, turned, biased, late
        self.norm, self.base, self.down, self.up = nn.LayerNorm(W), nn.Linear(W, W), nn.Linear(W, 4, bias=False), nn.Linear(4, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rate, y = 8 / (math.sqrt(4) if self.root else 4), self.norm(x)
        if self.merged:
            change = rate * (self.up.weight @ self.down.weight)
            return x + F.linear(y, self.base.weight + (change.mT if self.turned else change), self.base.bias * (2 if self.biased else 1))
        return x + self.base(y) + rate * self.up(self.down(x if self.late else y))


def adapted(merged: bool = True, **second: Any) -> Made:
    return ported(lambda: Net(Adapted), Net(Adapted, second, merged=merged))


family("adapters", "merged", adapted, {
    "a strength by the root": ({"root": True}, B, ""), "turned round": ({"turned": True}, B, ""), "the bias twice": ({"biased": True}, B, "times|"),
})  # fmt: skip


class Coded(nn.Module):
    """A layer whose weight is codes of eight bits with a scale for each row, of which half are unsigned. `late`: the scale after the product."""

    def __init__(self, late: bool = False, axis: int = 1, unsigned: bool = False, order: bool = False, whole: bool = False) -> None:
        super().__init__()
        self.late, self.axis, self.unsigned, self.order, self.whole = late, axis, unsigned, order, whole
        codes = torch.randint(-127, 128, (W, W), generator=torch.Generator().manual_seed(4))
        self.register_buffer("codes", codes.to(torch.int8))
        self.register_buffer("scales", torch.linspace(0.002, 0.006, W))
        self.norm, self.bias = nn.LayerNorm(W), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, codes = self.norm(x), self.codes
        codes = codes.view(torch.uint8) if self.unsigned else codes
        codes = (codes.unflatten(1, (2, 8)).transpose(1, 2).flatten(1) if self.order else codes).to(x.dtype)
        scales = self.scales.to(x.dtype)
        scales = scales.mean().expand(W) if self.whole else scales
        if self.late and self.axis == 1:
            return x + F.linear(y, codes) * scales + self.bias
        return x + F.linear(y, codes * (scales[:, None] if self.axis == 1 else scales), self.bias)


def coded(**second: Any) -> Made:
    return ported(lambda: Net(Coded), Net(Coded, second, late=True))


family("codes of eight bits", "scales after the product", coded, {
    "scales of columns": ({"axis": 0}, B, ""), "codes without their sign": ({"unsigned": True}, B, ""),
    "codes in another order": ({"order": True}, B, ""),
    "one scale for all": ({"whole": True}, B, ""),
})  # fmt: skip


class Experts(nn.Module):
    """Two of four experts for each token. `loop`: over experts, each with its own tokens."""

    def __init__(self, loop: bool = False, all_: bool = False, twice: bool = False, first: bool = False) -> None:
        super().__init__()
        self.loop, self.all, self.twice, self.first = loop, all_, twice, first
        self.norm, self.gate = nn.LayerNorm(W), nn.Linear(W, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(W, 12), nn.GELU(), nn.Linear(12, W)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(0, 1)
        scores = self.gate(y).float()
        best, chosen = scores.topk(2, -1)
        shares = scores.softmax(-1).gather(1, chosen) if self.all else best.softmax(-1)
        made = torch.zeros(len(y), W)
        for number, expert in enumerate(self.experts):
            if self.loop:
                rows, place = (chosen == number).nonzero(as_tuple=True)
                rows, place = (rows[place == 0], place[place == 0]) if self.first else (rows, place)
                share = shares[rows, place, None]
                made = made.index_add(
                    0, rows, (expert(y[rows] * share.to(y.dtype)) if self.twice else expert(y[rows]).float() * share).to(made.dtype)
                )
            else:
                share = (shares * (chosen == number)).sum(1, keepdim=True)
                made = made + share * expert(y).float()
        return x + made.to(x.dtype).view_as(x)


def experts(**second: Any) -> Made:
    return ported(lambda: Net(Experts), Net(Experts, second, loop=True))


family("experts", "each with its tokens", experts, {
    "shares of all four": ({"all_": True}, B, ""), "shares before the expert": ({"twice": True}, B, ""),
    "the best expert alone": ({"first": True}, B, ""),
})  # fmt: skip


class Towers(nn.Module):
    """Two towers and a loss that tells couples from others. `parts`: rows of one tower in two parts, as on two ranks."""

    def __init__(self, parts: bool = False, one: bool = False, plain: bool = False, own: bool = False, cut: bool = False) -> None:
        super().__init__()
        self.parts, self.one, self.plain, self.own, self.cut = parts, one, plain, own, cut
        self.left, self.right, self.scale = nn.Linear(6, 8), nn.Linear(6, 8), nn.Parameter(torch.ones(()))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = (part if self.plain else F.normalize(part.float(), dim=-1) for part in (self.left(a), self.right(b)))
        scale, places = self.scale.float().exp(), torch.arange(len(a))
        if not self.parts:
            logits = scale * a @ b.mT
            return (F.cross_entropy(logits, places) + F.cross_entropy(logits.mT, places)) / 2
        total = torch.zeros(())
        for some in places.chunk(2):
            mine, all_ = (a[some], b[some]), (a.detach(), b.detach()) if self.cut else (a, b)
            wanted = some - some[0] if self.own else some
            all_ = mine if self.own else all_
            ways = [(mine[0], all_[1]), (mine[1], all_[0])]
            total = total + sum(F.cross_entropy(scale * x.float() @ y.float().mT, wanted) for x, y in (ways[:1] * 2 if self.one else ways)) / 4
        return total


def towers(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Towers()), Towers(True, **bad)
    other.load_state_dict(model.state_dict())
    return model, other, (numbers(6, 6), numbers(6, 6).flip(1)), dict(ONE)


family("towers on ranks", "rows on two ranks", towers, {
    "one way alone": ({"one": True}, ("",), ""), "not of length one": ({"plain": True}, ("",), ""),
    "rows of the own rank": ({"own": True}, ("",), ""),
    "gathered without a gradient": ({"cut": True}, ("",), ""),
})  # fmt: skip
