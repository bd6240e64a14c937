"""Bakeries: low formats in optimizers and in what is derived from a model: states in eight bits, norms that stand still, slopes by differences."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
LEVELS = torch.cat([torch.zeros(1), torch.logspace(-7, 0, 255)])
"""The numbers that a dynamic eight-bit code stands for: nought, and a ladder over seven decades."""


def linear(moment: torch.Tensor) -> torch.Tensor:
    """A second moment as 256 even steps, by blocks of 32, and back."""
    blocks = moment.reshape(-1, 32)
    scale = blocks.amax(1, keepdim=True).clamp_min(1e-30) / 255
    codes = torch.round(blocks / scale).to(torch.uint8)  # culprit: moments-in-even-steps
    return (codes.float() * scale).reshape(moment.shape)  # culprit: moments-in-even-steps


def dynamic(moment: torch.Tensor) -> torch.Tensor:
    """A second moment by the nearest step of a ladder, by blocks of 32, and back."""
    blocks = moment.reshape(-1, 32)
    scale = blocks.amax(1, keepdim=True).clamp_min(1e-30)
    codes = torch.bucketize(blocks / scale, (LEVELS[1:] + LEVELS[:-1]) / 2).to(torch.uint8)
    return (LEVELS[codes.long()] * scale).reshape(moment.shape)


def eight_bits(linearly: bool) -> torch.Tensor:
    """How far Adam takes a layer whose inputs are of very different sizes, in twelve steps; what it remembers of slopes is kept in eight bits."""
    torch.manual_seed(5101)
    sizes = torch.logspace(-3, 0, 32)
    layer = nn.Linear(32, 16)
    start = layer.weight.detach().clone()
    first, second = torch.zeros_like(start), torch.zeros_like(start)
    for step in range(1, 13):
        inputs = normal(64, 32, seed=5102 + step) * sizes
        loss = functional.mse_loss(layer(inputs), torch.tanh(inputs[:, -16:]))
        (slope,) = torch.autograd.grad(loss, layer.weight)
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope.square()
        mean, spread = first / (1 - 0.9**step), second / (1 - 0.999**step)
        with torch.no_grad():
            layer.weight -= 1e-3 * mean / (spread.sqrt() + 1e-8)  # culprit: moments-in-even-steps
        second = linear(second) if linearly else dynamic(second)
    return layer.weight.detach() - start


class Block(nn.Module):
    """A block of a language model: gated linear attention and a layer in between, each after an RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gate, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        normed = self.before(words)
        scores = (self.query(normed) @ self.key(normed).transpose(-1, -2)).tril() / normed.shape[1]
        words = words + (scores @ self.value(normed)) * torch.sigmoid(self.gate(normed))
        return words + self.last(functional.silu(self.between(words)))


