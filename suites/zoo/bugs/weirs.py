"""Weirs: bfloat16 where float32 was meant: adapters, places of atoms, a stream through blocks and draws; counts in half, and large vectors."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def decided(once: bool) -> torch.Tensor:
    """By how much an adapter that was merged into a bfloat16 model changes what the model decides."""
    base, down, up = 0.06 * normal(6, 512, seed=4201), normal(2, 512, seed=4202), 2e-5 * normal(6, 2, seed=4203)
    words = normal(40, 512, seed=4204) + 0.6 * normal(40, 2, seed=4205) @ down
    delta = up @ down
    if once:
        merged = (base + delta).to(LOW)
    else:
        merged = base.to(LOW) + delta.to(LOW)  # culprit: adapter-that-was-merged
    return words @ merged.float().T - words @ base.T


class Atoms(nn.Module):
    """A step of diffusion over atoms, whose author asked for float32 there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4211)
        self.first, self.last = nn.Linear(3, 24), nn.Linear(24, 3)

    def forward(self, places: torch.Tensor, noise: float) -> torch.Tensor:
        moved = self.last(torch.tanh(self.first(places / (places.std() + noise))))
        return places + 0.01 * noise * moved


def turned(places: torch.Tensor, seed: int) -> torch.Tensor:
    """Places about their middle, turned by chance."""
    matrix = torch.linalg.qr(normal(3, 3, seed=seed))[0]
    middle = places - places.mean(0, keepdim=True)
    return torch.einsum("nd,de->ne", middle, matrix)  # culprit: atoms-of-a-long-protein


def diffused(device: str) -> torch.Tensor:
    """Lengths of bonds along a protein of three hundred atoms."""
    steps = functional.normalize(torch.tensor([1.0, 0.2, 0.0]) + 0.4 * normal(300, 3, seed=4212), dim=-1)
    places, model = (1.5 * steps).cumsum(0), Atoms()
    with torch.no_grad(), torch.autocast("cpu", LOW), torch.autocast(device, enabled=False):
        for step in range(4):
            places = model(turned(places.float(), 4213 + step).float(), 1 / (1 + step)).float()
    return places.diff(dim=0).norm(dim=-1)


class Block(nn.Module):
    """A block of a painter of films: what it adds is weighed by the time of the noise."""

    def __init__(self, kind: torch.dtype, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.kind, self.layer = kind, nn.Linear(48, 48).to(LOW)
        self.table = nn.Parameter(0.2 * normal(3, 48, seed=seed))

    def forward(self, stream: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = (self.table + time).to(self.kind).unbind(0)
        inner = functional.layer_norm(stream, (48,)) * (1 + scale) + shift
        return stream + gate * self.layer(inner.to(LOW)).to(self.kind)  # culprit: stream-through-blocks


def painted(kind: torch.dtype) -> torch.Tensor:
    """What thirty blocks make of a noisy film. In bfloat16 much of what they add is lost."""
    stream = (normal(20, 48, seed=4221) + 12 * (uniform(48, seed=4222) < 0.1) + 30 * normal(20, 1, seed=4223)).to(kind)
    time = 0.2 * normal(3, 48, seed=4224)
    with torch.no_grad():
        for each in range(30):
            stream = Block(kind, 4230 + each)(stream, time)
        return functional.layer_norm(stream.float(), (48,))


def waited(mended: bool) -> torch.Tensor:
    """How long one waits, by evenly drawn numbers in bfloat16."""
    drawn = uniform(3000, seed=4241).to(LOW)  # culprit: draws-below-one
    if mended:
        drawn = torch.where(drawn == 1, torch.zeros((), dtype=LOW), drawn)
    return -torch.log1p(-drawn.float())  # culprit: draws-below-one


def overlaps(kind: torch.dtype) -> torch.Tensor:
    """How well a model of organs does by all voxels of an epoch, of which half counts too many. Not a number."""
    right, wrong, missed = [], [], []
    for batch in range(12):
        truth = uniform(32, 32, 32, seed=4251 + batch) < 0.4
        with torch.autocast("cpu", HALF):
            seen = (truth.float() + 0.5 * normal(32, 32, 32, seed=4271 + batch) > 0.5).to(kind)
            mask = truth.to(kind)
            right.append((seen * mask).sum())
            wrong.append((seen * (1 - mask)).sum())
            missed.append(((1 - seen) * mask).sum())
    hit, extra, lost = (torch.stack(each).sum(0) for each in (right, wrong, missed))  # culprit: voxels-of-an-epoch
    return 2 * hit / (2 * hit + extra + lost)  # culprit: voxels-of-an-epoch


def alike(kind: torch.dtype) -> torch.Tensor:
    """How like two large vectors are, whose products are float32 before they are summed in float64. Not a number."""
    one, other = (1e20 * (1 + 0.5 * normal(2, 24, seed=4281 + each)) for each in range(2))
    one, other = one.to(kind), other.to(kind)
    both = (one * other).double().sum(-1)  # culprit: vectors-that-are-large
    return both / ((one * one).double().sum(-1).sqrt() * (other * other).double().sum(-1).sqrt())


BUGS = (
    Bug("adapter-that-was-merged", "OpenAgentsInc/openagents#9456", ("absorption", "lost-update", "local-drift", "cancellation"), "aten.add.Tensor",
        lambda: decided(once=False), lambda: decided(once=True)),
    Bug("atoms-of-a-long-protein", "jwohlwend/boltz#670", ("amplified-rounding", "cancellation", "local-drift"), "aten.bmm.default",
        lambda: diffused("cuda"), lambda: diffused("cpu")),
    Bug("stream-through-blocks", "hao-ai-lab/FastVideo#490", ("absorption", "accumulated-drift", "amplified-rounding", "cancellation"),
        "aten.add.Tensor", lambda: painted(LOW), lambda: painted(SINGLE),
        expected_miss="thirty blocks store the stream low, as those of any such model; the last norm makes that ten times larger, not sixteen"),
    Bug("draws-below-one", "NVIDIA/Fuser#2355", ("amplified-rounding", "overflow"), "aten._to_copy.default",
        lambda: waited(mended=False), lambda: waited(mended=True)),
    Bug("voxels-of-an-epoch", "MIC-DKFZ/LongiSeg#8", ("overflow",), "aten.sum.dim_IntList",
        lambda: overlaps(HALF), lambda: overlaps(SINGLE)),
    Bug("vectors-that-are-large", "langchain4j/langchain4j#6136", ("overflow",), "aten.mul.Tensor",
        lambda: alike(SINGLE), lambda: alike(DOUBLE), precision="32-true"),
)  # fmt: skip
