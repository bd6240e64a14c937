"""Healthy programs that divide and multiply by factors for each channel, as smoothing, equalisation and normalisation do. None is accused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from casts_by_hand import to_int8
from float8_by_hand import LOW, normal
from torch import nn

import precheck


def factors(seed: int = 3) -> torch.Tensor:
    return torch.exp2(1.5 * normal(32, seed=seed))


def gain() -> torch.Tensor:
    return 1 + 0.3 * normal(32, seed=4)


def weight(rows: int = 48, seed: int = 1) -> torch.Tensor:
    return normal(rows, 32, seed=seed) / 6


def eight_bits(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    codes, scale = to_int8(w, 1)
    return h @ (codes.float() * scale).t()


def norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return nn.functional.rms_norm(x, (32,), scale)


def statistics_of_a_smoothed_input() -> torch.Tensor:
    """What a layer reads is also logged: its outliers are counted, its greatest magnitude and its norm are taken."""
    f = factors()
    h = norm(normal(16, 32), gain() / f)
    log = torch.stack([h.abs().amax(), (h.abs() > 3).float().mean(), h.norm()])
    return torch.cat([eight_bits(h, weight() * f).flatten(), log]).to(LOW)


def batch_norm_in_a_layer() -> torch.Tensor:
    """A batch norm behind a layer is folded into its weight and bias, and a residual is added."""
    x, w, bias, mean, spread = normal(16, 32), weight(32), normal(32, seed=6), normal(32, seed=7), 0.5 + normal(32, seed=8).abs()
    scale = gain() / spread
    return (x + eight_bits(x, w * scale[:, None]) + (bias - mean) * scale + normal(32, seed=9)).to(LOW)


def layers_equalised() -> torch.Tensor:
    """Rows of one layer and its bias are divided, columns of the next one are multiplied. A ReLU between them lets the factors pass."""
    f, bias = factors(), normal(32, seed=6)
    h = torch.relu(eight_bits(normal(16, 32), weight(32) / f[:, None]) + bias / f)
    return eight_bits(h, weight(seed=2) * f).to(LOW)


def series_normalised_and_back() -> torch.Tensor:
    """Each series is divided by its spread before the layers, and multiplied by it behind them."""
    x = normal(16, 32) * factors() + 3
    mean, spread = x.mean(0), x.std(0)
    h = (x - mean) / spread
    return ((h + eight_bits(torch.tanh(eight_bits(h, weight())), normal(32, 48, seed=2) / 7)) * spread + mean).to(LOW)


def magnitudes_of_an_adapter() -> torch.Tensor:
    """DoRA: a quantised weight and its update, by learned magnitudes over the norms of rows."""
    x, base, update = normal(16, 32), weight(32), normal(32, 4, seed=2) @ normal(4, 32, seed=5) / 20
    codes, scale = to_int8(base, 1)
    dense = codes.float() * scale
    ratio = (1 + 0.1 * normal(32, seed=6)) * base.norm(dim=1) / (dense + update).norm(dim=1)
    return ((x @ dense.t()) * ratio + (x @ update.t()) * ratio).to(LOW)


def search_over_exponents() -> torch.Tensor:
    """AWQ: several factors are tried, and the best ones go into the norm."""
    x, w = normal(16, 32) * factors(), weight()
    given, meant = x.abs().mean(0), x @ w.t()
    tried = [given.pow(each / 4).clamp(min=1e-4) for each in range(4)]
    off = [float(((x / f) @ _rounded(w * f).t() - meant).square().mean()) for f in tried]
    f = tried[off.index(min(off))]
    return (norm(x, gain() / f) @ _rounded(w * f).t()).to(LOW)


def _rounded(w: torch.Tensor) -> torch.Tensor:
    codes, scale = to_int8(w, 1)
    return codes.float() * scale


def standardised_in_the_first_layer() -> torch.Tensor:
    """Mean and spread of the features go into the first layer. The result is held against that of standardised features."""
    x, w = normal(16, 32) * factors() + 1, weight()
    mean, spread = x.mean(0), x.std(0)
    folded = w / spread
    return torch.cat([eight_bits(x, folded) - folded @ mean, eight_bits((x - mean) / spread, w)]).to(LOW)


def positions_divided_too() -> torch.Tensor:
    f, positions = factors(), normal(16, 32, seed=6)
    h = norm(normal(16, 32), gain() / f) + positions / f
    return eight_bits(h, weight() * f).to(LOW)


def residual_beside_a_smoothed_norm() -> torch.Tensor:
    f, x = factors(), normal(16, 32)
    x = x + eight_bits(norm(x, gain() / f), weight(32) * f)
    return (x + eight_bits(norm(x, gain() / factors(6)), weight(32, 2) * factors(6))).to(LOW)


def noise_before_the_rounding() -> torch.Tensor:
    """Dither is added to what was divided by the factors, and rounded with it."""
    f = factors()
    h = norm(normal(16, 32), gain()) / f
    step = h.abs().amax() / 127
    codes = torch.floor(h / step + torch.rand(16, 32, generator=torch.Generator().manual_seed(5)))
    return eight_bits(codes * step, weight() * f).to(LOW)


def rows_of_up_and_columns_of_down() -> torch.Tensor:
    """Factors pass the product with the gate, and not the function of the gate."""
    f, x = factors(), normal(16, 32)
    h = nn.functional.silu(eight_bits(x, weight(32, 5))) * eight_bits(x, weight(32) / f[:, None])
    return eight_bits(h, weight(48, 2) * f).to(LOW)


def queries_and_keys_balanced() -> torch.Tensor:
    """What queries are divided by keys are multiplied by, and a bias is added to their product."""
    f, x = factors(), normal(16, 32)
    q, k = eight_bits(x, weight(32) / f[:, None]), eight_bits(x, weight(32, 2) * f[:, None])
    return torch.softmax(q @ k.t() / 6 + normal(16, 16, seed=7), -1).to(LOW)


def router_of_a_smoothed_norm() -> torch.Tensor:
    """The router of a mixture reads the norm times the factors, two experts have them in their weights."""
    f = factors()
    h = norm(normal(16, 32), gain() / f)
    share = torch.softmax((h * f) @ weight(2, 6).t(), -1)
    return (share[:, :1] * eight_bits(h, weight() * f) + share[:, 1:] * eight_bits(h, weight(seed=2) * f)).to(LOW)


def shifted_and_scaled() -> torch.Tensor:
    """Outlier Suppression+: a shift is taken out before the factors, and comes back as a bias."""
    f, x, w = factors(), normal(16, 32) + 2, weight()
    shift = (x.amax(0) + x.amin(0)) / 2
    return (eight_bits((x - shift) / f, w * f) + w @ shift).to(LOW)


def shift_divided_by_itself() -> torch.Tensor:
    """The same shift, which is divided before it is subtracted."""
    f, x, w = factors(), normal(16, 32) + 2, weight()
    shift = (x.amax(0) + x.amin(0)) / 2
    return (eight_bits(x / f - shift / f, w * f) + w @ shift).to(LOW)


def norm_with_a_bias() -> torch.Tensor:
    """Weight and bias of a norm are divided as one tensor."""
    f = factors()
    both = torch.stack([gain(), normal(32, seed=6)]) / f
    h = nn.functional.layer_norm(normal(16, 32), (32,), both[0], both[1])
    return eight_bits(h, weight() * f).to(LOW)


def modulated_by_divided_rows() -> torch.Tensor:
    """AdaLN: the rows that make the shift are divided, those that make the scale are not."""
    f, made = factors(), weight(64, 2)
    scale, shift = (normal(16, 32, seed=5) @ torch.cat([made[:32], made[32:] / f[:, None]]).t()).split(32, 1)
    return eight_bits(norm(normal(16, 32), gain() / f) * (1 + scale) + shift, weight() * f).to(LOW)


def gradient_of_a_smoothed_layer() -> torch.Tensor:
    """Quantisation-aware training of a smoothed layer, whose input has two readers in the backward pass."""
    f, x = factors(), normal(16, 32).requires_grad_()
    h = norm(x, gain() / f)
    w = (weight() * f).requires_grad_()
    codes, scale = to_int8(w.detach(), 1)
    dense = w + (codes.float() * scale - w).detach()
    return torch.autograd.grad(((h @ dense.t()) * normal(16, 48, seed=7)).sum() + (h * f).square().sum(), x)[0].to(LOW)


def mask_of_a_smoothed_input() -> torch.Tensor:
    """Rows of padding get zeros, and a row is put in front, which is divided by the factors as well."""
    f = factors()
    h = norm(normal(16, 32), gain() / f).masked_fill(torch.arange(16)[:, None] > 11, 0.0)
    return eight_bits(torch.cat([normal(1, 32, seed=6) / f, h]), weight() * f).to(LOW)


HEALTHY = (statistics_of_a_smoothed_input, batch_norm_in_a_layer, layers_equalised, series_normalised_and_back, magnitudes_of_an_adapter,
           search_over_exponents, standardised_in_the_first_layer, positions_divided_too, residual_beside_a_smoothed_norm,
           noise_before_the_rounding, rows_of_up_and_columns_of_down, queries_and_keys_balanced, router_of_a_smoothed_norm, shifted_and_scaled,
           shift_divided_by_itself, norm_with_a_bias, modulated_by_divided_rows, gradient_of_a_smoothed_layer, mask_of_a_smoothed_input)  # fmt: skip


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: str(program.__name__))
def test_healthy_foldings_are_left_in_peace(program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program()
    assert not report.findings
