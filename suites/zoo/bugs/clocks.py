"""Times and steps: of sensors and frames, of rotary embeddings, and of what decays."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def fired(dtype: torch.dtype) -> torch.Tensor:
    """Tokens of speech by integrate-and-fire: frames belong to the token that the running sum of their weights has reached."""
    hidden, weights = normal(400, 8), (0.1 + 0.25 * uniform(400, seed=1)).to(HALF)
    reached = weights.to(dtype).cumsum(0)  # culprit: fired-frames
    token = reached.floor()
    after = (reached - token).clamp(max=weights.to(dtype))  # what of a frame is beyond its last whole token
    tokens = torch.zeros(100, 8)
    tokens.index_add_(0, token.long(), after.float()[:, None] * hidden)
    before = weights.float() - after.float()
    return tokens.index_add_(0, (token.long() - 1).clamp(min=0), before[:, None] * hidden)


def speeds(whole: bool) -> torch.Tensor:
    """Time between a robot's readings, a hundredth of a second apart, of clocks that count from 1970."""
    readings = [(1_624_890_000 + step // 100, (step % 100) * 10_000_000 + 700 * step) for step in range(200)]
    if whole:
        clock = torch.tensor(readings)
        return ((clock[1:, 0] - clock[:-1, 0]) * 1_000_000_000 + clock[1:, 1] - clock[:-1, 1]).float() / 1e9
    clock = torch.tensor([seconds + nanoseconds / 1e9 for seconds, nanoseconds in readings])  # culprit: sensor-clock
    return clock[1:] - clock[:-1]  # culprit: sensor-clock


def rotated(dtype: torch.dtype) -> torch.Tensor:
    """Queries turned by positions up to 4096, which are float32; the frequencies have been cast to the model's format before."""
    queries, keys = normal(48, 32), normal(48, 32, seed=1)
    frequencies = (10_000.0 ** (-torch.arange(16) / 16)).to(dtype)  # culprit: low-frequencies
    positions = torch.arange(0, 48 * 85, 85, dtype=WIDE)
    angles = torch.einsum("p,f->pf", positions, frequencies.to(positions.dtype))
    cos, sin = angles.cos(), angles.sin()
    turned = [torch.cat([x[:, :16] * cos - x[:, 16:] * sin, x[:, 16:] * cos + x[:, :16] * sin], -1).to(LOW) for x in (queries, keys)]
    return (turned[0] @ turned[1].T).float()


def retention(dtype: torch.dtype) -> torch.Tensor:
    """Retention over 64 tokens, each head with a decay of its own, between 31/32 and 511/512. What is to come has a distance of infinity."""
    decays = 1 - torch.exp(torch.linspace(math.log(1 / 32), math.log(1 / 512), 8, dtype=dtype))  # culprit: leaking-decay
    places = torch.arange(64, dtype=dtype)
    apart = (places[:, None] - places).abs().masked_fill(torch.ones(64, 64).triu(1).bool(), math.inf)
    mask = (decays[:, None, None] ** apart).to(LOW)  # culprit: leaking-decay
    queries, keys, values = ((0.4 * normal(8, 64, 16, seed=seed)).to(LOW) for seed in range(3))
    return ((queries @ keys.transpose(1, 2) / 4 * mask) @ values).float()


BUGS = (
    Bug("fired-frames", "modelscope/FunASR#1811", ("decision-flip", "local-drift", "absorption", "amplified-rounding"), "aten.cumsum.default",
        lambda: fired(HALF), lambda: fired(WIDE)),
    Bug("sensor-clock", "facebookresearch/fairo#537", ("amplified-rounding", "cancellation", "integer-rounding", "unstable-reference"),
        "aten._to_copy.default", lambda: speeds(False), lambda: speeds(True), precision="32-true"),
    Bug("low-frequencies", "sgl-project/sglang-jax#1473", ("amplified-rounding",), "aten._to_copy.default", lambda: rotated(LOW),
        lambda: rotated(WIDE)),
    Bug("leaking-decay", "fkodom/yet-another-retnet#24", ("absorption", "vanished-constant", "amplified-rounding", "cancellation"),
        "aten.rsub.Scalar", lambda: retention(LOW), lambda: retention(WIDE)),
)  # fmt: skip