def pretrained(kind: torch.dtype) -> torch.Tensor:
    """How far the norms of a language model go in ten steps of AdamW."""
    torch.manual_seed(5111)
    model = nn.Sequential(nn.Embedding(50, 32), Block(32), Block(32), nn.RMSNorm(32), nn.Linear(32, 50)).to(kind)
    norms = [each.weight for each in model.modules() if isinstance(each, nn.RMSNorm)]
    start = torch.cat(norms).detach().float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    for step in range(10):
        text = (50 * torch.rand(4, 17, generator=torch.Generator().manual_seed(5112 + step))).long()
        with torch.autocast("cpu", LOW):
            logits = model(text[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()  # culprit: norms-that-stay-one
        optimizer.zero_grad()
    return torch.cat(norms).detach().float() - start


def affine(moment: torch.Tensor) -> torch.Tensor:
    """A first moment as 256 steps from the least to the greatest of each block of 32, and back."""
    blocks = moment.reshape(-1, 32)
    least = blocks.amin(1, keepdim=True)
    scale = ((blocks.amax(1, keepdim=True) - least) / 255).clamp_min(1e-30)
    codes = torch.round((blocks - least) / scale).to(torch.uint8)  # culprit: words-that-never-come
    return (codes.float() * scale + least).reshape(moment.shape)  # culprit: words-that-never-come


def embedded(masked: bool) -> torch.Tensor:
    """How far Adam with a first moment in eight bits takes a table of words, of which a few channels never have a slope."""
    torch.manual_seed(5121)
    table, used = nn.Embedding(24, 32), torch.arange(32) % 8 != 5
    start = table.weight.detach().clone()
    first, second = torch.zeros_like(start), torch.zeros_like(start)
    for step in range(1, 9):
        words = (24 * torch.rand(64, generator=torch.Generator().manual_seed(5122 + step))).long()
        loss = functional.mse_loss(table(words) * used, torch.sin(words[:, None] + torch.arange(32.0)) * used)
        (slope,) = torch.autograd.grad(loss, table.weight)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope.square()
        with torch.no_grad():
            move = first / (1 - 0.9**step) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)  # culprit: words-that-never-come
            table.weight -= 1e-3 * move
        first = affine(first)
        if masked:
            first = torch.where(second == 0, 0.0, first)
    return table.weight.detach() - start


def clipped(early: bool) -> torch.Tensor:
    """Where a model in half is after three steps whose slopes are clipped to length one. The length is above 256, so its square has no half."""
    torch.manual_seed(5131)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(HALF)
    start = nn.utils.parameters_to_vector(model.parameters()).detach().float()
    for step in range(3):
        inputs = normal(24, 16, seed=5132 + step).to(HALF)
        loss = 150 * (model(inputs) - 20 * torch.sin(inputs[:, :4])).square().mean()
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        squares = torch.stack([each.float().square().sum() for each in slopes]).sum()
        if early:
            length = squares.to(HALF).sqrt()  # culprit: length-made-half-too-soon
        else:
            length = squares.sqrt().to(HALF)
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.25 * (slope / length)  # culprit: length-made-half-too-soon
    return nn.utils.parameters_to_vector(model.parameters()).detach().float() - start


class Potential(nn.Module):
    """The energy of atoms by what is between them: a small network over waves of the distance."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5141)
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
        self.register_buffer("waves", torch.arange(1, 9) * 3.14159 / 4)
        self.register_buffer("base", torch.tensor(-310.0))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        pairs = torch.triu_indices(len(places), len(places), 1)
        apart = (places[pairs[0]] - places[pairs[1]]).norm(dim=-1, keepdim=True)
        return self.base + (self.layers(torch.sin(apart * self.waves) / apart)).sum()  # culprit: bends-by-differences


def stiffness(kind: torch.dtype) -> torch.Tensor:
    """How the energy of six atoms bends along each direction, by second differences of a trained model's energies."""
    model, places, small = Potential().to(kind), (2 * normal(6, 3, seed=5142)).to(kind), 1e-3
    bends = []
    with torch.no_grad():
        middle = model(places)
        for index in range(places.numel()):
            step = torch.zeros_like(places).flatten()
            step[index] = small
            step = step.reshape(places.shape)
            bends.append((model(places + step) - 2 * middle + model(places - step)) / small**2)  # culprit: bends-by-differences
    return torch.stack(bends)


BUGS = (
    Bug("moments-in-even-steps", "inclusionAI/AReno#541", ("underflow", "amplified-rounding", "accumulated-drift"), "aten.round.default",
        lambda: eight_bits(linearly=True), lambda: eight_bits(linearly=False),
        expected_miss="no format is low: codes of eight bits in a float32 run are followed where it is watched as one, and then as they are meant"),
    Bug("norms-that-stay-one", "fla-org/flame#47", ("lost-update",), "",
        lambda: pretrained(LOW), lambda: pretrained(SINGLE), phase="optimizer", module="1.before"),
    Bug("words-that-never-come", "unslothai/unsloth-zoo#962", ("amplified-rounding", "cancellation"), "aten.add.Tensor",
        lambda: embedded(masked=False), lambda: embedded(masked=True),
        expected_miss="no format is low: codes of eight bits in a float32 run are followed where it is watched as one, and then as they are meant"),
    Bug("length-made-half-too-soon", "jax-ml/jax#39899", ("overflow",), "aten._to_copy.default",
        lambda: clipped(early=True), lambda: clipped(early=False)),
    Bug("bends-by-differences", "mir-group/nequip#92", ("amplified-rounding", "cancellation"), "aten.add.Tensor",
        lambda: stiffness(SINGLE), lambda: stiffness(DOUBLE), precision="32-true"),
)  # fmt: skip
