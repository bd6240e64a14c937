"""What is made in parts or kept in a low format on its way: split products, rings, pyramids, adapters."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def split_k(x: torch.Tensor, weight: torch.Tensor, workspace_dtype: torch.dtype) -> torch.Tensor:
    """A product whose inner dimension is split among six blocks; each writes its part into a workspace, which is reduced."""
    parts = [(a.float() @ b.float()).to(workspace_dtype) for a, b in zip(x.chunk(6, 1), weight.chunk(6, 0), strict=True)]  # culprit: split-products
    workspace = torch.stack(parts)
    out = workspace[0]
    for part in workspace[1:]:
        out = out + part  # culprit: split-products
    return out.to(x.dtype)


def decoded(workspace_dtype: torch.dtype) -> torch.Tensor:
    """A step of decoding: hidden states have a few massive channels, which the projection sets off against each other."""
    x, weight = uniform(16, 1536) * 2 - 1, (uniform(1536, 64, seed=1) * 2 - 1) / 20
    x[:, [100, 900]] = 60 + normal(16, 1, seed=2)
    weight[100] = 0.8 + 0.05 * normal(64, seed=3)
    weight[900] = -weight[100]
    return split_k(x.to(LOW), weight.to(LOW), workspace_dtype).float()


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, partial_dtype: torch.dtype, hops: int) -> torch.Tensor:
    """Attention over keys that come round in a ring: after each hop the output so far is merged with what the new block gives."""
    out, lse = torch.zeros(q.shape, dtype=partial_dtype), torch.full((len(q), 1), -torch.inf)
    for keys, values in zip(k.chunk(hops), v.chunk(hops), strict=True):
        scores = (q @ keys.T).float() / q.shape[-1] ** 0.5
        block_lse = torch.logsumexp(scores, -1, keepdim=True)
        block = torch.softmax(scores, -1) @ values.float()
        merged = torch.logaddexp(lse, block_lse)
        out = ((lse - merged).exp() * out + (block_lse - merged).exp() * block).to(partial_dtype)  # culprit: ring-hops
        lse = merged
    return out


def ringed(partial_dtype: torch.dtype) -> torch.Tensor:
    """The values' mean over a long context that came round in 256 hops."""
    q, k, v = (0.3 * normal(16, 32)).to(LOW), normal(8192, 32, seed=1).to(LOW), (1 + 0.2 * normal(8192, 32, seed=2)).to(LOW)
    return ring_attention(q, k, v, partial_dtype, 256).float()


class Pyramid(nn.Module):
    """Features of four scales, each added to what comes down from the coarser one; laterals have no norm."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.apart = apart
        self.laterals = nn.ModuleList(nn.Conv2d(8 * 2**level, 8, 1) for level in range(4))
        self.outputs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        with torch.no_grad():
            for number, each in enumerate((*self.laterals, *self.outputs)):
                each.weight.copy_(normal(*each.weight.shape, seed=number) / 2)
                each.bias.zero_()

    def pyramid(self, features: list[torch.Tensor]) -> list[torch.Tensor]:
        laterals = [each(x) for each, x in zip(self.laterals, features, strict=True)]  # culprit: pyramid-sums
        for level in range(3, 0, -1):
            laterals[level - 1] = laterals[level - 1] + nn.functional.interpolate(laterals[level], scale_factor=2)  # culprit: pyramid-sums
        return [each(x) for each, x in zip(self.outputs, laterals, strict=True)]  # culprit: pyramid-sums

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        if self.apart:
            with torch.autocast("cpu", enabled=False):
                return torch.cat([x.flatten(1) for x in self.pyramid([x.float() for x in features])], 1)
        return torch.cat([x.flatten(1) for x in self.pyramid(features)], 1)


def detected(apart: bool) -> torch.Tensor:
    """The pyramid of an image at a loss that has grown: the backbone's features are of some thousands."""
    features = [(2000 + 900 * normal(1, 8 * 2**level, 32 // 2**level, 32 // 2**level, seed=20 + level)).relu() for level in range(4)]
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF):
        return Pyramid(apart)(features).float() / 1e4


class KerasAdam:
    """Adam, as each variable's moments are moved by a share of what they lack."""

    def __init__(self, variables: list[torch.Tensor], learning_rate: float) -> None:
        self.variables, self.learning_rate, self.steps = variables, learning_rate, 0
        self.momentums = [torch.zeros_like(each) for each in variables]
        self.velocities = [torch.zeros_like(each) for each in variables]

    @torch.no_grad()
    def apply(self) -> None:
        self.steps += 1
        alpha = self.learning_rate * (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for variable, m, v in zip(self.variables, self.momentums, self.velocities, strict=True):
            gradient = variable.grad
            assert gradient is not None
            m.add_((gradient - m) * (1 - 0.9))
            v.add_((gradient.square() - v) * (1 - 0.999))
            variable.sub_((m * alpha) / (v.sqrt() + 1e-7))  # culprit: still-adapter
            variable.grad = None


def adapted(dtype: torch.dtype) -> torch.Tensor:
    """What 30 steps move an adapter of rank four by; the layer that it is for is kept in bfloat16."""
    kernel = (normal(32, 32) / 6).to(LOW)
    down, up = (normal(32, 4, seed=1) / 4).to(dtype).requires_grad_(), (0.05 * normal(4, 32, seed=2)).to(dtype).requires_grad_()
    start = [down.detach().clone(), up.detach().clone()]
    optimizer = KerasAdam([down, up], 5e-5)
    for step in range(30):
        x, wanted = normal(16, 32, seed=10 + step).to(LOW), normal(16, 32, seed=10 + step).roll(1, 1)
        answer = x @ kernel + (x @ down.to(LOW)) @ up.to(LOW)
        (answer.float() - wanted).square().mean().backward()
        optimizer.apply()
    return torch.cat([(end.detach() - begin).float().flatten() for end, begin in zip((down, up), start, strict=True)])


BUGS = (
    Bug("split-products", "modular/modular#7165", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: decoded(LOW),
        lambda: decoded(WIDE)),
    Bug("ring-hops", "Dao-AILab/flash-attention#2723", ("accumulated-drift", "absorption"), "aten._to_copy.default", lambda: ringed(LOW),
        lambda: ringed(WIDE),
        expected_miss="it is off by 2.3 unit roundoffs in all, and 14 of 512 numbers by 2 % or more: independent roundings may cost as much"),
    Bug("pyramid-sums", "nullmax-vision/HiP-AD#9", ("overflow",), "aten.convolution.default", lambda: detected(False), lambda: detected(True),
        module="outputs.0"),
    Bug("still-adapter", "keras-team/keras-hub#2629", ("absorption", "lost-update", "accumulated-drift"), "aten.sub_.Tensor", lambda: adapted(LOW),
        lambda: adapted(WIDE)),
)  # fmt: skip
