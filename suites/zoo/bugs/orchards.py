"""Orchards: features that hardly differ, spreads of many features at once, the mean of very many losses, decays that add up."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Norm(nn.Module):
    """Layer normalization, in a format that it is told."""

    def __init__(self, size: int, kind: torch.dtype, eps: float = 1e-5) -> None:
        super().__init__()
        self.kind, self.eps = kind, eps
        self.scale, self.shift = nn.Parameter(torch.ones(size, dtype=kind)), nn.Parameter(torch.zeros(size, dtype=kind))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = values.to(self.kind)
        centred = values - values.mean(-1, keepdim=True)  # culprit: features-that-hardly-differ
        spread = centred.pow(2).mean(-1, keepdim=True)
        return centred * torch.rsqrt(spread + self.eps) * self.scale + self.shift


def levelled(kind: torch.dtype) -> torch.Tensor:
    """What a memory's attention reads, of words whose features lie close together."""
    torch.manual_seed(1301)
    layer, words = nn.Linear(48, 48).to(LOW), (5 + 0.06 * normal(16, 48, seed=1302)).to(LOW)
    with torch.no_grad():
        return wider(layer(Norm(48, kind)(words).to(LOW)))


class Groups(nn.Module):
    """Group normalization as a network in half has it."""

    def __init__(self, groups: int, channels: int, wide: bool, eps: float = 1e-3) -> None:
        super().__init__()
        self.groups, self.wide, self.eps = groups, wide, eps
        self.scale, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        values = picture.reshape(len(picture), self.groups, -1)
        if self.wide:
            values = values.float()
        middle = values.mean(-1, keepdim=True)
        spread = (values - middle).square().mean(-1, keepdim=True)  # culprit: groups-of-channels
        values = (values - middle) * torch.rsqrt(spread + self.eps)
        scale, shift = self.scale[:, None, None].to(values.dtype), self.shift[:, None, None].to(values.dtype)
        return values.view_as(picture) * scale + shift


def grouped(wide: bool) -> torch.Tensor:
    """A picture's features after a convolution and a group norm, in half. Two groups vanish."""
    torch.manual_seed(1311)
    layer, norm = nn.Conv2d(3, 8, 3, padding=1).to(HALF), Groups(4, 8, wide)
    with torch.no_grad():
        layer.weight[4:].mul_(600)
        return norm(layer(normal(2, 3, 8, 8, seed=1312).to(HALF))).float()


class BatchNorm(nn.Module):
    """Batch normalization by the means of the values and of their squares."""

    def __init__(self, size: int, wide: bool, eps: float = 1e-5) -> None:
        super().__init__()
        self.wide, self.eps = wide, eps
        self.scale, self.shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        kind = values.dtype
        if self.wide:
            values = values.float()
        mean, squares = values.mean(0), values.square().mean(0)
        spread = squares - mean.square()  # culprit: batches-in-a-low-format
        values = (values - mean) * torch.rsqrt(spread + self.eps)  # culprit: batches-in-a-low-format
        return values.to(kind) * self.scale.to(kind) + self.shift.to(kind)


def batched(wide: bool) -> torch.Tensor:
    """What a network in bfloat16 makes of a batch whose features have a mean. Not a number."""
    torch.manual_seed(1321)
    layer = nn.Linear(20, 32).to(LOW)
    with torch.no_grad():
        layer.bias.copy_(6 + normal(32, seed=1322))
        return wider(functional.relu(BatchNorm(32, wide)(layer(0.5 * normal(64, 20, seed=1323).to(LOW)))))


def mean_loss(kind: torch.dtype) -> torch.Tensor:
    """The loss of a large batch of a classifier in half, and what its weights get of it. Infinite."""
    torch.manual_seed(1331)
    layer = nn.Linear(16, 40)
    with torch.autocast("cpu", HALF):
        scores = layer(8 * normal(16384, 16, seed=1332))
    losses = functional.cross_entropy(scores.float(), (40 * uniform(16384, seed=1333)).long(), reduction="none").to(HALF)
    losses = losses.to(kind)
    total = torch.zeros((), dtype=kind)
    for part in losses.chunk(64):
        total = total + part.sum()  # culprit: mean-of-many-losses
    return wider(total / len(losses))  # culprit: mean-of-many-losses


