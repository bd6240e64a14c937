"""States of loops that look as if they lost what they are given, and lose nothing that counts."""

from __future__ import annotations

from typing import Any

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def fading_momentum() -> torch.Tensor:
    """A momentum of nine tenths in bfloat16: each rounding has faded after a few turns."""
    momentum = torch.zeros(64).to(LOW)
    for gradient in normal(300, 64).to(LOW):
        momentum = 0.9 * momentum + 0.1 * gradient
    return momentum


def hidden_state() -> torch.Tensor:
    """An Elman network in bfloat16: its hidden state goes through weights and a tanh in each turn, which bound its error."""
    inward, back = (0.3 * normal(16, 32)).to(LOW), (0.1 * normal(32, 32, seed=1)).to(LOW)
    hidden = torch.zeros(4, 32).to(LOW)
    for token in normal(200, 4, 16, seed=2).to(LOW):
        hidden = torch.tanh(token @ inward + hidden @ back)
    return hidden


def gated_cells() -> torch.Tensor:
    """torch's own LSTM cell under autocast: what it keeps low is torch's to decide."""
    torch.manual_seed(0)
    cell, state = nn.LSTMCell(16, 32), (torch.zeros(4, 32), torch.zeros(4, 32))
    nn.init.constant_(cell.bias_ih[32:64], 4.0)  # type: ignore[index]
    with torch.no_grad(), torch.autocast("cpu", dtype=LOW):
        for token in normal(80, 4, 16):
            state = cell(token, state)
    return state[1]


def layers_that_share_weights() -> torch.Tensor:
    """One layer twelve times, its residual stream in bfloat16."""
    stream, up, down = normal(8, 32).to(LOW), (0.2 * normal(32, 64, seed=1)).to(LOW), (0.1 * normal(64, 32, seed=2)).to(LOW)
    for _ in range(12):
        stream = stream + functional.gelu(functional.layer_norm(stream, (32,)) @ up) @ down
    return stream


class Deep(nn.Module):
    """Forty layers, each with weights of its own; the branch is scaled down, the stream is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(nn.Linear(24, 24) for _ in range(40)), nn.LayerNorm(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + 0.2 * functional.silu(layer(self.norm(x)))
        return x


def deep_network() -> torch.Tensor:
    torch.manual_seed(0)
    return Deep().to(LOW)(normal(16, 24).to(LOW)).detach()


def measured_depth() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"model": Deep(), "inputs": normal(16, 24), "precision": "bf16-true"}


def wide_latents() -> torch.Tensor:
    """A sampler whose network is in bfloat16, and whose latents are float32 until they are decoded."""
    weight, x = (0.2 * normal(16, 16, seed=1)).to(LOW), normal(64, 16)
    for _ in range(100):
        x = 0.996 * x + 0.02 * torch.tanh(x.to(LOW) @ weight).float()
    return x.to(LOW)


def key_value_slots() -> torch.Tensor:
    """A cache in bfloat16 into which each turn writes its own slot: nothing is added up."""
    keys, values = torch.zeros(64, 16).to(LOW), torch.zeros(64, 16).to(LOW)
    token, weight = normal(16), 0.2 * normal(16, 48, seed=1)
    for turn in range(64):
        query, key, value = (token @ weight).split(16)
        keys[turn].copy_(key)
        values[turn].copy_(value)
        scores = torch.softmax(keys[: turn + 1].float() @ query, 0)
        token = functional.layer_norm(token + scores @ values[: turn + 1].float(), (16,))
    return token


def ring_of_frames() -> torch.Tensor:
    """A buffer of the last eight frames in half precision, which moves on by one each turn."""
    frames, seen = torch.zeros(8, 16).half(), []
    for frame in normal(40, 16).half():
        frames = torch.cat((frames[1:], frame[None]))
        seen.append(frames.float().mean(0))
    return torch.stack(seen)


def stored_remainders() -> torch.Tensor:
    """A state in bfloat16 with a second one for what the first could not hold; they are read together."""
    state, rest = torch.zeros(32).to(LOW), torch.zeros(32).to(LOW)
    for x in 0.01 * uniform(400, 32):
        whole = 0.998 * (state.float() + rest.float()) + x
        state = whole.to(LOW)
        rest = (whole - state.float()).to(LOW)
    return state.float() + rest.float()


def chance_rounding() -> torch.Tensor:
    """A state in bfloat16 that is rounded up or down by chance: single turns are lost, the mean is not."""
    state, chance = torch.ones(256).to(LOW), torch.Generator().manual_seed(0)
    for _ in range(100):
        bits = (state.float() * 0.999).view(torch.int32)
        noise = torch.randint(0, 1 << 16, bits.shape, generator=chance, dtype=torch.int32)
        state = ((bits + noise) & -65536).view(torch.float32).to(LOW)
    return state


def counted_in_halves() -> torch.Tensor:
    """Sixty-four sums of halves in half precision, which holds them all."""
    total = torch.zeros(8).half()
    for part in (torch.round(4 * uniform(64, 8)) / 2).half():
        total = total + part
    return total


def short_sums() -> torch.Tensor:
    """Ten terms added in bfloat16, one by one: less than two roundings in all."""
    total = torch.zeros(64).to(LOW)
    for part in normal(10, 64).to(LOW):
        total = total + part
    return total


def replaced_each_turn() -> torch.Tensor:
    """A running estimate that is written anew from the data each turn, and not from what it was."""
    estimate, data = torch.zeros(16).to(LOW), normal(60, 16)
    for turn in range(1, 61):
        estimate.copy_(data[:turn].mean(0))
    return estimate


def normalised_power() -> torch.Tensor:
    """Power iteration in bfloat16: what a turn rounds the next one takes back."""
    matrix = torch.diag(torch.linspace(0.2, 1.0, 16)) + 0.02 * normal(16, 16)
    matrix, vector = ((matrix + matrix.T) / 2).to(LOW), torch.ones(16).to(LOW)
    for _ in range(50):
        product = matrix @ vector
        vector = product / product.norm()
    return vector


IDIOMS = (fading_momentum, hidden_state, gated_cells, layers_that_share_weights, deep_network, wide_latents, key_value_slots, ring_of_frames,
          stored_remainders, chance_rounding, counted_in_halves, short_sums, replaced_each_turn, normalised_power)  # fmt: skip
MEASURED = (measured_depth,)
