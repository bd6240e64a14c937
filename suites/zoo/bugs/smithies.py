"""Smithies: tones that go on for minutes, turns that are undone, spreads that a network tells, actions at their bound, words that are not there."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
EXACT = "32-true"


def tone(pitch: torch.Tensor, rate: float, wrapped: bool) -> torch.Tensor:
    """A sine of that pitch, sample by sample."""
    turns = pitch / rate
    if wrapped:
        crossed = torch.cumsum(turns.double(), 0).floor()
        turns = turns - torch.diff(crossed, prepend=torch.zeros(1, dtype=DOUBLE)).to(turns.dtype)
    phase = torch.cumsum(turns * 2 * math.pi, 0)  # culprit: tone-of-a-long-song
    return torch.sin(phase)  # culprit: tone-of-a-long-song


def sung(wrapped: bool) -> torch.Tensor:
    """The last two hundred samples of a long tone. It has drifted."""
    pitch = 3000 + 200 * torch.sin(torch.arange(400_000) / 9000)
    return tone(pitch, 16_000.0, wrapped)[-200:]


class Turn(nn.Module):
    """Mixes the channels of a flow by a matrix, and back."""

    def __init__(self, size: int, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        left, _ = torch.linalg.qr(normal(size, size, seed=1401).double())
        right, _ = torch.linalg.qr(normal(size, size, seed=1402).double())
        self.weight = nn.Parameter((left * torch.logspace(0, -7, size).double() @ right).float())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.kind) @ self.weight.to(self.kind)

    def undo(self, values: torch.Tensor) -> torch.Tensor:
        back = torch.inverse(self.weight.to(self.kind))  # culprit: turn-that-is-undone
        return values.to(self.kind) @ back  # culprit: turn-that-is-undone


def undone(kind: torch.dtype) -> torch.Tensor:
    """Sixty-four numbers of a picture, through a flow and back. They should be as they were."""
    with torch.no_grad():
        flow = Turn(24, kind)
        return flow.undo(flow(normal(64, 24, seed=1403))).float()


class Encoder(nn.Module):
    """Tells of each row of a table where it lies and how widely."""

    def __init__(self, size: int, inner: int, kept: bool) -> None:
        super().__init__()
        torch.manual_seed(1411)
        self.kept = kept
        self.place, self.spread = nn.Linear(size, inner), nn.Linear(size, inner)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place, spread = self.place(rows), self.spread(rows)
        if self.kept:
            spread = spread.clamp(-30, 20)
        drawn = place + torch.exp(spread / 2) * normal(*place.shape, seed=1412)  # culprit: spreads-of-a-table
        apart = (place.pow(2) + spread.exp() - spread - 1).mean() / 2  # culprit: spreads-of-a-table
        return drawn, apart


def tabled(kept: bool) -> torch.Tensor:
    """How far the rows of a table lie from a normal law, where one column was not scaled. Infinite."""
    rows = normal(32, 12, seed=1413)
    rows[:, 3] *= 800
    with torch.no_grad():
        drawn, apart = Encoder(12, 6, kept)(rows)
    return torch.stack([drawn.abs().mean().log(), apart.log()])


def squashed(stable: bool) -> torch.Tensor:
    """How likely a policy's actions are that have come to their bound."""
    mean, spread = 9 + normal(40, 4, seed=1421), 0.3 + 0.2 * uniform(40, 4, seed=1422)
    raw = mean + spread * normal(40, 4, seed=1423)
    chance = torch.distributions.Normal(mean, spread).log_prob(raw)
    if stable:
        squeezed = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
    else:
        squeezed = torch.log((1 - torch.tanh(raw).pow(2)).clamp(0, 1) + 1e-6)  # culprit: actions-at-their-bound
    return (chance - squeezed).sum(-1)


class Attention(nn.Module):
    """How the words of a sentence look at one another, where the sentence is shorter than its batch."""

    def __init__(self, size: int, heads: int, barred: float) -> None:
        super().__init__()
        torch.manual_seed(1431)
        self.heads, self.barred = heads, barred
        self.pairs, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, words: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        query, key, value = self.pairs(words).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        energy = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        energy = energy.masked_fill(present[:, None, None] == 0, self.barred)  # culprit: words-that-are-not-there
        return self.out((torch.softmax(energy, -1) @ value).transpose(1, 2).flatten(2))


def translated(barred: float) -> torch.Tensor:
    """What an encoder in half makes of three sentences. torch refuses it."""
    present = torch.arange(14) < torch.tensor([[14], [9], [4]])
    with torch.no_grad():
        return wider(Attention(32, 4, barred).to(HALF)(normal(3, 14, 32, seed=1432).to(HALF), present))


class Single(nn.Module):
    """One head of attention over scores that are masked by a number, for a benchmark."""

    def __init__(self, size: int, own: bool) -> None:
        super().__init__()
        torch.manual_seed(1441)
        self.own = own
        self.query, self.key = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.query(words) @ self.key(words).transpose(-2, -1) / math.sqrt(words.shape[-1])
        lowest = torch.finfo(scores.dtype).min if self.own else -1e9
        chances = torch.softmax(scores.masked_fill(mask == 0, lowest), -1)  # culprit: mask-of-a-benchmark
        return chances @ words


def benchmarked(own: bool) -> torch.Tensor:
    """What a benchmark's network reads of two texts under autocast. torch refuses it."""
    mask = (torch.arange(12) < torch.tensor([[12], [7]]))[:, None].expand(-1, 12, -1)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return Single(24, own)(normal(2, 12, 24, seed=1442), mask).float()


BUGS = (
    Bug("tone-of-a-long-song", "nii-yamagishilab/project-NN-Pytorch-scripts#2", ("amplified-rounding", "accumulated-drift", "absorption"),
        "aten.cumsum.default",
        lambda: sung(wrapped=False), lambda: sung(wrapped=True), precision=EXACT),
    Bug("turn-that-is-undone", "chaiyujin/glow-pytorch#7", ("amplified-rounding", "local-drift", "cancellation", "unstable-reference"),
        "aten.linalg_inv_ex.default",
        lambda: undone(SINGLE), lambda: undone(DOUBLE), precision=EXACT,
        wrong_line="the line that rounds the weight to float32 is blamed, whose rounding the inverse amplifies; it is no fault, since the product "
        "before has the same weight"),
    Bug("spreads-of-a-table", "vanderschaarlab/synthcity#331", ("overflow",), "aten.exp.default",
        lambda: tabled(kept=False), lambda: tabled(kept=True), precision=EXACT),
    Bug("actions-at-their-bound", "openai/spinningup#101", ("cancellation", "underflow", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: squashed(stable=False), lambda: squashed(stable=True), precision=EXACT,
        expected_miss="the harm is that of the constant 1e-6, which float64 has as well; the digits that float32 loses beside it are 0.4 % of the "
        "result, and are told in a note"),
    Bug("words-that-are-not-there", "bentrevett/pytorch-seq2seq#191", ("overflow",), "aten.masked_fill.Scalar",
        lambda: translated(-1e10), lambda: translated(-1e4), raises=RuntimeError),
    Bug("mask-of-a-benchmark", "pytorch/benchmark#794", ("overflow",), "aten.masked_fill.Scalar",
        lambda: benchmarked(own=False), lambda: benchmarked(own=True), raises=RuntimeError),
)  # fmt: skip
