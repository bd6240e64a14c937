"""The nineteenth batch, sixth part: losses that are a module, loops over parts of a batch, optimizers by hand, recordings, compiled code.

Faults as such rewrites have them: a margin before the root, a risk set without ties, means of means, a trust ratio that is missing.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_eleventh import stepped
from pair_fourteenth_scans import numbers
from pair_nineteenth import ROWS, Stages, Tower, W, family, filled, in_stages, seeded
from pair_nineteenth_parts import Ring
from pair_nineteenth_shapes import Two
from torch import nn

import precheck


class Scored(nn.Module):
    def __init__(self, score: nn.Module, out: int) -> None:
        super().__init__()
        self.net, self.score = nn.Sequential(nn.Linear(6, W), nn.Tanh(), nn.Linear(W, out)), score

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(self.net(x).float())


def scored(kind: Callable[..., nn.Module], out: int, inputs: torch.Tensor) -> Callable[..., Made]:
    def made(**bad: Any) -> Made:
        return filled(seeded(Scored, score=kind(), out=out), Scored(kind(port=True, **bad), out), inputs, given={"loss": lambda found: found})

    return made


class Score(nn.Module):
    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.port, self.ways = port, ways

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.ported if self.port else self.plain)(x)

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    ported = plain


class Margin(Score):
    """Angles to four classes, of which the right one's is made larger."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__(port, **ways)
        self.centres = nn.Parameter(torch.zeros(4, 8))

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        wanted = torch.arange(len(x)) % 4
        angles = (F.normalize(x, dim=-1) @ F.normalize(self.centres.to(x.dtype), dim=-1).mT).clamp(-0.999, 0.999).acos()
        return F.cross_entropy(6 * torch.cos(angles + 0.3 * F.one_hot(wanted, 4)), wanted)

    def ported(self, x: torch.Tensor) -> torch.Tensor:
        ways, wanted = self.ways, torch.arange(len(x)) % 4
        centres = self.centres.to(x.dtype)
        near = (x @ centres.mT / (x.norm(dim=-1, keepdim=True) * centres.norm(dim=-1))).clamp(-0.999, 0.999)
        sine = (1 - near).sqrt() if ways.get("root") else ((1 - near) * (1 + near)).sqrt()
        moved = near * math.cos(0.3) + (1 if ways.get("sign") else -1) * sine * math.sin(0.3)
        made = 6 * torch.where(F.one_hot(wanted, 4).bool() | bool(ways.get("all")), moved, near)
        return (made.logsumexp(-1) - made.gather(-1, wanted[:, None])[:, 0]).mean()


family("a margin of angles", "sums of angles", scored(Margin, 8, numbers(9, 6)), {
    "another sign": ({"sign": True}, ("score",)), "the root of one less": ({"root": True}, ("score",)),
    "a margin for all": ({"all": True}, ("score",)),
})  # fmt: skip


class Paths(Score):
    """The soft smallest sum along ways through a table of distances, cell by cell or by diagonals."""

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        far = (x[:, :, None] - self.target(x)[:, None]).square().mean(-1)
        found: dict[tuple[int, int], torch.Tensor] = {}
        for row in range(far.shape[1]):
            for column in range(far.shape[2]):
                before = [found[at] for at in ((row - 1, column), (row, column - 1), (row - 1, column - 1)) if at in found]
                found[row, column] = far[:, row, column] + (-0.5 * (-torch.stack(before) / 0.5).logsumexp(0) if before else 0)
        return found[far.shape[1] - 1, far.shape[2] - 1].mean()

    def ported(self, x: torch.Tensor) -> torch.Tensor:
        ways, target = self.ways, self.target(x)
        far = (x.square().sum(-1)[..., None] + target.square().sum(-1)[:, None] - 2 * x @ target.mT) / x.shape[-1]
        rows, columns = far.shape[1:]
        last, now = far.new_full((len(x), rows + 1), 1e4), far.new_full((len(x), rows + 1), 1e4)
        last = torch.cat([torch.zeros_like(last[:, :1]), last[:, 1:]], 1)
        for line in range(rows + columns - 1):
            row = torch.arange(rows)
            column = line - row
            cost = torch.where((column >= 0) & (column < columns), far[:, row, column.clamp(0, columns - 1)], 1e4)
            near = torch.stack([now[:, :-1], now[:, 1:], last[:, :-1]][: 2 if ways.get("straight") and line else 3])
            most = 0.5 * torch.logsumexp(-near / (1.0 if ways.get("warm") else 0.5), 0)
            last, now = now, torch.cat([torch.full_like(now[:, :1], 1e4), cost - most], 1)
        return now[:, -1].mean() if not ways.get("early") else last[:, -1].mean()

    def target(self, x: torch.Tensor) -> torch.Tensor:
        return numbers(len(x), 6, x.shape[-1]).to(x)


