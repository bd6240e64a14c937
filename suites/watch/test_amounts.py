"""Whole numbers that are sums of products of integers: amounts, of which one rounding is one rounding. Positions in the same place are none."""

from __future__ import annotations

import torch

import precheck
from precheck.findings import Report


def integers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-60, 60, shape, generator=torch.Generator().manual_seed(seed))


def cast(*, products: bool, overwritten: bool = False) -> Report:
    """Sums of up to some thousands in half precision, times a scale."""
    with precheck.watch() as report:
        positions = 2049 + 7 * torch.arange(128).view(8, 16)
        numbers = integers(8, 64) @ (integers(64, 16, seed=1) // 8) if products else positions
        if overwritten:
            numbers.copy_(positions)
        report.facts["result"] = float((numbers.half() * 0.02).float().sin().sum())
    return report


def test_sums_of_products_of_integers_are_amounts() -> None:
    assert not cast(products=True).errors


def test_positions_are_none_nor_are_integers_that_were_written_over_such_sums() -> None:
    for report in (cast(products=False), cast(products=True, overwritten=True)):
        (finding,) = report.errors
        assert finding.rule == "integer-rounding"
        assert "in float16, which holds every whole number only up to 2048" in finding.message


def durations(*, counted: bool) -> Report:
    """Days that are rounded: as years of cover by a rate of a network, by which rows are sorted, or as day numbers that are sorted themselves."""
    days = 30 + 37 * torch.arange(48) % 331
    with precheck.watch() as report:
        cover = days.bfloat16().float() / 365.25
        rate = torch.linspace(-1, 1, 48).exp().bfloat16().float().sqrt().bfloat16().float()
        order = (cover if counted else cover * rate).argsort()
        report.facts["result"] = float((torch.linspace(1, 2, 48)[order] * (cover * rate)).sum())
    return report


def test_an_order_of_amounts_by_factors_that_are_off_by_as_much_tells_nothing_of_the_amounts() -> None:
    assert not durations(counted=False).errors
    (finding,) = durations(counted=True).errors
    assert finding.rule == "integer-rounding"


def digits(numbers: torch.Tensor, *, whole: bool) -> Report:
    """The binary digits of places, or the places halved again and again."""
    with precheck.watch() as report:
        quotients = numbers.bfloat16().unsqueeze(-1) // 2 ** torch.arange(8)
        report.facts["result"] = float((quotients / 4096 if whole else quotients % 2).float().mean(0).square().sum())
    return report


def test_digits_of_rounded_places_are_wrong() -> None:
    """The shadow takes over the quotients from the run, so that no remainder of them shows an error."""
    places = torch.tensor([37, 1_211, 2_753, 3_391, 3_394, 3_397])
    (finding,) = digits(places, whole=False).errors
    assert finding.rule == "integer-rounding"
    assert "whole numbers up to 3397 in bfloat16" in finding.message
    assert not digits(places, whole=True).errors, "quotients of amounts are amounts"
    assert not digits(places // 16 * 16, whole=False).errors, "bfloat16 holds these"


def waits(clock: torch.Tensor, *, late: bool) -> Report:
    with precheck.watch() as report:
        clock = clock if late else clock.bfloat16()
        wait = (clock[1:] - clock[:-1]).bfloat16()
        report.facts["result"] = float(wait.float().log1p().square().mean())
    return report


def test_integers_beyond_those_of_float32_are_whole_by_their_type() -> None:
    clock = 1_700_000_000 + (torch.arange(1, 40) * 7919 % 900).cumsum(0)
    finding = waits(clock, late=False).errors[0]
    assert (finding.rule, finding.op) == ("integer-rounding", "aten._to_copy.default")
    assert not waits(clock, late=True).errors, "differences are amounts"
