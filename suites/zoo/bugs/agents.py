"""Policies and language models: adapters that lag behind, narrow policies, states that go from chunk to chunk, positions, caps."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def lagged(dtype: torch.dtype) -> torch.Tensor:
    """How far the sampling policy's adapter has followed the trained one, whose average it is."""
    base = (normal(32, 32) / 6).to(HALF)
    down, up = nn.Parameter(normal(32, 4, seed=1) / 4), nn.Parameter(0.3 * normal(4, 32, seed=2))
    old = [each.detach().to(dtype) for each in (down, up)]
    optimizer = torch.optim.AdamW([down, up], lr=2e-3, weight_decay=0.0)
    for step in range(60):
        x, wanted = normal(16, 32, seed=10 + step), normal(16, 32, seed=10 + step).roll(1, 1)
        loss = (x @ base.float() + x @ down @ up - wanted).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for target, source in zip(old, (down, up), strict=True):
            target.mul_(0.998).add_(source.detach(), alpha=0.002)  # culprit: lagging-adapters
    return torch.cat([(old[0].float() - normal(32, 4, seed=1) / 4).flatten(), (old[1].float() - 0.3 * normal(4, 32, seed=2)).flatten()])


class NormalProjection(nn.Module):
    """The distribution of actions: a mean for each state, and a spread that has become small."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.apart = apart
        self.means = nn.Linear(32, 4)
        self.log_std = nn.Parameter(torch.full((4,), -6.5))
        with torch.no_grad():
            self.means.weight.copy_(normal(4, 32) / 4)
            self.means.bias.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0]))

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.apart:
            with torch.autocast("cpu", enabled=False):
                return self.means(features.float()), self.log_std.exp()
        return self.means(features), self.log_std.exp()  # culprit: narrow-policy


def log_probability(actions: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    deviations = (actions - mean) / std  # culprit: narrow-policy
    return (-0.5 * deviations**2 - std.log()).sum(-1)


def rated(apart: bool) -> torch.Tensor:
    """The log probabilities of 64 actions that the same policy has taken in float32."""
    policy, features = NormalProjection(apart), normal(64, 32, seed=1)
    with torch.no_grad():
        actions = policy.means(features) + policy.log_std.exp() * normal(64, 4, seed=2)
        with torch.autocast("cpu", dtype=HALF):
            mean, std = policy(features)
        return log_probability(actions, mean, std)


def chunked_delta(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, state_dtype: torch.dtype) -> torch.Tensor:
    """Linear attention with a gate, chunk by chunk: each adds keys times values to a state that has the whole prefix in it."""
    state, outputs = torch.zeros(q.shape[-1], v.shape[-1], dtype=state_dtype), []
    for queries, keys, values, gates in zip(q.split(4), k.split(4), v.split(4), decay.split(4), strict=True):
        inner = torch.tril(queries.float() @ keys.float().T) @ values.float()
        outputs.append(inner + queries.float() @ state.float())
        state = (gates.prod() * state.float() + keys.float().T @ values.float()).to(state_dtype)  # culprit: delta-rule-state
    return torch.cat(outputs)


def prefilled(state_dtype: torch.dtype) -> torch.Tensor:
    """The last tokens of a prompt of 3000."""
    q, k = functional.normalize(0.4 + normal(3000, 16), dim=-1).to(LOW), functional.normalize(0.4 + normal(3000, 16, seed=1), dim=-1).to(LOW)
    v, decay = (0.5 + 0.5 * normal(3000, 16, seed=2)).to(LOW), 1 - 2e-5 * uniform(3000, seed=3)
    return chunked_delta(q, k, v, decay, state_dtype)[-64:]


class RotaryCache(nn.Module):
    """Cosines and sines of the positions; the buffer of frequencies goes low with the model."""

    inv_freq: torch.Tensor

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, 32, 2) / 32))

    def forward(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.wide:
            positions, frequencies = torch.arange(length, dtype=WIDE), 10000.0 ** (-torch.arange(0, 32, 2) / 32)
        else:
            positions, frequencies = torch.arange(length).type_as(self.inv_freq), self.inv_freq.clone()  # culprit: ordered-positions
        angles = torch.outer(positions, frequencies)  # culprit: ordered-positions
        return angles.cos(), angles.sin()


def ordered(wide: bool) -> torch.Tensor:
    """Scores of a graph's last nodes with all before, in a sequence of 600 edges whose order says which depends on which."""
    cosines, sines = RotaryCache(wide).to(LOW)(600)
    cosines, sines = cosines.to(LOW), sines.to(LOW)
    x = normal(1, 32).expand(600, 32).to(LOW)
    first, second = x.chunk(2, -1)
    rotated = torch.cat([first * cosines - second * sines, first * sines + second * cosines], -1).float()
    return rotated[-40:] @ rotated.T / 32**0.5


def capped(early: bool) -> torch.Tensor:
    """The probabilities of the next token, whose logits are held below 15."""
    x, head = normal(8, 64).to(LOW), (1.6 * normal(300, 64, seed=1)).to(LOW)
    logits = x @ head.T
    if early:
        logits = 15 * torch.tanh(logits.float() / 15)
    else:
        logits = 15 * torch.tanh(logits / 15)  # culprit: soft-capped
        logits = logits.float()
    return torch.softmax(logits, -1)


BUGS = (
    Bug("lagging-adapters", "AndreasBergmeister/ram#6", ("amplified-rounding", "absorption", "accumulated-drift"), "aten.mul_.Tensor",
        lambda: lagged(HALF), lambda: lagged(WIDE), step=61),
    Bug("narrow-policy", "HorizonRobotics/alf#1651", ("cancellation", "amplified-rounding"), "aten.addmm.default", lambda: rated(False),
        lambda: rated(True), module="NormalProjection",
        expected_miss="a difference in float32 of what a layer gives low under autocast is as wrong as the precision makes it, as a residual is"),
    Bug("delta-rule-state", "xLLM-AI/xllm#2055", ("absorption", "accumulated-drift"), "aten._to_copy.default", lambda: prefilled(LOW),
        lambda: prefilled(WIDE)),
    Bug("ordered-positions", "nkalyanv99/UNI-D2#6", ("integer-rounding", "amplified-rounding"), "aten._to_copy.default", lambda: ordered(False),
        lambda: ordered(True), module="RotaryCache"),
    Bug("soft-capped", "karpathy/nanochat#326", ("amplified-rounding", "cancellation"), "aten.tanh.default", lambda: capped(False),
        lambda: capped(True),
        expected_miss="each op is right to a rounding of bfloat16, as the logits of any head are; a softmax makes 2 % of three"),
)  # fmt: skip
