"""The twenty-sixth batch, fifth part: a port of a network with other conventions, words of a question against words of a text, returns and actions.

The issues: padding by another convention (flax 963), taps in another order, and poolings (resnet10 2); a mask of zeros before the largest is
taken (ColBERT 62), words of the question that are not masked (rerankers 75), a mean for a sum (lancedb 1546); kinds one after the other and not
in turn (CORL 3), places that are added too (transformers 17946), a prediction from another kind (decision-transformer 5).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_twentyfifth import WORDS
from pair_twentyfourth import ROWS, TOP, B, State, W, ported
from pair_twentysixth import Layer, Whole, family
from torch import nn


def same(x: torch.Tensor, size: int, value: float = 0.0) -> torch.Tensor:
    """Padding of which the larger half comes last, for a step of two."""
    more = max(size - 2, 0) if x.shape[-1] % 2 == 0 else size - 1
    return F.pad(x, (more // 2, more - more // 2) * 2, value=value)


class Taps(nn.Module):
    """A filter with a step of two, whose taps are kept as (height, width, in, out). The port has torch's order."""

    def __init__(self, into: int, out: int, ports: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.ports, self.wrong = ports, wrong
        self.kernel, self.bias = nn.Parameter(torch.zeros(*((out, into, 3, 3) if ports else (3, 3, into, out)))), nn.Parameter(torch.zeros(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ports:
            patches = same(x, 3).unfold(2, 3, 2).unfold(3, 3, 2)
            return torch.einsum("nchwij,ijco->nohw", patches, self.kernel.to(patches.dtype)) + self.bias[:, None, None]
        if self.wrong == "padding":
            return F.conv2d(x, self.kernel, self.bias, 2, 1)
        return F.conv2d(same(x, 3), self.kernel, self.bias, 2)


class Norms(nn.Module):
    """Statistics of a batch, kept with a momentum of 0.9. `batch_norm`: by torch's function."""

    def __init__(self, ports: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.ports, self.wrong, self.scale, self.bias = ports, wrong, nn.Parameter(torch.ones(W)), nn.Parameter(torch.zeros(W))
        self.register_buffer("mean", torch.zeros(W))
        self.register_buffer("var", torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        momentum, eps = 0.9 if self.wrong == "momentum" else 0.1, 1e-5 if self.wrong == "eps" else 1e-3
        mean, var = x.float().mean((0, 2, 3)), x.float().var((0, 2, 3), unbiased=self.wrong == "biased")
        if self.ports:
            y = F.batch_norm(x, None, None, self.scale.to(x.dtype), self.bias.to(x.dtype), True, 0.1, eps)
        else:
            y = ((x - mean[:, None, None]) / (var[:, None, None] + eps).sqrt() * self.scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean.dtype), momentum)
            self.var.lerp_(var.to(self.var.dtype), momentum)
        return y


class Stage(nn.Module):
    def __init__(self, into: int, ports: bool = False, wrong: str = "", taps: str = "", norms: str = "") -> None:
        super().__init__()
        self.wrong, self.taps, self.norms, self.past = wrong, Taps(into, W, ports, taps), Norms(ports, norms), nn.Conv2d(W, W, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms(self.taps(x))
        y = F.gelu(y, approximate="none" if self.wrong == "gelu" else "tanh")
        return y + (self.past(y) if self.wrong == "slope" else F.leaky_relu(self.past(y), 0.01 if self.wrong == "leak" else 0.2))


class Ported(nn.Module):
    def __init__(self, ports: bool = False, top: str = "", **second: str) -> None:
        super().__init__()
        self.ports, self.top, self.layers = (
            ports,
            top,
            nn.ModuleList([Stage(3 if n == 0 else W, ports, **(second if n == 1 else {})) for n in range(2)]),
        )
        self.head = nn.Linear(4 * W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        x = F.max_pool2d(x, 3, 2, 1) if self.top == "pool" else F.max_pool2d(same(x, 3, -math.inf), 3, 2)
        return self.head(x.flatten(1) if self.top == "order" else x.permute(0, 2, 3, 1).flatten(1))


def conventions(turned: bool = False, **ways: Any) -> Made:
    def convert(state: State) -> State:
        found = {}
        for name, value in state.items():
            second = turned and name.startswith("layers.1")
            found[name] = (
                value.permute(3, 2, 1, 0) if name.endswith("kernel") and second else value.permute(3, 2, 0, 1) if name.endswith("kernel") else value
            )
        return found

    return ported(Ported(), Ported(**{"ports": True, **ways}), numbers(3, 3, 16, 16), convert)


TAPS, NORMS = ("layers.1.taps",), ("layers.1.norms",)
family("other conventions", "torch's order", conventions, {
    "padding on both sides": ({"taps": "padding"}, TAPS, ""), "rows and columns of taps": ({"turned": True}, TAPS, ""),
    "the eps of torch": ({"norms": "eps"}, NORMS, ""), "the momentum of torch": ({"norms": "momentum"}, NORMS, ""),
    "another count of the variance": ({"norms": "biased"}, NORMS, ""), "another GELU": ({"wrong": "gelu"}, B, ""),
    "another slope": ({"wrong": "leak"}, B, ""),
    "no slope": ({"wrong": "slope"}, B, ""), "a pool with other padding": ({"top": "pool"}, TOP, ""),
    "channels first in the head": ({"top": "order"}, TOP, ""),
})  # fmt: skip


class Late(nn.Module):
    """Each word of a question and the word of a text that is nearest to it. `one`: texts one by one, without their padding."""

    def __init__(self, one: bool = False, top: str = "") -> None:
        super().__init__()
        self.one, self.top, self.words, self.layer, self.project = one, top, nn.Embedding(20, W), Layer(Whole()), nn.Linear(W, 8, bias=False)

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.project(self.layer(self.words(tokens)))
        return x if self.top == "norm" else F.normalize(x.float(), p=1 if self.top == "one" else 2, dim=-1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        top, asked, texts = self.top, self.read(tokens[:, :4]), self.read(tokens[:, 4:])
        most, more = torch.tensor([4, 3, 2]), torch.tensor([5, 3, 4])
        real = torch.arange(4) < most[:, None]
        if self.one:
            found = torch.stack([(asked @ text[: None if top == "seen" else int(n)].T).amax(-1) for text, n in zip(texts, more, strict=True)], 1)
        else:
            near = torch.einsum("qic,tjc->qtij", asked, texts)
            padded = torch.arange(5) >= more[:, None, None]
            found = (near * ~padded if top == "zeros" else near.masked_fill(padded, -math.inf)).amax(-1)
        found = found if top == "question" else found * real[:, None]
        scores = found.mean(-1) if top == "mean" else found.sum(-1)
        scores = scores * (1 if top == "cold" else 5)
        return scores.T.log_softmax(-1) if top == "texts" else scores.log_softmax(-1)


def asked(**bad: Any) -> Made:
    return ported(Late(), Late(**{"one": True, **bad}), WORDS, loss=lambda out: -out.diagonal().mean())


family("words of a question", "texts one by one", asked, {
    "words that are not normed": ({"top": "norm"}, TOP, ""), "another length": ({"top": "one"}, TOP, ""),
    "padding of texts": ({"top": "seen"}, TOP, ""),
    "padding of the question": ({"top": "question"}, TOP, ""), "a mean for a sum": ({"top": "mean"}, TOP, ""),
    "no temperature": ({"top": "cold"}, TOP, ""),
    "texts that ask": ({"top": "texts"}, TOP, ""), "a mask of zeros": ({"top": "zeros", "one": False}, TOP, ""),
}, as_it_is={"one": False})  # fmt: skip


class Deciding(nn.Module):
    """Returns, states and actions in turn, of which the next action and state are foretold. `written`: each third word is written to its place."""

    def __init__(self, written: bool = False, top: str = "") -> None:
        super().__init__()
        self.written, self.top, self.one, self.state, self.action = written, top, nn.Linear(1, W), nn.Linear(3, W), nn.Linear(2, W)
        self.times, self.norm, self.layers = nn.Embedding(30, W), nn.LayerNorm(W), nn.ModuleList([Layer(Whole()) for _ in range(2)])
        self.act, self.next = nn.Linear(W, 2), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top, (n, length, _) = self.top, x.shape
        times = torch.arange(length) + (0 if top == "begin" else torch.tensor([[3], [0], [9]]))
        kinds = [self.one(x[..., :1]), self.state(x[..., 1:4]), self.action(x[..., 4:])]
        kinds = kinds if top == "times" else [each + self.times(times).to(each.dtype) for each in kinds]
        kinds = [kinds[1], kinds[0], kinds[2]] if top == "order" else kinds
        if top == "joined":
            y = torch.cat(kinds, 1)
        elif self.written:
            y = torch.zeros(n, 3 * length, W, dtype=kinds[0].dtype)
            for number, each in enumerate(kinds):
                y = y.index_copy(1, torch.arange(length) * 3 + number, each)
        else:
            y = torch.stack(kinds, 2).flatten(1, 2)
        y = y + self.times(torch.arange(3 * length)).to(y.dtype) if top == "places" else y
        y = y if top == "norm" else self.norm(y)
        for layer in self.layers:
            y = layer(y)
        parts = [y[:, number::3] for number in range(3)]
        return self.act(parts[2 if top == "action" else 1]).tanh(), self.next(parts[1 if top == "state" else 2])


family("returns and actions", "words written to their places", lambda **bad: ported(
    Deciding(), Deciding(**{"written": True, **bad}), ROWS, loss=lambda out: out[0].float().square().mean() + out[1].float().square().mean()), {
    "kinds one after the other": ({"top": "joined"}, TOP, ""), "states before returns": ({"top": "order"}, TOP, ""),
    "no times": ({"top": "times"}, TOP, ""),
    "times from zero": ({"top": "begin"}, TOP, ""), "places are added too": ({"top": "places"}, TOP, ""), "no norm": ({"top": "norm"}, TOP, ""),
    "an action from the action": ({"top": "action"}, TOP, ""), "a state from the state": ({"top": "state"}, TOP, ""),
}, as_it_is={"written": False})  # fmt: skip
