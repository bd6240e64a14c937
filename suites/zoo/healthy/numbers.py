"""Zeros, subnormals, saturation and small differences that are meant."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

LOW = torch.bfloat16


def softmax_tails() -> torch.Tensor:
    """exp(-40) is zero in float16, and nothing is lost."""
    return torch.softmax(torch.tensor([[0.0, -40.0, 1.0]]).half(), -1)


def large_but_safe() -> torch.Tensor:
    x = torch.full((2, 8), 30_000.0)
    x[:, ::2] *= -1
    return functional.layer_norm(x.half(), (8,))


def constant_rows() -> torch.Tensor:
    """x - mean is zero in two rows; the eps of the fused kernel holds."""
    x = normal(6, 16).to(LOW)
    x[1], x[4] = 0.0, 3.0
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4)).to(LOW)
    out = model(x)
    out.float().square().mean().backward()
    return out.detach()


def masked_logarithm() -> torch.Tensor:
    """A logarithm where it is defined, zero elsewhere; a flushed product that nobody reads."""
    x = torch.tensor([4.0, -0.0, -9.0, 1.0]).half().requires_grad_()
    positive = x > 0
    out = torch.where(positive, torch.log(torch.where(positive, x, torch.ones_like(x))), torch.zeros_like(x))
    with torch.no_grad():
        _ = x * 1e-9
    out.sum().backward()
    return x.grad


def clipped() -> torch.Tensor:
    x = (8000 * normal(4, 16)).half().clip(-65504, 65504)
    return functional.relu6(x / 1000) * functional.hardsigmoid(x / 1000) / 16


def exact_differences() -> torch.Tensor:
    """Neighbours of whole halves: their differences are exact, by Sterbenz."""
    x = (96 + torch.arange(64).remainder(7) * 0.5).to(LOW)
    return x[1:] - x[:-1]


def two_halves() -> torch.Tensor:
    """x - bfloat16(x) is the second half of a product in twice bfloat16."""
    x, w = normal(8, 32), normal(32, 4, seed=1)
    (xh, xl), (wh, wl) = ((t.to(LOW), (t - t.to(LOW).float()).to(LOW)) for t in (x, w))
    return xh.float() @ wh.float() + xh.float() @ wl.float() + xl.float() @ wh.float()


def residual_codes() -> torch.Tensor:
    """What four stages of quantisation leave is small because it should be."""
    left = normal(32, 4).half()
    for stage in range(4):
        left = left - torch.round(left.float() * 4**stage).half() * 4.0**-stage
    return left


def straight_through() -> torch.Tensor:
    """w + (round(w) - w).detach() cancels on purpose."""
    w = nn.Parameter(0.2 * normal(8, 16))
    scale = w.detach().abs().amax(1, keepdim=True) / 127
    held = w + (torch.round(w / scale) * scale - w).detach()
    with torch.autocast("cpu", dtype=LOW):
        out = functional.linear(normal(4, 16, seed=1), held)
    out.float().square().mean().backward()
    return w.grad


def scaled_fp8() -> torch.Tensor:
    """Rows scaled up to 448: small entries flush, by design."""
    x, w = normal(8, 64).to(LOW), (0.02 * normal(16, 64, seed=1)).to(LOW)
    sx, sw = (t.float().abs().amax(1, keepdim=True) / 448 for t in (x, w))
    qx, qw = (x.float() / sx).to(torch.float8_e4m3fn), (w.float() / sw).to(torch.float8_e4m3fn)
    return ((qx.float() @ qw.float().T) * sx * sw.T).to(LOW)


def exponential_noise() -> torch.Tensor:
    """Drawn and logged in float32, kept off zero, narrowed last."""
    noise = (-torch.log1p(-uniform(8, 100))).clamp_min(1e-30)
    return torch.softmax((normal(8, 100).to(LOW).float() - noise.log()) / 0.5, -1).to(LOW)


def tied_ranking() -> torch.Tensor:
    """bfloat16 scores tie, so their order differs; the scores that come back do not."""
    return uniform(500).to(LOW).topk(20).values


def near_tie() -> torch.Tensor:
    return torch.tensor([[1.0, 10.01, 10.02, -3.0], [4.001, 0.0, 4.0, 1.0]]).to(LOW).argmax(-1)


def fast_decay() -> torch.Tensor:
    """A selective scan: quick channels decay to zero, state and steps are float32."""
    x = normal(1, 16, 4).to(LOW)
    state, rates = torch.zeros(4, 8), -torch.arange(1.0, 9.0)
    for step in functional.softplus(x[0].float()):
        state = torch.exp(4 * step[:, None] * rates) * state + step[:, None]
    return state.sum(-1).to(LOW)


def cut_to_integers() -> tuple[torch.Tensor, ...]:
    """Real numbers of a thousand and more that are cut off or rounded to integers: codes, bins, draws, cells."""
    x = 3000 * uniform(400)
    low, drawn = x.to(LOW), torch.rand(64, generator=torch.Generator().manual_seed(0), dtype=LOW)
    codes = (low / (low.amax() / 32_000)).round().to(torch.int16), (x.half() / 0.37).to(torch.int32)
    bins = (low.clamp_min(1).log() * 300).long(), (x.to(LOW) // 2).long()
    draws = (drawn * 768).long(), (drawn[0] * 1000).int(), (x.half() + 0.5).long(), (low + low.flip(0)).int()
    return tuple(each.double() for each in (*codes, *bins, *draws))


def bytes_and_labels() -> tuple[torch.Tensor, ...]:
    """Whole numbers that the format holds, to integers and back."""
    grey, labels = torch.arange(256.0), torch.tensor([0.0, 7.0, 2048.0, 100.0, -100.0])
    return (grey.to(LOW).to(torch.uint8).double(), ((grey / 255).half() * 255).round().to(torch.uint8).double(), labels.half().long().double())


IDIOMS = (softmax_tails, large_but_safe, constant_rows, masked_logarithm, clipped, exact_differences, two_halves, residual_codes, straight_through,
          scaled_fp8, exponential_noise, tied_ranking, near_tie, fast_decay, cut_to_integers, bytes_and_labels)  # fmt: skip
