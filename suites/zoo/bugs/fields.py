"""Graphs, molecules and diffusion: sums over neighbours, lists of neighbours, energies of data sets, features of a time step."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class GraphConv(nn.Module):
    """A linear layer with one output, and the mean of that over a node's neighbours."""

    def __init__(self, wide: bool, width: int = 16) -> None:
        super().__init__()
        self.wide, self.linear = wide, nn.Linear(width, 1, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(normal(1, width).abs() / width)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        message = self.linear(x).squeeze(-1)
        total = torch.zeros(len(x), dtype=WIDE if self.wide else message.dtype)
        total.index_add_(0, target, message[source].to(total.dtype))  # culprit: degree-sum
        degree = torch.bincount(target, minlength=len(x)).clamp(min=1)
        return total / degree


def convolved(wide: bool) -> torch.Tensor:
    """A graph with a node that seven thousand others cite, whose features are half."""
    layer, x = GraphConv(wide).half(), uniform(7200, 16).half()
    source = torch.arange(8000) * 13 % 7200
    target = torch.where(torch.arange(8000) < 7000, 0, 1 + torch.arange(8000) % 40)
    with torch.no_grad():
        return layer(x, source, target)[:41].float()


def neighbours(places: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """For each atom the four next to it in the sequence and eight that are near in space, as a sorted list without repetition."""
    count = len(places)
    distance = torch.cdist(places, places).to(dtype)  # culprit: sentinel-indices
    order = torch.arange(count)
    beside = (order[:, None] - order).abs() <= 2
    near = distance.masked_fill(beside, float("inf")).topk(8, largest=False).indices  # culprit: sentinel-indices
    wanted = beside.scatter(1, near, True)
    listed = torch.where(wanted, order.to(distance.dtype), torch.full_like(distance, count))  # culprit: sentinel-indices
    return listed.sort(-1).values[:, :12].long().clamp(max=count - 1)  # culprit: sentinel-indices


def attended(wide: bool) -> torch.Tensor:
    """Sparse attention of 480 atoms: the index list takes the format of the distances."""
    walk = normal(480, 3).cumsum(0)
    with torch.autocast("cpu", dtype=LOW):
        x = functional.linear(normal(480, 16, seed=1), normal(16, 16, seed=2) / 4)
        listed = neighbours(walk, WIDE if wide else x.dtype)
        score = torch.einsum("id,ijd->ij", x, x[listed]).float() / 4
        return torch.einsum("ij,ijd->id", score.softmax(-1).to(x.dtype), x[listed]).float()


def formation_energies(wide: bool) -> torch.Tensor:
    """Targets of a data set: a molecule's energy in electronvolts less those of its atoms, for a potential that is trained in float32."""
    reference = torch.tensor([-13.587222780835477, -1029.4889999855063, -1484.9814568572233, -2041.9816003861047], dtype=DOUBLE)
    counts = torch.stack([20 + torch.arange(24) % 7, 30 + torch.arange(24) % 5, torch.arange(24) % 4, torch.arange(24) % 6], -1)
    energy = (counts * reference).sum(-1) - 4.3 + 0.04 * normal(24).double()
    if wide:
        targets = (energy - (counts * reference).sum(-1)).float()
    else:
        energy, reference = energy.float(), reference.float()  # culprit: reference-energies
        targets = energy - (counts * reference).sum(-1)  # culprit: reference-energies
    return (targets - targets.mean()) / targets.std()


def features(timesteps: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Sines and cosines of time steps."""
    exponent = -math.log(10000) * torch.arange(width // 2, dtype=dtype) / (width // 2)
    angles = timesteps[:, None].to(dtype) * exponent.exp()  # culprit: timestep-features
    return torch.cat([angles.cos(), angles.sin()], -1)  # culprit: timestep-features


def denoised(wide: bool) -> torch.Tensor:
    """Twenty steps of a small denoiser in half."""
    embed, mix, out = ((normal(*shape, seed=seed) / shape[1] ** 0.5).half() for seed, shape in enumerate(((32, 64), (32, 16), (16, 32))))
    latents = normal(8, 16, seed=4)
    for step in torch.linspace(981, 1, 20).long():
        time = features(step[None], 64, WIDE if wide else HALF).half()
        hidden = functional.silu(functional.linear(latents.half(), mix) + 2 * functional.linear(time, embed))
        latents = latents - 0.3 * functional.linear(hidden, out).float()
    return latents


BUGS = (
    Bug("degree-sum", "dmlc/dgl#4674", ("local-drift", "absorption"), "aten.index_add_.default", lambda: convolved(False),
        lambda: convolved(True)),
    Bug("sentinel-indices", "RosettaCommons/foundry#236", ("decision-flip", "integer-rounding"), "aten.topk.default", lambda: attended(False),
        lambda: attended(True)),
    Bug("reference-energies", "torchmd/torchmd-net#275", ("cancellation", "amplified-rounding", "unstable-reference"), "aten.sub.Tensor",
        lambda: formation_energies(False), lambda: formation_energies(True), precision="32-true"),
    Bug("timestep-features", "apache/tvm#15811", ("amplified-rounding",), "aten.mul.Tensor", lambda: denoised(False),
        lambda: denoised(True)),
)  # fmt: skip
