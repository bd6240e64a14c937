"""A sixteenth batch, second part: stretched positions, recordings of another engine, tokens that skip a layer, blocks of words, filters in one."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth_scans import Stream, numbers
from pair_sixteenth import LAST, LENGTH, ROWS, SIZE, Attend, attended, entered, pair, turned
from torch import nn

import precheck

W, WORDS = 16, 19


class Yarn(Attend):
    """Positions stretched by four: slow pairs turn slower, fast ones as before, and scores are warmer. `kind`: torch's halves, or complex numbers."""

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        ways, places = self.ways, torch.arange(x.shape[1])
        plain = 100.0 ** -(torch.arange(0, SIZE, 2) / SIZE)
        low, high = (SIZE * math.log(LENGTH / (turns * 2 * math.pi)) / (2 * math.log(100.0)) for turns in (1.6, 0.2))
        slow = ((torch.arange(SIZE // 2) - low) / (high - low)).clamp(0, 1)
        slow = 1 - slow if ways.get("turned") else slow
        warm = 1.0 if ways.get("cold") else 0.1 * math.log(4) + 1
        q, k, v = self.heads(x)
        if not ways.get("complex"):
            rates = plain / 4 * slow + plain * (1 - slow)
            q, k = turned(q, places, rates, warm), turned(k, places, rates, warm)
        else:
            rates = torch.lerp(plain, plain / 4, slow)
            turns = torch.polar(torch.full_like(places[:, None] * rates, warm), places[:, None] * rates)
            q, k = (torch.view_as_real(torch.complex(*each.float().chunk(2, -1)) * turns).mT.flatten(-2).to(x.dtype) for each in (q, k))
        return attended(q, k, v, places[:, None] >= places)


entered("warmer and slower", Yarn, "complex numbers", {"complex": True}, {"not warmer": {"cold": True}, "fast pairs slower": {"turned": True}})


class Longer(Attend):
    """The base of positions grows with the length beyond five. `logs`: by logarithms."""

    def rates(self, length: int) -> torch.Tensor:
        factor, size = 3 * length / 5 - 2, SIZE - 1 if self.ways.get("short") else SIZE
        if not self.ways.get("logs"):
            return 1 / (100.0 * factor ** (size / (size - 2))) ** (torch.arange(0, SIZE, 2) / SIZE)
        return torch.exp(-(math.log(100) + math.log(factor) * size / (size - 2)) * torch.arange(SIZE // 2) * 2 / SIZE)


entered("a base that grows", Longer, "logarithms", {"logs": True}, {"another power": {"short": True}})


class Small(nn.Module):
    """Words, a mean of all before, a norm, a branch, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, W), nn.LayerNorm(W)
        self.up, self.down, self.head = nn.Linear(W, 2 * W), nn.Linear(2 * W, W), nn.Linear(W, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        x = x + x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        return self.head(x + self.down(F.silu(self.up(self.norm(x)))))


def recorded(eps: float = 1e-5, summed: bool = False, late: bool = False) -> Made:
    """What numpy computes of the same weights, by formulas, in a file."""
    torch.manual_seed(0)
    model: Any = spread(Small())
    ids = torch.randint(0, WORDS, (3, 8), generator=torch.Generator().manual_seed(5))
    held = {name: value.detach().numpy() for name, value in model.named_parameters()}
    x = held["words.weight"][ids.numpy()]
    x = x + np.cumsum(x, 1) / np.arange(1, 9, dtype=np.float32)[:, None]
    middle = x - x.mean(-1, keepdims=True)
    normed = middle / np.sqrt((middle**2).mean(-1, keepdims=True) + np.float32(eps)) * held["norm.weight"] + held["norm.bias"]
    up = normed @ held["up.weight"].T + held["up.bias"]
    x = x + (up / (1 + np.exp(-up))) @ held["down.weight"].T + held["down.bias"]
    logits = x @ held["head.weight"].T + held["head.bias"]
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares = shares / shares.sum(-1, keepdims=True)
    wanted = np.eye(WORDS, dtype=np.float32)[ids.numpy()]
    share = np.float32(1 if summed else 1 / ids.numel())
    given: dict[str, Any] = {"output": np.roll(logits, 1, 1) if late else logits, "loss": -np.log((shares * wanted).sum(-1)).mean()}
    given["gradient:head.weight"] = np.einsum("btv,btw->vw", (shares - wanted) * share, x)
    return model, precheck.record(file(), given), ids, {"loss": lambda out: F.cross_entropy(out.flatten(0, 1).float(), ids.flatten())}


def file() -> Path:
    return Path(tempfile.mkdtemp()) / "run.safetensors"


def recorded_run(**bad: Any) -> Made:
    """What a port gave in a run of its own, in a file."""
    model, other, x, given = pair(Yarn, {"complex": True}, bad)
    return model, precheck.record(file(), other, x, **given), x, given


healthy("recorded", "numpy", recorded)
healthy("recorded", "a port", recorded_run)
broken("recorded", "numpy, an eps of 1e-2", lambda: recorded(1e-2), "")
broken("recorded", "numpy, a gradient of the sum", lambda: recorded(summed=True), "head")
broken("recorded", "numpy, logits one late", lambda: recorded(late=True), "")
broken("recorded", "a port, not warmer", lambda: recorded_run(cold=True), LAST)


class Skipped(Attend):
    """Of each row six tokens pass through, those with the largest scores; the others are left as they are."""

    def __init__(self, **ways: Any) -> None:
        super().__init__(**ways)
        self.router = nn.Linear(W, 1)

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        scores, places = self.router(x)[..., 0].float(), torch.arange(x.shape[1])
        chosen = scores.topk(6, -1).indices
        if not self.ways.get("gathered"):
            taken = torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)
            q, k, v = self.heads(x)
            seen = (places[:, None] >= places) & taken[:, None, None] | torch.eye(len(places), dtype=torch.bool)
            made = self.out(attended(turned(q, places, self.rates(0)), turned(k, places, self.rates(0)), v, seen).transpose(1, 2).flatten(2))
            return made * (scores.sigmoid() * taken)[..., None].to(x.dtype)
        at = chosen if self.ways.get("unsorted") else chosen.sort(-1).values
        q, k, v = self.heads(x.gather(1, at[..., None].expand(-1, -1, W)))
        turns = torch.arange(6) if self.ways.get("near") else at
        order = torch.arange(6)
        q, k = (turned(each, turns, self.rates(0)) for each in (q, k))
        made = self.out(attended(q, k, v, order[:, None] >= order).transpose(1, 2).flatten(2))
        made = made * scores.gather(1, at).sigmoid()[..., None].to(x.dtype)
        return torch.zeros_like(x).scatter(1, at[..., None].expand(-1, -1, W), made.to(x.dtype))


entered(
    "tokens that skip",
    Skipped,
    "gathered",
    {"gathered": True},
    {"in the order of scores": {"unsorted": True}, "places of those that pass": {"near": True}},
)


class Measured(nn.Module):
    """The loss of words, capped, with a penalty of the sum's logarithm. `kind`: all words at once, or blocks of eight."""

    def __init__(self, kind: str = "whole", late: int = 0, rescaled: bool = True) -> None:
        super().__init__()
        self.kind, self.late, self.rescaled, self.head = kind, late, rescaled, nn.Linear(W, WORDS, bias=False)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if self.kind == "whole":
            logits = 5 * torch.tanh(self.head(x).float() / 5)
            return F.cross_entropy(logits.flatten(0, 1), ids.flatten()) + 1e-2 * logits.logsumexp(-1).square().mean()
        most, total, wanted = (torch.full(ids.shape, number) for number in (-30.0, 0.0, 0.0))
        for begin in range(0, WORDS, 8):
            logits = 5 * torch.tanh(F.linear(x, self.head.weight[begin : begin + 8]).float() / 5)
            new = torch.maximum(most, logits.detach().amax(-1))
            total = total * ((most - new).exp() if self.rescaled else 1) + (logits - new[..., None]).exp().sum(-1)
            most, inside = new, (ids >= begin) & (ids < begin + logits.shape[-1])
            label = (ids - begin + self.late).clamp(0, logits.shape[-1] - 1)
            wanted = wanted + torch.where(inside, logits.gather(-1, label[..., None])[..., 0], 0)
        sums = total.log() + most
        return (sums - wanted).mean() + 1e-2 * sums.square().mean()


class Learner(nn.Module):
    def __init__(self, measured: Measured) -> None:
        super().__init__()
        self.stream, self.measured = nn.Sequential(nn.Linear(W, 2 * W), nn.SiLU(), nn.Linear(2 * W, W), nn.LayerNorm(W)), measured

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.measured(self.stream(x), ids)


def measured(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Learner(Measured())), Learner(Measured("blocks", **bad))
    other.load_state_dict(model.state_dict())
    ids = torch.randint(0, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(5))
    return model, other, (numbers(ROWS, LENGTH, W), ids), {"loss": lambda out: out}


healthy("words in blocks", "a running sum", measured)
broken("words in blocks", "the next word", lambda: measured(late=1), "measured")
broken("words in blocks", "a sum that is not rescaled", lambda: measured(rescaled=False), "measured")


class Branches(nn.Module):
    """A filter of three, one of one, and what goes in, each with a norm of a batch. `one`: all in one filter."""

    def __init__(self) -> None:
        super().__init__()
        self.three, self.one = nn.Conv1d(W, W, 3, padding=1, bias=False), nn.Conv1d(W, W, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm1d(W) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [norm(part(x.mT)) for norm, part in zip(self.norms, (self.three, self.one, nn.Identity()), strict=True)]
        return F.relu(sum(made)).mT


class Filter(nn.Module):
    def __init__(self, theirs: Branches, place: int = 1, plain: bool = True, centred: bool = True) -> None:
        super().__init__()
        self.taps = nn.Conv1d(W, W, 3, padding=1)
        weight, bias = torch.zeros(W, W, 3), torch.zeros(W)
        single = F.pad(theirs.one.weight.detach(), (place, 2 - place))
        same = torch.zeros(W, W, 3)
        same[:, :, 1] = torch.eye(W)
        for norm, each in zip(theirs.norms if plain else theirs.norms[:2], (theirs.three.weight.detach(), single, same), strict=False):
            gain = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
            weight += each * gain[:, None, None]
            bias += norm.bias.detach() - (norm.running_mean * gain if centred else 0)
        self.taps.weight.data, self.taps.bias.data = weight, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.taps(x.mT)).mT


def one_filter(**bad: Any) -> Made:
    torch.manual_seed(0)
    model: Any = spread(Stream(Branches(), Branches()))
    for name, value in model.named_buffers():
        if "running" in name:
            value.add_(torch.rand(value.shape))
    model.eval()
    other = Stream(Filter(model.layers[0]), Filter(model.layers[1], **bad))
    other.load_state_dict({name: value for name, value in model.state_dict().items() if "layers" not in name}, strict=False)
    return model, other.eval(), numbers(ROWS, LENGTH, W), dict(MEAN)


healthy("branches in one filter", "folded", one_filter)
for name, bad in {"one tap to the left": {"place": 0}, "without what goes in": {"plain": False}, "means not taken off": {"centred": False}}.items():
    broken("branches in one filter", name, lambda bad=bad: one_filter(**bad), LAST, f"{LAST}.taps")  # type: ignore[misc]