family("soft ways", "by diagonals", scored(Paths, 3, numbers(2, 8, 6)), {
    "no steps across": ({"straight": True}, ("score",)), "sums that are warmer": ({"warm": True}, ("score",)),
    "the end one early": ({"early": True}, ("score",)),
})  # fmt: skip


class Risks(Score):
    """The likelihood of the order of events, of those that are still at risk."""

    times = torch.tensor([5.0, 2.0, 8.0, 2.0, 7.0, 1.0, 4.0, 6.0, 3.0])
    seen = torch.tensor([1, 1, 0, 1, 1, 1, 0, 1, 1])

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        risk = x[:, 0].masked_fill(self.times[:, None] > self.times, -math.inf).logsumexp(1)
        return ((risk - x[:, 0]) * self.seen).sum() / self.seen.sum()

    def ported(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        order = self.times.argsort(descending=not ways.get("turned"), stable=True)
        sums = x[order, 0].logcumsumexp(0)
        times = self.times[order]
        last = torch.arange(len(x)) if ways.get("ties") else (times[:, None] == times).int().cumsum(1).argmax(1)
        each = sums[last] - x[order, 0]
        return each.mean() if ways.get("all") else (each * self.seen[order]).sum() / self.seen.sum()


family("an order of events", "sums of a sorted row", scored(Risks, 1, numbers(9, 6)), {
    "ties one by one": ({"ties": True}, ("score",)), "the first last": ({"turned": True}, ("score",)),
    "those not seen too": ({"all": True}, ("score",)),
})  # fmt: skip


class Shares(Score):
    """A return's distribution over nine atoms, moved by a reward and put back on the atoms."""

    def moved(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        atoms = torch.linspace(-2, 2, 9)
        return ((numbers(len(x)) * 1.2)[:, None] + (1 if self.ways.get("kept") else 0.9) * atoms).clamp(-2, 2), numbers(len(x), 9).softmax(-1)

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        places, shares = self.moved(x)
        near = (1 - (places[..., None] - torch.linspace(-2, 2, 9)).abs() / 0.5).clamp(min=0)
        return -(torch.einsum("bj,bji->bi", shares, near) * x.log_softmax(-1)).sum(-1).mean()

    def ported(self, x: torch.Tensor) -> torch.Tensor:
        places, shares = self.moved(x)
        at = (places + 2) / 0.5
        low = at.floor().clamp(max=7)
        up = torch.full_like(at, 0.5) if self.ways.get("halves") else at - low
        wanted = torch.zeros_like(shares).scatter_add(1, low.long(), shares * (1 - up))
        wanted = (wanted.scatter if self.ways.get("set") else wanted.scatter_add)(1, low.long() + 1, shares * up)
        return (wanted * (x.logsumexp(-1, keepdim=True) - x)).sum(-1).mean()


family("shares of atoms", "added to both neighbours", scored(Shares, 9, numbers(7, 6)), {
    "set and not added": ({"set": True}, ("score",)), "halves to both": ({"halves": True}, ("score",)),
    "a return that keeps all": ({"kept": True}, ("score",)),
})  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x)))


