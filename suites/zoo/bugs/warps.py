"""Pictures, positions and states: a view that is warped by its depth, a rotary table, a delta rule's memory, a norm across channels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def other_eye(dtype: torch.dtype) -> torch.Tensor:
    """A row of a picture as the other eye sees it: each pixel is taken from a place that its depth moves sideways."""
    depth = uniform(1, 1, 4, 64)
    depth = functional.interpolate(depth, (32, 1024), mode="bilinear", align_corners=True)[:, 0]
    across = torch.linspace(-1, 1, 1024).expand(1, 32, 1024).to(dtype)  # culprit: stereo-warp
    down = torch.linspace(-1, 1, 32)[:, None].expand(1, 32, 1024).to(dtype)
    grid = torch.stack([across + 0.02 * depth.to(dtype), down], -1)  # culprit: stereo-warp
    return functional.grid_sample(normal(1, 1, 32, 1024), grid.float(), align_corners=True)


class Rotary(nn.Module):
    """Queries turned by their positions, with the frequencies in a buffer."""

    def __init__(self, wide: bool, width: int = 32) -> None:
        super().__init__()
        self.wide = wide
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, width, 2) / width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, frequencies = x.shape[0], self.inv_freq
        if self.wide:
            frequencies = 10000.0 ** (-torch.arange(0, x.shape[1], 2) / x.shape[1])
        positions = torch.arange(count, dtype=frequencies.dtype)  # culprit: rotary-buffers
        angles = torch.outer(positions, frequencies)  # culprit: rotary-buffers
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def turned(wide: bool) -> torch.Tensor:
    """Scores of a model that was converted to bfloat16, over 1500 tokens."""
    model = Rotary(wide).to(LOW)
    x = model(normal(1500, 32).to(LOW))
    return (x[-4:].float() @ x.float().T) / 32**0.5


def remembered(dtype: torch.dtype) -> torch.Tensor:
    """The memory of a gated delta rule over 350 tokens, stored after each; what is read of it is computed in float32."""
    state, out = torch.zeros(16, 16, dtype=dtype), []
    decay = torch.exp(-0.0005 * (1 + uniform(350)))
    for token in range(350):
        key, value = functional.normalize(normal(16, seed=3 * token), dim=0), 1 + 0.3 * normal(16, seed=3 * token + 1)
        memory = decay[token] * state.float()
        memory = memory + 0.03 * torch.outer(key, value - key @ memory)
        state = memory.to(dtype)  # culprit: gated-memory
        out.append(normal(16, seed=3 * token + 2) @ state.float())
    return torch.stack(out[-20:])


def across_channels(dtype: torch.dtype) -> torch.Tensor:
    """Local response normalisation over five channels, of features of a network in half."""
    x = (120 * normal(2, 16, 6, 6)).relu().half().to(dtype)
    squares = functional.pad(x * x, (0, 0, 0, 0, 2, 2))  # culprit: response-norm
    total = sum(squares[:, start : start + 16] for start in range(5))  # culprit: response-norm
    return (x / (1 + 2e-5 * total) ** 0.75).float()


BUGS = (
    Bug("stereo-warp", "nagadomi/nunif#437", ("amplified-rounding",), "aten.add.Tensor", lambda: other_eye(LOW), lambda: other_eye(WIDE)),
    Bug("rotary-buffers", "InternLM/InternLM#237", ("integer-rounding",), "aten.arange.default", lambda: turned(False), lambda: turned(True),
        module="Rotary"),
    Bug("gated-memory", "gittensor-ai-lab/sparkinfer#998", ("accumulated-drift", "absorption"), "aten._to_copy.default",
        lambda: remembered(LOW), lambda: remembered(WIDE)),
    Bug("response-norm", "ROCm/AMDMIGraphX#850", ("overflow",), "aten.mul.Tensor", lambda: across_channels(HALF),
        lambda: across_channels(WIDE)),
)  # fmt: skip
