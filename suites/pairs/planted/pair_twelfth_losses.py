"""A twelfth batch, fourth part: losses that are a part of the model, what torch's tools make of a network, optimizers on one vector.

Faults as such rewrites have them: smoothing among the other classes alone, a last chunk that is left out, an eps inside of a root.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_eleventh import stepped
from pair_twelfth import LENGTH, SECOND, W, numbers, two
from torch import nn


class Scored(nn.Module):
    """A network and its loss, which is a part of its own: `score`."""

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.net, self.score = nn.Sequential(nn.Linear(W, W), nn.Tanh(), nn.Linear(W, 9)), score

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(self.net(x).float())


class Words(nn.Module):
    """Cross-entropy with smoothing and a term for the sum. `kind`: torch's, in chunks of rows, or with the vocabulary on three ranks."""

    def __init__(self, kind: str = "torch", fewer: int = 0, root: bool = False, last: bool = True) -> None:
        super().__init__()
        self.kind, self.fewer, self.root, self.last = kind, fewer, root, last

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        logits, wanted = logits.flatten(0, 1), (torch.arange(2 * LENGTH) * 5) % 9
        if self.kind == "torch":
            return F.cross_entropy(logits, wanted, label_smoothing=0.2) + 0.01 * logits.logsumexp(-1).square().mean()
        if self.kind == "chunks":
            parts = list(zip(logits.split(5), wanted.split(5), strict=True))
            return sum(self.rows(*part) for part in (parts if self.last else parts[:-1])) / len(wanted)  # type: ignore[return-value]
        ranks = logits.split(3, -1)
        most = torch.stack([rank.amax(-1) for rank in ranks]).amax(0).detach()
        whole = most + sum((rank - most[:, None]).exp().sum(-1) for rank in ranks).log()  # type: ignore[union-attr]
        hit = sum(torch.where(wanted // 3 == number, rank.gather(-1, (wanted % 3)[:, None])[:, 0], 0.0) for number, rank in enumerate(ranks))
        smooth = sum(rank.sum(-1) for rank in ranks) / 9
        return (whole - 0.8 * hit - 0.2 * smooth + 0.01 * whole.square()).mean()  # type: ignore[no-any-return]

    def rows(self, logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        whole = logits.logsumexp(-1)
        logs = logits - whole[:, None]
        rest = logs.sum(-1) / (9 - self.fewer)
        return (-0.8 * logs.gather(-1, wanted[:, None])[:, 0] - 0.2 * rest + 0.01 * (whole if self.root else whole.square())).sum()


class Aligned(nn.Module):
    """The loss of all ways to align two symbols with the frames. `kind`: torch's, or by the recursion. `blank`: which class is none."""

    def __init__(self, kind: str = "torch", blank: int = 0, leap: bool = True) -> None:
        super().__init__()
        self.kind, self.blank, self.leap = kind, blank, leap

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        logs, lengths = logits.log_softmax(-1), torch.full((len(logits),), LENGTH)
        if self.kind == "torch":
            target = torch.tensor([[3, 5]] * len(logits))
            return F.ctc_loss(logs.transpose(0, 1), target, lengths, torch.full_like(lengths, 2), reduction="sum")
        path = torch.tensor([self.blank, 3, self.blank, 5, self.blank])
        seen = logs[..., path]
        state = torch.where(torch.arange(5) < 2, seen[:, 0], -1e30)
        for frame in seen[:, 1:].unbind(1):
            leap = torch.where(torch.arange(5) == 3, F.pad(state, (2, -2), value=-1e30), -1e30) if self.leap else torch.full_like(state, -1e30)
            state = torch.stack([state, F.pad(state, (1, -1), value=-1e30), leap]).logsumexp(0) + frame
        return -state[:, 3:].logsumexp(-1).sum()


def scored(part: Callable[..., nn.Module], **ways: Any) -> Callable[[], Made]:
    def made() -> Made:
        torch.manual_seed(0)
        model, other = spread(Scored(part())), Scored(part(**ways))
        other.load_state_dict(model.state_dict())
        return model, other, numbers(2, LENGTH, W), {"loss": lambda out: out}

    return made


class Plain(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.norm, self.up, self.down = factor, nn.LayerNorm(W), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(self.norm(x))) * self.factor)


def made_by(maker: str, **ways: Any) -> Callable[[], Made]:
    """What a tool of torch made of the other network."""

    def made() -> Made:
        model, other, x, _ = two(Plain, **ways)()
        if maker == "export":
            return model, torch.export.export(other, (x,)), x, dict(MEAN)
        tools: dict[str, Callable[[Any], Any]] = {
            "trace": torch.fx.symbolic_trace, "compile": torch.compile, "script": lambda net: torch.jit.trace(net, (x,)),
            "call": lambda net: lambda x: torch.func.functional_call(model, dict(net.named_parameters()), (x,)),
        }  # fmt: skip
        return model, tools[maker](other), x, dict(MEAN)

    return made


class Vector(torch.optim.Optimizer):
    """Steps on all weights as one vector. `kind`: Adam, or momentum that looks ahead."""

    def __init__(self, held: Any, kind: str, eps_inside: bool = False, corrected: bool = True, ahead: bool = True) -> None:
        super().__init__(held, {})
        self.kind, self.eps_inside, self.corrected, self.ahead, self.count = kind, eps_inside, corrected, ahead, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = self.param_groups[0]["params"]
        grad, whole = (torch.cat([part.flatten() for part in each]) for each in ([each.grad for each in held], held))
        state = self.state["all"]
        self.count += 1
        if self.kind == "momentum":
            state["sum"] = 0.9 * state.get("sum", torch.zeros_like(grad)) + grad
            whole = whole - 0.01 * (grad + 0.9 * state["sum"] if self.ahead else state["sum"])
        else:
            state["mean"] = state.get("mean", torch.zeros_like(grad)).lerp(grad, 0.1)
            state["square"] = 0.999 * state.get("square", torch.zeros_like(grad)) + 0.001 * grad.square()
            mean, square = state["mean"], state["square"]
            if self.corrected:
                mean, square = mean / (1 - 0.9**self.count), square / (1 - 0.999**self.count)
            whole = whole * (1 - 1e-2 * 1e-2) - 1e-2 * mean / ((square + 1e-3).sqrt() if self.eps_inside else square.sqrt() + 1e-3)
        for each, part in zip(held, whole.split([each.numel() for each in held]), strict=True):
            each.copy_(part.view(each.shape))


def adam(held: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(held, lr=1e-2, eps=1e-3)


def momentum(held: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(held, lr=1e-2, momentum=0.9, nesterov=True)


def vector(kind: str, **ways: Any) -> Callable[[], Made]:
    return lambda: stepped(lambda held: Vector(held, kind, **ways), momentum if kind == "momentum" else adam)


healthy("losses", "in chunks of rows", scored(Words, kind="chunks"))
healthy("losses", "words on three ranks", scored(Words, kind="ranks"))
broken("losses", "smoothing among the others", scored(Words, kind="chunks", fewer=1), "score")
broken("losses", "a sum that is not squared", scored(Words, kind="chunks", root=True), "score")
broken("losses", "without the last chunk", scored(Words, kind="chunks", last=False), "score")
healthy("alignments", "by the recursion", scored(Aligned, kind="recursion"))
broken("alignments", "another blank", scored(Aligned, kind="recursion", blank=8), "score")
broken("alignments", "no leap", scored(Aligned, kind="recursion", leap=False), "score")
for tool in ("export", "trace", "script", "call", "compile"):
    healthy("tools", tool, made_by(tool))
broken("tools", "export, a factor in the second layer", made_by("export", bad_factor=1.1), SECOND, f"{SECOND}.down")
broken("tools", "trace, a factor in the second layer", made_by("trace", bad_factor=1.1), SECOND, "")
broken("tools", "compile, a factor in the second layer", made_by("compile", bad_factor=1.1), SECOND)
healthy("one vector", "Adam", vector("Adam"))
healthy("one vector", "momentum", vector("momentum"))
broken("one vector", "an eps inside of the root", vector("Adam", eps_inside=True), "", "last")
broken("one vector", "means that are not corrected", vector("Adam", corrected=False), "", "last")
broken("one vector", "momentum that does not look ahead", vector("momentum", ahead=False), "", "last")