def looped(**ways: Any) -> Made:
    """Tokens of four documents, of which some have no label. By parts of two documents, sorted by length and cut to the longest of each part."""
    torch.manual_seed(0)
    net, x, labels = spread(Net()), torch.randn(4, 9, 6), torch.randint(0, 3, (4, 9))
    lengths = torch.tensor([3, 9, 2, 6])
    labels[torch.arange(9) >= lengths[:, None]] = -100

    def whole(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(x).flatten(0, 1).float(), labels.flatten())

    def parts(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total, count = torch.zeros(()), (labels != -100).sum()
        for number, some in enumerate(lengths.argsort(descending=True).split(2)):
            longest = int(lengths[some].max()) - (1 if ways.get("short") else 0)
            out, wanted = net(x[some, :longest]), labels[some, :longest]
            out = out.detach() if ways.get("cut") and number else out
            lost = F.cross_entropy(out.flatten(0, 1).float(), wanted.flatten(), reduction="sum")
            total = total + lost / ((wanted != -100).sum() * 2 if ways.get("means") else wanted.numel() * 2 if ways.get("padding") else count)
        return total

    return whole, parts, (x, labels), {"loss": lambda out: out}


family("parts sorted by length", "sums over all tokens", looped, {
    "means of means": ({"means": True}, ("",)), "padding counted": ({"padding": True}, ("",)),
    "the last token of each part": ({"short": True}, ("",)),
    "the second part cut off": ({"cut": True}, ("",)),
})  # fmt: skip


class Hand(torch.optim.Optimizer):
    """Optimizers by formulas. `kind`: root mean squares that are centred, Adagrad, or Adam with the largest of squares."""

    def __init__(self, held: Any, kind: str, **ways: Any) -> None:
        super().__init__(held, {})
        self.kind, self.ways, self.count = kind, ways, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for value in self.param_groups[0]["params"]:
            grad, state, ways = value.grad, self.state[value], self.ways
            zeros = torch.zeros_like(value)
            if self.kind == "centred":
                state["square"] = 0.9 * state.get("square", zeros) + 0.1 * grad.square()
                state["mean"] = 0.9 * state.get("mean", zeros) + 0.1 * grad
                spread = state["square"] - (0 if ways.get("plain") else state["mean"].square())
                value -= 1e-2 * grad / ((spread + 1e-3).sqrt() if ways.get("inside") else spread.sqrt() + 1e-3)
            elif self.kind == "sums":
                state["sum"] = state.get("sum", zeros + (0.0 if ways.get("none") else 0.1)) + grad.square()
                value -= 1e-2 / (1 + (0 if ways.get("kept") else self.count - 1) * 0.2) * grad / (state["sum"].sqrt() + 1e-10)
            else:
                state["mean"] = state.get("mean", zeros).lerp(grad, 0.1)
                state["square"] = state.get("square", zeros).lerp(grad.square(), 0.05)
                state["most"] = state["square"] if ways.get("last") else torch.maximum(state.get("most", zeros), state["square"])
                value *= 1 - (0 if ways.get("bare") else 1e-2 * 0.1)
                below = (state["most"] / (1 - 0.95**self.count)).sqrt() + 1e-3
                value -= 1e-2 * state["mean"] / (1 - 0.9**self.count) / below


def centred(held: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(held, lr=1e-2, alpha=0.9, eps=1e-3, centered=True)


def sums(held: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(held, lr=1e-2, lr_decay=0.2, initial_accumulator_value=0.1)


def largest(held: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(held, lr=1e-2, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.1, amsgrad=True)


for kind, theirs, faults in (("centred", centred, ("plain", "inside")), ("sums", sums, ("none", "kept")), ("largest", largest, ("last", "bare"))):
    family(f"optimizers by hand, {kind}", "by formulas",
           lambda kind=kind, theirs=theirs, **bad: stepped(lambda held: Hand(held, kind, **bad), theirs),  # type: ignore[misc]
           {fault: ({fault: True}, ("", "last")) for fault in faults})  # fmt: skip


def recorded(**bad: Any) -> Made:
    """What another program gave, by name: its logits, two layers' results and a gradient."""
    model, port, x, given = filled(seeded(Tower), Stages(**bad), ROWS, in_stages)
    seen: dict[str, torch.Tensor] = {}
    for number in range(4):
        def kept(_: Any, __: Any, out: torch.Tensor, number: int = number) -> None:
            seen[f"module:blocks.{number}"] = out.detach().clone()

        port.stages[number // 2][number % 2].register_forward_hook(kept)
    out = port(x)
    given["loss"](out).backward()
    seen |= {"output": out.detach(), "gradient:head.weight": port.classify.weight.grad}
    return model, precheck.record(Path(tempfile.mkdtemp()) / "run.safetensors", seen), x, given


healthy("tensors by name", "of another program", recorded)
broken("tensors by name", "the third's other gelu", lambda: recorded(slope="tanh"), "blocks.2")


def compiled(backend: str, **bad: Any) -> Made:
    model, other, x, _ = filled(seeded(Two, kind=Ring), Two(Ring, bad, ranks=True), numbers(2, 12, 6))
    return model, torch.compile(other, backend=backend), x, dict(MEAN)


family("compiled ranks", "without Inductor", lambda **bad: compiled("aot_eager", **bad), {"the mean of ranks": ({"mean": True}, ("body.b",))})
family("compiled ranks by Inductor", "one graph", lambda **bad: compiled("inductor", **bad),
       {"places within the rank": ({"local": True}, ("body.b",))})  # fmt: skip
