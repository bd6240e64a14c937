"""The twenty-fifth batch, third part: a converted checkpoint, features by hooks, styles of two norms, two views.

The issues: the second norm gets the numbers of the first (talking-heads 27), a lens off by one layer (tuned-lens 1), the hook of another
place (TransformerLens 1658), a stop of the gradient on the wrong branch (SimSiam 22, MIC 5), and those of the checkpoint, in the first part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made
from pair_fourteenth_scans import numbers
from pair_twentyfifth import WORDS
from pair_twentyfourth import LENGTH, ROWS, TOP, B, State, W, family, ported
from torch import nn


class Gain(nn.Module):
    """A norm whose weight is a gain above one. `whole`: the weight is the whole gain."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.whole, self.weight = whole, nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gain = self.weight if self.whole else 1 + self.weight
        return (x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gain).to(x.dtype)


class Routed(nn.Module):
    """A block whose filters are normed by kept statistics, with a size that no checkpoint holds."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.norm, self.gate, self.up, self.down = Gain(whole), nn.Linear(W, 24), nn.Linear(W, 24), nn.Linear(24, W)
        self.taps, self.kept = nn.Conv1d(W, W, 3, padding=1), nn.BatchNorm1d(W)
        self.register_buffer("size", torch.tensor(W**-0.5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y)) * self.size
        return x + torch.tanh(self.kept(self.taps(x.mT))).mT


class Converted(nn.Module):
    """Words, three blocks, and a last layer on the table of words."""

    def __init__(self, whole: bool = False, tied: bool = True) -> None:
        super().__init__()
        self.words, self.layers, self.norm = nn.Embedding(20, W), nn.ModuleList([Routed(whole) for _ in range(3)]), Gain(whole)
        self.head = nn.Linear(W, 20, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def converted(wrong: Callable[[Converted, Converted], None] | None = None, tied: bool = True) -> Made:
    """`wrong`: what a script does to the port after it has converted all weights."""
    torch.manual_seed(0)
    model, other = Converted(), Converted(True, tied)

    def convert(state: State) -> State:
        return {name: value + 1 if "norm" in name else value for name, value in state.items()}

    for layer in model.layers:
        with torch.no_grad():
            layer.kept.running_mean.copy_(numbers(W) / 4)
            layer.kept.running_var.copy_(1 + numbers(W).square())
    ported(model, other, WORDS, convert)
    if wrong is not None:
        with torch.no_grad():
            wrong(model, other)
    model.eval()
    other.eval()
    return model, other, WORDS, dict(MEAN)


def fresh(model: Converted, other: Converted) -> None:
    """The bias is copied twice, and the weight keeps what it began with."""
    nn.init.normal_(other.layers[1].up.weight, std=0.3)


def shared(model: Converted, other: Converted) -> None:
    other.layers[1].kept = other.layers[0].kept


def exchanged(model: Converted, other: Converted) -> None:
    gate, up = other.layers[1].gate, other.layers[1].up
    gate.weight.copy_(model.layers[1].up.weight)
    up.weight.copy_(model.layers[1].gate.weight)


def squared(model: Converted, other: Converted) -> None:
    other.layers[1].kept.running_var.sqrt_()


def counted(model: Converted, other: Converted) -> None:
    other.layers[1].kept.running_mean.copy_(torch.zeros(W))


def flipped(model: Converted, other: Converted) -> None:
    other.layers[1].taps.weight.copy_(model.layers[1].taps.weight.flip(-1))


family("a converted checkpoint", "whole gains", converted, {
    "one added twice": ({"wrong": lambda model, other: other.layers[1].norm.weight.add_(1)}, ("layers.1.norm",), ""),
    "a weight as it began": ({"wrong": fresh}, ("layers.1.up",), ""), "norms that are shared": ({"wrong": shared}, ("layers.1.kept", *B), ""),
    "gate and up exchanged": ({"wrong": exchanged}, ("layers.1.gate", "layers.1.up", *B), ""),
    "deviations for variances": ({"wrong": squared}, ("layers.1.kept",), ""), "no kept mean": ({"wrong": counted}, ("layers.1.kept",), ""),
    "taps turned round": ({"wrong": flipped}, ("layers.1.taps",), ""), "a head of its own": ({"tied": False}, ("head", "words", ""), ""),
    "a size of one": ({"wrong": lambda model, other: other.layers[1].size.fill_(1.0)}, B, ""),
    "one not added at the end": ({"wrong": lambda model, other: other.norm.weight.sub_(1)}, ("norm",), ""),
})  # fmt: skip


class Plain(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.first, self.norm, self.second = wrong, nn.Conv1d(W, W, 3, padding=1), nn.GroupNorm(4, W), nn.Conv1d(W, W, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(F.relu(self.norm(self.first(x))))
        return F.relu(y) + x if self.wrong == "relu" else F.relu(x + y)


class Seen(nn.Module):
    """Distances of two sounds, by the features of four layers, each with a weight for each channel. `hooked`: hooks gather the features. `steered`: a
    hook adds a direction to what the second layer returns."""

    def __init__(self, hooked: bool = False, second: str = "", top: str = "") -> None:
        super().__init__()
        self.hooked, self.top, self.inside, self.direction = hooked, top, nn.Conv1d(6, W, 1), nn.Parameter(torch.zeros(W))
        self.layers, self.weights = (
            nn.ModuleList([Plain(second if n == 1 else "") for n in range(4)]),
            nn.ModuleList([nn.Conv1d(W, 1, 1) for _ in range(3)]),
        )
        self.features: list[torch.Tensor] = []
        if hooked:
            for number in (0, 1, 3) if top == "hook" else (0, 1, 2):
                before = top == "before" and number == 1
                self.layers[number].register_forward_hook(lambda module, args, out, before=before: self.features.append(args[0] if before else out))
            for _ in range(2 if top == "steered twice" else 1):
                self.layers[2 if top == "steered late" else 1].register_forward_hook(self.steered, prepend=True)

    def steered(self, module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out + self.direction[:, None]

    def gathered(self, x: torch.Tensor) -> list[torch.Tensor]:
        self.features.clear()
        x, found = self.inside(x), []
        for number, layer in enumerate(self.layers):
            x = layer(x)
            x = x + self.direction[:, None] if number == 1 and not self.hooked else x
            found.append(x)
        return list(self.features) if self.hooked else found[:3]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.gathered(x[:, :6]), self.gathered(x[:, 6:])
        two = [each.detach() for each in two] if self.top == "cut" else two
        order = [1, 0, 2] if self.top == "order" else [0, 1, 2]
        made: Any = 0
        for number, weight in enumerate(self.weights):
            a, b = (each[order[number]] for each in (one, two))
            a, b = (each if self.top == "norm" else each / (each.square().sum(1, keepdim=True) + 1e-8).sqrt() for each in (a, b))
            made = made + weight((a - b).square()).mean(-1)
        return made


HEARD = numbers(3, 12, LENGTH)
family("features by hooks", "hooks that gather", lambda **bad: ported(Seen(), Seen(**{"hooked": True, **bad}), HEARD), {
    "the layer after": ({"top": "hook"}, TOP, ""), "what a layer is given": ({"top": "before"}, TOP, ""),
    "steered twice": ({"top": "steered twice"}, ("", *B), ""),
    "steered one later": ({"top": "steered late"}, ("", *B), ""), "features in another order": ({"top": "order"}, TOP, ""),
    "features not normed": ({"top": "norm"}, TOP, ""), "one sound teaches nothing": ({"top": "cut"}, TOP, ""),
    "a residual after the last step": ({"second": "relu"}, B, ""),
}, as_it_is={"hooked": False})  # fmt: skip


class Adapted(nn.Module):
    """Norms of each picture, whose mean and deviation are given. `torch`: by torch's norm."""

    def __init__(self, torchs: bool = False, biased: bool = True) -> None:
        super().__init__()
        self.torchs, self.biased = torchs, biased

    def forward(self, x: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        if self.torchs and self.biased:
            y = F.instance_norm(x, eps=1e-5)
        else:
            variance = x.var((2, 3), keepdim=True, unbiased=not self.biased)
            y = (x - x.mean((2, 3), keepdim=True)) / (variance + 1e-5).sqrt()
        return y * std[..., None, None] + mean[..., None, None]


class Styled(nn.Module):
    def __init__(self, torchs: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.one, self.two = wrong, Adapted(torchs), Adapted(torchs, wrong != "biased")
        self.first, self.second = nn.Conv2d(W, W, 3, padding=1), nn.Conv2d(W, W, 3, padding=1)

    def forward(self, x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        one, two, three, four = style.chunk(4, -1)
        y = F.relu(self.one(self.first(x), one, two))
        three, four = {"first": (one, two), "exchanged": (four, three)}.get(self.wrong, (three, four))
        y = self.two(self.second(y), three, four)
        y = y * 2**-0.5 if self.wrong == "half" else y
        return y + (F.relu(x) if self.wrong == "relu" else x)


class Head(nn.Module):
    """One projection of a style for all blocks. `slices`: each block gets its own rows of the projection."""

    def __init__(self, torchs: bool = False, second: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.inside, self.project, self.head = top, nn.Conv2d(3, W, 3, padding=1), nn.Linear(6, 12 * W), nn.Conv2d(W, 3, 1)
        self.layers = nn.ModuleList([Styled(torchs), Styled(torchs, second), Styled(torchs)])

    def forward(self, picture: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        x = self.inside(picture)
        style = style.amax(1) if self.top == "most" else style.mean(1)
        all_ = self.project(F.relu(style) if self.top == "bent" else style)
        if self.top == "interleaved":
            all_ = all_.unflatten(-1, (4 * W, 3)).mT.flatten(1)
        for number, layer in enumerate(self.layers):
            start = 4 * W * number + (W if self.top == "slice" and number == 1 else 0)
            x = layer(x, all_[:, start : start + 4 * W])
        return self.head(x)


DRAWN = (numbers(3, 3, 6, 6), ROWS)
family("styles of two norms", "norms of torch", lambda **bad: ported(Head(), Head(**{"torchs": True, **bad}), DRAWN), {
    "the first norm's numbers": ({"second": "first"}, B, ""), "deviation for mean": ({"second": "exchanged"}, B, ""),
    "another count of the variance": ({"second": "biased"}, ("layers.1.two",), ""), "half a branch": ({"second": "half"}, B, ""),
    "a residual that is bent": ({"second": "relu"}, B, ""), "a slice one norm late": ({"top": "slice"}, TOP, ""),
    "numbers of all blocks in turn": ({"top": "interleaved"}, TOP, ""), "the most and not the mean": ({"top": "most"}, TOP, ""),
    "a style that is bent": ({"top": "bent"}, TOP, ""),
})  # fmt: skip


class Project(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(W, W, bias=False), nn.BatchNorm1d(W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.norm(self.first(x))))


class Views(nn.Module):
    """Two views of each row, of which one foretells the other, which is not taught."""

    def __init__(self, turned: bool = False, top: str = "") -> None:
        super().__init__()
        self.turned, self.top, self.inside, self.project, self.foretell = turned, top, nn.Linear(6, W), Project(), Project()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        if self.top == "one batch":
            one, two = self.project(torch.cat([x[:, 0], x[:, 1]])).chunk(2)
        else:
            one, two = self.project(x[:, 0]), self.project(x[:, 1])
        p, q = self.foretell(one), one if self.top == "half" else self.foretell(two)
        return (self.near(p, two) + self.near(q, two if self.top == "own" else one)) / 2

    def near(self, p: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        p, z = {"taught": (p, z), "other": (p.detach(), z)}.get(self.top, (p, z.detach()))
        if self.turned and self.top != "length":
            return -(F.normalize(p, dim=-1) * F.normalize(z, dim=-1)).sum(-1).mean()
        return -(p * z).sum(-1).mean() if self.top == "length" else -F.cosine_similarity(p, z, dim=-1).mean()


VIEWS = numbers(8, 2, 6)
family("two views", "normed by hand", lambda **bad: ported(Views(), Views(**{"turned": True, **bad}), VIEWS, loss=lambda out: out.float()), {
    "both are taught": ({"top": "taught"}, TOP, ""), "the other is taught": ({"top": "other"}, TOP, ""),
    "both in one batch": ({"top": "one batch"}, ("", "project"), ""),
    "one is not foretold": ({"top": "half"}, TOP, ""), "each foretells itself": ({"top": "own"}, TOP, ""), "not normed": ({"top": "length"}, TOP, ""),
}, as_it_is={"turned": False})  # fmt: skip
