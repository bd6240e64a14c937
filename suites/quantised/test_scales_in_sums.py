"""Scales that are multiplied by inside a sum: by an index, a blend, a contraction, or as a number that attention takes the root of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from casts_by_hand import to_float8
from float8_by_hand import E4M3, LOW, normal
from torch import nn

import precheck

Ending = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From a product of 16 tokens with codes and their scale, which is one number, to what a function with a unit makes of it."""


def product(seed: int = 1, dims: tuple[int, ...] = (0, 1)) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scale = to_float8(normal(48, 64, seed=seed), dims)
    return normal(16, 64) @ codes.float().t(), scale


def blended(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(torch.lerp(torch.zeros_like(p), p, s))


def blended_by_a_number(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(torch.lerp(torch.zeros_like(p), p, float(s)))


def added_at_places(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(16, 48)
    return nn.functional.silu(out.index_add_(0, torch.arange(16), p, alpha=float(s)))


def scaled_after_they_were_added(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(16, 48)
    return nn.functional.silu(out.index_add_(0, torch.arange(16), p) * s)


def contracted(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.einsum("pbo,p->bo", torch.stack([p, p]), torch.stack([s.flatten()[0]] * 2)), -1)


def by_a_diagonal(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(p @ torch.diag(s.flatten().repeat(48)))


def summed_after_a_stack(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(torch.stack(list(p.split(8))).sum(0) * s)


def by_attention(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(normal(1, 4, 48), p[None], normal(1, 16, 48, seed=3), scale=float(s) / 8)


ENDINGS = (blended, blended_by_a_number, added_at_places, scaled_after_they_were_added, contracted, by_a_diagonal, summed_after_a_stack, by_attention)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
def test_a_scale_that_is_multiplied_by_in_a_sum_counts(ending: Ending) -> None:
    with precheck.watch() as report:
        ending(*product()).to(LOW)
    assert not report.findings


@pytest.mark.parametrize("ending", [each for each in ENDINGS if each is not by_attention], ids=lambda ending: ending.__name__)
def test_a_scale_of_one_in_its_place_is_found(ending: Ending) -> None:
    with precheck.watch() as report:
        p, _ = product()
        ending(p, torch.ones(1, 1)).to(LOW)
    assert report.errors[0].rule == "wrong-scale"
    assert "a scale is missing here, that of the codes of" in report.errors[0].message


def test_a_scale_that_is_written_to_a_log_takes_nothing_out() -> None:
    """The program has the scale as a number, and multiplies by none."""
    with precheck.watch() as report:
        p, s = product()
        print(float(s))
        nn.functional.silu(p).to(LOW)
    assert report.errors[0].rule == "wrong-scale"


def test_scales_of_channels_are_right_only_for_their_own_terms() -> None:
    """Four parts of a product have a scale each, which a contraction multiplies by: in their order, or in another one."""
    for order in ([0, 1, 2, 3], [1, 0, 3, 2]):
        with precheck.watch() as report:
            made = [to_float8(normal(48, 16, seed=part) * 4.0**part, (0, 1)) for part in range(4)]
            parts = torch.stack([normal(16, 16, seed=part + 9) @ codes.float().t() for part, (codes, _) in enumerate(made)])
            scales = torch.stack([scale.flatten()[0] for _, scale in made])[torch.tensor(order)]
            torch.softmax(torch.einsum("pbo,p->bo", parts, scales) / 8, -1).to(LOW)
        assert bool(report.errors) == (order != [0, 1, 2, 3])


def test_codes_are_mixed_under_one_scale() -> None:
    with precheck.watch() as report:
        codes, scale = to_float8(normal(48, 64, seed=1), (0, 1))
        others = (normal(48, 64, seed=3) / scale).clamp(-448, 448).to(E4M3)
        mixed = torch.lerp(normal(16, 64) @ codes.float().t(), normal(16, 64) @ others.float().t(), 0.3)
        torch.softmax(mixed * scale, -1).to(LOW)
    assert not report.findings
