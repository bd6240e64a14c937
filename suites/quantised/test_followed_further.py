"""Codes that are followed further: under factors that are known by their numbers alone, through buffers of scales, corrections for every element,
integers of the next layer and tables of rows. Each program takes `bug`, and its line at fault is marked; what takes nothing is healthy."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from casts_by_hand import asymmetric, to_float8, to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from frozen import culprits, watched
from torch import nn
from twelfth_layers import uneven

import precheck


def learned_step_divided_twice(bug: bool) -> torch.Tensor:
    w, step = normal(32, 64, seed=1), nn.Parameter(torch.full((1,), 0.02))
    y = normal(16, 64) @ torch.round(w / step).clamp(-127, 127).t()
    return (y / step if bug else y * step).sigmoid().to(LOW)  # culprit: divided


def root_of_the_mean_square_divided_twice(bug: bool) -> torch.Tensor:
    w = channels()
    root = w.square().mean().sqrt() / 31
    codes = torch.round(w / root).clamp(-127, 127)
    y = normal(16, 64) @ codes.t()
    return nn.functional.silu(y / root if bug else y * root).to(LOW)  # culprit: divided


def scales_of_other_pages(bug: bool) -> torch.Tensor:
    codes, scale = to_int8(uneven(8, 4, 32), -1)
    held, order = torch.zeros(12, 4, 1), torch.tensor([7, 2, 11, 0, 4, 9, 1, 5])
    for page, rows in zip(order, scale, strict=True):
        held[page] = rows
    read = held[order.flip(0) if bug else order]
    return (normal(16, 128) @ (codes.float() * read).view(8, 128).t()).to(LOW)  # culprit: other-pages


def positive_integers_of_the_next_layer(bug: bool) -> torch.Tensor:
    """A ReLU is the lower bound of the integers of the next layer."""
    x, w, v = normal(16, 64), channels() / 8, normal(24, 64, seed=2) / 6
    (qx, sx), (qw, sw), (qv, sv) = to_int8(x, (0, 1)), to_int8(w, 1), to_int8(v, 1)
    top = torch.relu(x @ w.t()).amax() / 255
    hidden = torch.round((qx.float() @ qw.float().t()) * (sx * sw.t() / top)).clamp(0, 255)
    y = hidden @ qv.float().t() * sv.t()
    return nn.functional.gelu(y / top if bug else y * top).to(LOW)  # culprit: next-layer


def centres_of_the_next_row(bug: bool) -> torch.Tensor:
    w = normal(16, 96, seed=3) + 4 * normal(16, 1, seed=4)
    tables = torch.quantile(w, torch.linspace(0, 1, 32), 1).t().contiguous()
    places = (w.unsqueeze(-1) - tables.unsqueeze(1)).square().argmin(-1)
    used = tables.roll(1, 0) if bug else tables
    return used.gather(1, places).to(LOW)  # culprit: next-row


FAULTS = (learned_step_divided_twice, root_of_the_mean_square_divided_twice, scales_of_other_pages,
          positive_integers_of_the_next_layer, centres_of_the_next_row)  # fmt: skip


@pytest.mark.parametrize("program", FAULTS)
def test_a_fault_is_found_and_its_twin_is_not(program: Callable[[bool], torch.Tensor]) -> None:
    errors = watched(program, True).errors
    assert errors
    assert int(errors[0].source.rpartition(":")[2]) in culprits(sys.modules[__name__])
    assert not watched(program, False).findings


def corrections_for_both_operands() -> torch.Tensor:
    (qx, sx, zx), (qw, sw, zw) = (tuple(part[:, 0] for part in asymmetric(t, 64)) for t in (normal(16, 64) + 1, channels() + 0.5))
    qx, qw = qx.float(), qw.float()
    y = qx @ qw.t() - zx * qw.sum(1) - qx.sum(1, keepdim=True) * zw.t() + 64 * (zx * zw.t())
    return (y * sx * sw.t()).to(LOW)


def scale_and_inverse_in_one_tensor() -> torch.Tensor:
    """Where a tensor holds a scale and its inverse, each is what its numbers are."""
    q, k, held = 4 * normal(8, 32), 4 * normal(24, 32, seed=4), torch.tensor([28.0, 1 / 28])
    codes, other = ((t * held[0]).clamp(-448, 448).to(E4M3) for t in (q, k))
    scores = (codes.float() * held[1]) @ other.float().t() * held[1]
    return torch.softmax(scores / 32**0.5, -1).to(LOW)


def product_of_calibrated_scales() -> torch.Tensor:
    """The factor of attention has been made of calibrated scales before anything is rounded."""
    q, k, scales = 4 * normal(8, 32), 4 * normal(24, 32, seed=4), torch.tensor([0.03, 0.05])
    factor = scales[0] * scales[1] / 32**0.5
    codes, other = ((t / s).clamp(-448, 448).to(E4M3) for t, s in ((q, scales[0]), (k, scales[1])))
    return torch.softmax(codes.float() @ other.float().t() * factor, -1).to(LOW)


def gain_folded_into_a_learned_step() -> torch.Tensor:
    step, gain = nn.Parameter(torch.full((64,), 0.05)), 1 + 0.5 * normal(64, seed=3)
    codes = torch.round(normal(16, 64) / step).clamp(-127, 127)
    return (codes * (step * gain)).to(LOW)


def one_step_for_two_tensors() -> torch.Tensor:
    step = torch.tensor(0.06)
    x, w = (torch.round(t / step).clamp(-127, 127) for t in (normal(16, 64), normal(32, 64, seed=1)))
    return nn.functional.gelu(x @ w.t() * step * step / 8).to(LOW)


def square_of_codes() -> torch.Tensor:
    step = torch.tensor(0.06)
    codes = torch.round(normal(16, 64) / step)
    return ((codes * codes).sum(-1) * step * step).sqrt().to(LOW)


def integers_with_a_zero_point_and_a_rest() -> torch.Tensor:
    """Integers of the next layer have a zero point, and what was there before is added to them in their unit."""
    x, w = normal(16, 64), channels() / 8
    (qx, sx), (qw, sw) = to_int8(x, 1), to_int8(w, 1)
    y = x @ w.t()
    top, zero = (y.amax() - y.amin()) / 255, torch.round(-y.amin() / ((y.amax() - y.amin()) / 255))
    hidden = (torch.round((qx.float() @ qw.float().t()) * (sx * sw.t() / top)) + zero).clamp(0, 255)
    return nn.functional.gelu((hidden - zero) * top + x).to(LOW)


def three_layers_in_integers() -> torch.Tensor:
    """Greatest magnitudes are those of a calibration with other numbers."""
    x, held = normal(32, 48), [normal(48, 48, seed=seed) / 5 for seed in (1, 2, 3)]
    tops, t = [], 1.2 * normal(64, 48, seed=9)
    for w in held:
        tops.append(t.abs().amax() / 127)
        t = torch.relu(t @ w.t())
    codes = torch.round(x / tops[0]).clamp(-128, 127)
    for place, w in enumerate(held):
        qw, sw = to_int8(w, 1)
        sums = codes @ qw.float().t()
        if place == 2:
            return (sums * (sw.t() * tops[2])).to(LOW)
        codes = torch.round(sums * (sw.t() * tops[place] / tops[place + 1])).clamp(0, 127)
    raise AssertionError


def nearest_time_of_a_grid() -> torch.Tensor:
    """Values of a function at the nearest of some times."""
    times = torch.linspace(0, 1, 24)
    places = (torch.rand(64, generator=torch.Generator().manual_seed(1))[:, None] - times).abs().argmin(-1)
    return torch.cat([torch.sin(6 * times)[places], times.square()[places]]).to(LOW)


def pairwise_distances() -> torch.Tensor:
    one, other = normal(32, 1), normal(16, seed=2)
    apart = (one - other).abs()
    return torch.cat([apart.amin(-1), other[apart.argmax(-1)], one[apart.argmin(0), 0]]).to(LOW)


def nearest_of_those_allowed() -> torch.Tensor:
    """Half of the numbers of a table may not be taken."""
    times, masked = torch.linspace(0, 1, 24), torch.arange(24) % 2 == 0
    apart = (torch.rand(64, generator=torch.Generator().manual_seed(1))[:, None] - times).abs()
    return times[apart.masked_fill(masked, 9.0).argmin(-1)].to(LOW)


def places_sorted_and_put_back() -> torch.Tensor:
    w = normal(16, 96, seed=3)
    tables = torch.quantile(w, torch.linspace(0, 1, 16), 1).t().contiguous()
    places = (w.unsqueeze(-1) - tables.unsqueeze(1)).abs().argmin(-1)
    order = torch.argsort(w.abs().amax(1))
    packed = places[order].to(torch.uint8)
    return tables.gather(1, packed[torch.argsort(order)].long()).to(LOW)


def centres_that_move() -> torch.Tensor:
    """Centres become the means of what is nearest to them, and are read by the places that they had before."""
    w, table = normal(512, seed=3), torch.linspace(-2.5, 2.5, 8)
    for _ in range(4):
        places = (w[:, None] - table).abs().argmin(-1)
        table = torch.zeros(8).index_add_(0, places, w) / torch.bincount(places, minlength=8).clamp(min=1)
    return table[places].to(LOW)


def greatest_magnitudes_in_a_buffer() -> torch.Tensor:
    """A history in a buffer of zeros, of which the greatest is taken."""
    history, made = torch.zeros(4), []
    for step in range(4):
        x = normal(16, 64, seed=step)
        history[step] = x.abs().amax()
        codes, scale = (x / (history.amax() / 448)).clamp(-448, 448).to(E4M3), history.amax() / 448
        made.append(codes.float() * scale)
    return torch.cat(made).to(LOW)


def rows_of_a_buffer_of_scales() -> torch.Tensor:
    """Some rows have been written with codes and scales, and others are read in full."""
    k, q = uneven(24, 32, seed=4), normal(8, 32)
    codes, scale = to_float8(k, 1)
    held = torch.ones(32, 1).index_put((torch.arange(24) + 8,), scale)
    keys = torch.cat([k[:2], codes[2:].float() * held[10:]])
    return torch.softmax(q @ keys.t() / 6, -1).to(LOW)


HEALTHY = (corrections_for_both_operands, scale_and_inverse_in_one_tensor, product_of_calibrated_scales, gain_folded_into_a_learned_step,
           one_step_for_two_tensors, square_of_codes, integers_with_a_zero_point_and_a_rest, three_layers_in_integers, nearest_time_of_a_grid,
           pairwise_distances, nearest_of_those_allowed, places_sorted_and_put_back, centres_that_move, greatest_magnitudes_in_a_buffer,
           rows_of_a_buffer_of_scales)  # fmt: skip


@pytest.mark.parametrize("program", HEALTHY)
def test_healthy_programs_are_left_in_peace(program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program()
    assert not report.findings
