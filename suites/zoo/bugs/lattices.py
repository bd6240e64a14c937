"""Grids, particles and words: a fluid's populations, modes of a field, forces of far pairs, rejected drafts, drawn words, distances, kept keys."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32
WAYS = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))


class Fluid:
    """Populations of nine directions on a grid, which are stored in half between steps: themselves, or less what they are at rest."""

    def __init__(self, size: int, shifted: bool) -> None:
        self.rest = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)[:, None, None]
        self.ways = torch.tensor(WAYS, dtype=WIDE)
        self.shift = self.rest if shifted else torch.zeros_like(self.rest)
        self.stored = (self.rest - self.shift).expand(9, size, size).to(HALF)  # culprit: populations-near-rest

    def load(self) -> torch.Tensor:
        return self.stored.float() + self.shift

    def store(self, populations: torch.Tensor) -> None:
        self.stored = (populations - self.shift).to(HALF)  # culprit: populations-near-rest

    def velocity(self, populations: torch.Tensor) -> torch.Tensor:
        return torch.einsum("qd,qxy->dxy", self.ways, populations) / populations.sum(0)  # culprit: populations-near-rest

    def step(self, force: torch.Tensor, relaxation: float) -> None:
        populations = self.load()
        density, velocity = populations.sum(0), self.velocity(populations)
        along = torch.einsum("qd,dxy->qxy", self.ways, velocity)
        at_rest = self.rest * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * velocity.square().sum(0))
        populations = populations + relaxation * (at_rest - populations) + 3 * self.rest * torch.einsum("qd,dxy->qxy", self.ways, force)
        self.store(torch.stack([each.roll(way, (0, 1)) for each, way in zip(populations, WAYS, strict=True)]))


def stirred(shifted: bool) -> torch.Tensor:
    """The speed of a slow fluid after 40 steps of a weak force."""
    fluid = Fluid(16, shifted)
    place = 2 * math.pi * torch.arange(16.0) / 16
    force = 1.2e-4 * torch.stack([torch.sin(place)[None].expand(16, 16), torch.cos(place)[:, None].expand(16, 16)])
    for _ in range(40):
        fluid.step(force, 1.2)
    return fluid.velocity(fluid.load())


class SpectralLayer(nn.Module):
    """Weights on the lowest modes of a field; the transforms are products with cosines and sines."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, size: int, modes: int, single: bool) -> None:
        super().__init__()
        angles = 2 * math.pi * torch.arange(size)[:, None] * torch.arange(modes) / size
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        self.weight, self.single, self.size = nn.Parameter(1 + 0.2 * normal(modes)), single, size

    def forward(self, field: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", HALF, enabled=not self.single and torch.is_autocast_enabled("cpu")):
            real, imaginary = field @ self.cosines, field @ self.sines  # culprit: modes-of-a-warm-field
            share = self.weight * torch.where(torch.arange(len(self.weight)) > 0, 2, 1) / self.size
            return (real * share) @ self.cosines.T + (imaginary * share) @ self.sines.T


def warm(single: bool) -> torch.Tensor:
    """What a layer makes of rows of temperatures in kelvin, under autocast."""
    layer = SpectralLayer(256, 12, single)
    place = 2 * math.pi * torch.arange(256) / 256
    field = 285 + 12 * torch.sin(place) + 4 * normal(8, 1) * torch.cos(3 * place)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return layer(field).float()


def soft_energy(places: torch.Tensor, strength: float, softness: float = 0.5) -> torch.Tensor:
    """The energy of all pairs by a softened law of twelve and six, for a molecule that is switched on step by step."""
    first, second = torch.triu_indices(len(places), len(places), 1)
    distance = (places[first] - places[second]).norm(dim=-1)
    apart = softness * (1 - strength) + (distance / 0.9) ** 6  # culprit: pairs-that-are-far
    near = 1 / apart
    return (4 * strength * near * (near - 1)).sum()


def soft_forces(dtype: torch.dtype) -> torch.Tensor:
    """Forces on 27 particles of a loose lattice in half."""
    lattice = torch.cartesian_prod(*[torch.arange(3.0)] * 3)
    places = (2.4 * lattice + 0.3 * normal(27, 3)).to(HALF).to(dtype).requires_grad_()
    return -torch.autograd.grad(soft_energy(places, 0.8), places)[0].float()


def left_over(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """The chances that a word is drawn with after the draft's was rejected, from logarithms of both models' chances."""
    ratio = (draft - target).exp()  # culprit: word-after-a-rejection
    logarithm = torch.where(ratio < 1, target + torch.log(1 - ratio), -torch.inf)  # culprit: word-after-a-rejection
    return torch.softmax(logarithm, -1)


def rejected(dtype: torch.dtype) -> torch.Tensor:
    """Such chances at twelve places, of a target and a draft that nearly agree, whose logarithms are kept in bfloat16."""
    target = 2.5 * normal(12, 200)
    draft = target + 0.06 * normal(12, 200, seed=1)
    kept = [functional.log_softmax(each, -1).to(dtype) for each in (target, draft)]  # culprit: word-after-a-rejection
    return left_over(*kept).float()


def draw(chances: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Words by the inverse of the distribution: the first whose chances, added up, reach the draw."""
    reached = chances.cumsum(-1)  # culprit: draws-from-sums
    reached = reached / reached[..., -1:]
    return torch.searchsorted(reached, draws.to(reached.dtype))  # culprit: draws-from-sums


def drawn(single: bool) -> torch.Tensor:
    """How often each of forty groups of ten words is drawn in 4000 draws from flat chances of bfloat16."""
    chances = torch.softmax((0.3 * normal(400)).to(LOW), -1)
    words = draw(chances.float() if single else chances, uniform(4000, seed=3))
    return torch.bincount(words.clamp(max=399) // 10, minlength=40).float()


class DistanceBias(nn.Module):
    """A bias of attention for each bucket of distances: exact ones first, then in logarithms."""

    def __init__(self, buckets: int, farthest: int, heads: int, single: bool) -> None:
        super().__init__()
        self.buckets, self.farthest, self.single = buckets, farthest, single
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, distance: torch.Tensor) -> torch.Tensor:
        exact = self.buckets // 2
        wide = distance.float() if self.single else distance.to(self.table.weight.dtype)
        far = torch.log(wide / exact) / math.log(self.farthest / exact) * (self.buckets - exact)  # culprit: buckets-of-distance
        far = (exact + far).long().clamp(max=self.buckets - 1)  # culprit: buckets-of-distance
        return torch.where(distance < exact, distance, far)

    def forward(self, queries: int, keys: int) -> torch.Tensor:
        return self.table(self.bucket((torch.arange(queries)[:, None] - torch.arange(keys)).clamp(min=0)))


def biased(single: bool) -> torch.Tensor:
    """The mean of keys that the last queries of 120 take, by the biases of a model in bfloat16 alone."""
    bias = DistanceBias(32, 128, 4, single)
    with torch.no_grad():
        bias.table.weight.copy_(2 * normal(32, 4))
        bias.to(LOW)
        weights = torch.softmax(bias(120, 120)[-8:].permute(2, 0, 1).float(), -1)
        return weights @ torch.sin(torch.arange(120.0)[:, None] / torch.arange(1.0, 9))


class HeavyHitters:
    """How much attention each key has had, by which a cache keeps some and drops others."""

    def __init__(self, keys: int, dtype: torch.dtype) -> None:
        self.had = torch.zeros(keys, dtype=dtype)

    def add(self, weights: torch.Tensor) -> None:
        self.had += weights.to(self.had.dtype).sum(0)  # culprit: attention-that-keys-had

    def kept(self, budget: int) -> torch.Tensor:
        return self.had.topk(budget).indices


def cached(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums after 300 words, and the answer of a query that sees a quarter of 120 keys, in bfloat16."""
    keys, values = (normal(120, 16) / 2).to(LOW), normal(120, 8, seed=1).to(LOW)
    cache = HeavyHitters(120, dtype)
    for step in range(300):
        query = normal(2, 16, seed=10 + step).to(LOW)
        cache.add(torch.softmax((query @ keys.T).float() / 4, -1).to(LOW))
    kept = cache.kept(30)
    weights = torch.softmax((normal(4, 16, seed=5) @ keys[kept].float().T) / 4, -1)
    return cache.had.float(), weights @ values[kept].float()


BUGS = (
    Bug("populations-near-rest", "CFD-GO/TCLB#413", ("amplified-rounding", "cancellation", "absorption"), "aten._to_copy.default",
        lambda: stirred(False), lambda: stirred(True)),
    Bug("modes-of-a-warm-field", "neuraloperator/neuraloperator#172", ("overflow",), "aten.mm.default", lambda: warm(False), lambda: warm(True),
        module="SpectralLayer"),
    Bug("pairs-that-are-far", "openmm/openmm#2914", ("overflow", "nan"), "aten.pow.Tensor_Scalar", lambda: soft_forces(HALF),
        lambda: soft_forces(WIDE)),
    Bug("word-after-a-rejection", "vllm-project/vllm#46665", ("cancellation", "amplified-rounding"), "aten._to_copy.default", lambda: rejected(LOW),
        lambda: rejected(WIDE)),
    Bug("draws-from-sums", "ROCm/AMDMIGraphX#3817", ("decision-flip", "local-drift", "absorption"), "aten.cumsum.default", lambda: drawn(False),
        lambda: drawn(True)),
    Bug("buckets-of-distance", "mindspore-lab/mindone#670", ("decision-flip", "integer-rounding"), "aten.log.default", lambda: biased(False),
        lambda: biased(True)),
    Bug("attention-that-keys-had", "AnswerDotAI/cold-compress#3", ("absorption", "accumulated-drift", "decision-flip"), "aten.add_.Tensor",
        lambda: cached(LOW), lambda: cached(WIDE)),
)  # fmt: skip