class Mixer(nn.Module):
    """Mixes each word's value with those before it, weighted by keys and by how long ago they were."""

    def __init__(self, size: int, kept: bool) -> None:
        super().__init__()
        self.kept = kept
        self.decay, self.first = nn.Parameter(-0.2 - uniform(size, seed=1341)), nn.Parameter(normal(size, seed=1342))

    def forward(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        told = []
        above, below, most = torch.zeros_like(keys[0]), torch.zeros_like(keys[0]), torch.full_like(keys[0], -1e4)
        for key, value in zip(keys, values, strict=True):
            now = torch.maximum(most, key + self.first) if self.kept else torch.zeros_like(key)
            past, fresh = torch.exp((most if self.kept else 0) - now), torch.exp(key + self.first - now)  # culprit: decays-of-all-words
            told.append((past * above + fresh * value) / (past * below + fresh))  # culprit: decays-of-all-words
            now = torch.maximum(most + self.decay, key) if self.kept else torch.zeros_like(key)
            past = torch.exp((most if self.kept else 0) + self.decay - now)
            fresh = torch.exp(key - now)  # culprit: decays-of-all-words
            above, below, most = past * above + fresh * value, past * below + fresh, now
        return torch.stack(told)


def mixed(kept: bool) -> torch.Tensor:
    """What thirty words take from those before them, in a model in half. Not a number."""
    keys, values = (4 * normal(30, 24, seed=1343)).to(HALF), normal(30, 24, seed=1344).to(HALF)
    with torch.no_grad():
        return wider(Mixer(24, kept).to(HALF)(keys, values))


class Steps(nn.Module):
    """Tells a network which step of a sampler it is in."""

    def __init__(self, size: int, inner: int, same: bool) -> None:
        super().__init__()
        torch.manual_seed(1351)
        self.size, self.same = size, same
        self.first, self.second = nn.Linear(size, inner), nn.Linear(inner, inner)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        angles = steps[:, None].float() * 10_000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        table = torch.cat([angles.cos(), angles.sin()], -1)
        if self.same:
            table = table.to(self.first.weight.dtype)
        return self.second(functional.silu(self.first(table)))  # culprit: table-of-steps


def stepped(same: bool) -> torch.Tensor:
    """What a network in bfloat16 is told of eight steps. torch refuses it."""
    with torch.no_grad():
        return wider(Steps(32, 48, same).to(LOW)(torch.linspace(0, 999, 8)))


BUGS = (
    Bug("features-that-hardly-differ", "dingo-actual/om#11", ("amplified-rounding", "cancellation", "local-drift"), "aten._to_copy.default",
        lambda: levelled(LOW), lambda: levelled(SINGLE),
        wrong_line="the words are stored in bfloat16 before the norm, which costs them more digits than the low mean does; the mend leaves that"),
    Bug("groups-of-channels", "tensorflow/addons#2550", ("overflow",), "aten.pow.Tensor_Scalar",
        lambda: grouped(wide=False), lambda: grouped(wide=True), module="Groups"),
    Bug("batches-in-a-low-format", "google-deepmind/dm-haiku#396", ("cancellation", "nan", "amplified-rounding"), "aten.sub.Tensor",
        lambda: batched(wide=False), lambda: batched(wide=True), module="BatchNorm"),
    Bug("mean-of-many-losses", "Oneflow-Inc/OneFlow-Benchmark#135", ("overflow", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: mean_loss(HALF), lambda: mean_loss(SINGLE)),
    Bug("decays-of-all-words", "tensorpro/tpu_rwkv#1", ("overflow", "nan"), "aten.exp.default",
        lambda: mixed(kept=False), lambda: mixed(kept=True), module="Mixer"),
    Bug("table-of-steps", "soran-ghaderi/torchebm#302", ("dtype-leak",), "aten.addmm.default",
        lambda: stepped(same=False), lambda: stepped(same=True), module="first", raises=RuntimeError),
)  # fmt: skip
