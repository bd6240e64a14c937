"""Zero points that are taken out of a product by products of the input and zero points: all of them must be, in whatever parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from casts_by_hand import asymmetric
from float8_by_hand import LOW, normal
from twelfth_layers import uneven

import precheck


def quantised() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """An input of groups of columns; codes, scales and zero points of a weight."""
    codes, scale, zero = asymmetric(uneven(48, 4, 32).view(48, 128) + 0.5)
    return normal(16, 4, 32) + 0.5, codes.float(), scale[..., 0], zero[..., 0]


def half(zero: torch.Tensor, bug: bool) -> torch.Tensor:
    return zero * torch.tensor([1.0, 0.0, 1.0, 0.0]) if bug else zero


def for_each_group(bug: bool) -> torch.Tensor:
    x, codes, scale, zero = quantised()
    less = x.sum(-1)[:, None] * half(zero, bug)
    return ((torch.einsum("bgi,ogi->bog", x, codes) - less) * scale).sum(-1).to(LOW)


def in_two_parts(bug: bool) -> torch.Tensor:
    x, codes, scale, zero = quantised()
    sums, least = torch.einsum("bgi,ogi->bog", x, codes), half(zero, bug)
    first, second = ((x * (torch.arange(32) // 16 == part)).sum(-1)[:, None] * least for part in (0, 1))
    return ((sums - first - second) * scale).sum(-1).to(LOW)


def by_a_product(bug: bool) -> torch.Tensor:
    x, codes, scale, zero = quantised()
    out = x.view(16, 128) @ (codes * scale[..., None]).view(48, 128).t()
    return (out - x.sum(-1) @ (half(zero, bug) * scale).t()).to(LOW)


def group_by_group(bug: bool) -> torch.Tensor:
    x, codes, scale, zero = quantised()
    out = x.view(16, 128) @ (codes * scale[..., None]).view(48, 128).t()
    for group in range(4):
        out = out - x[:, group].sum(-1, keepdim=True) * (half(zero, bug) * scale)[:, group]
    return out.to(LOW)


def rounded_minima(bug: bool) -> torch.Tensor:
    """Zero points times scales are kept in bfloat16, as the minima of GGUF are in few bits."""
    x, codes, scale, zero = quantised()
    held = scale.to(LOW).float()
    minima = (held * half(zero, bug)).to(LOW).float()
    return (x.view(16, 128) @ (codes * held[..., None]).view(48, 128).t() - x.sum(-1) @ minima.t()).to(LOW)


def sums_in_bfloat16(bug: bool) -> torch.Tensor:
    """The sums of the input are kept in bfloat16, from which a large part is subtracted."""
    x, codes, scale, zero = quantised()
    less = x.sum(-1).to(LOW).float()[:, None] * half(zero, bug)
    return ((torch.einsum("bgi,ogi->bog", x, codes) - less) * scale).sum(-1).to(LOW)


PROGRAMS = (for_each_group, in_two_parts, by_a_product, group_by_group, rounded_minima, sums_in_bfloat16)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: str(each.__name__))
def test_zero_points_that_are_all_taken_out(program: Callable[[bool], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program(False)
    assert not report.findings


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: str(each.__name__))
def test_zero_points_of_which_half_are_left(program: Callable[[bool], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program(True)
    assert [finding.rule for finding in report.errors][:1] == ["wrong-scale"]


def test_a_bias_in_which_zero_points_have_been_folded() -> None:
    """A bias that is made of zero points beside it, and a residual."""
    with precheck.watch() as report:
        x, codes, scale, zero = quantised()
        flat = x.view(16, 128)
        out = flat @ (codes * scale[..., None]).view(48, 128).t()
        out = out - x.sum(-1) @ (zero * scale).t() + normal(48, seed=5)
        (torch.tanh(out) + normal(16, 48, seed=6)).to(LOW)
    assert not report.findings
