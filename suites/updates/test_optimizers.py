"""Every optimizer that torch has, in each of its implementations, against the truth: a float32 twin on the same gradients."""

from __future__ import annotations

import math
import re

import pytest
import torch
from twin import STEPS, Way, arrivals, lost, model, normal, told, trained, ways

import precheck

LOW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
EVERY = pytest.mark.parametrize("way", list(ways()), ids=str)
FORGIVEN = 0.4
"""What lost-update forgives at most, lest rounding by chance be accused (judge.updates). So below 0.5 - 0.4 it must speak, and
above 0.5 it must not; between, it may."""


def test_every_optimizer_of_torch_is_here() -> None:
    """As of torch 2.13: fourteen for dense gradients, twelve of them foreach, four fused."""
    names = [str(way) for way in ways()]
    assert {"SGD-fused", "Adam-fused", "AdamW-fused", "Adagrad-fused", "LBFGS", "Muon", "Adafactor-foreach"} <= set(names)
    assert len({way.kind for way in ways()}) >= 14


@EVERY
@LOW
@pytest.mark.parametrize("rate", [1e-5, 1e-2])
def test_an_update_is_called_lost_if_it_is(way: Way, dtype: torch.dtype, rate: float) -> None:
    """The finding is there where the twin moved and the bits did not, names such a parameter, and counts no others."""
    report, shares = arrivals(way, dtype, rate)
    found, least = lost(report), min(shares.values())
    if any(math.isnan(share) for share in shares.values()):  # Adam's epsilon of 1e-8 is zero in float16
        assert not found
        assert report.errors
        return
    assert found or least > 0.5 - FORGIVEN, f"{shares}: {report.summary()}"
    assert not found or least < 0.5, f"{shares}: {report.summary()}"
    for finding in found:
        named = re.search(r"([\w.]+): \d+% of the update .*; (\d+) of (\d+) parameters? lost", finding.message)
        assert named, finding.message
        assert shares[named[1]] < 0.5
        assert int(named[2]) <= sum(share < 0.5 for share in shares.values())
        assert int(named[3]) == len(shares)


@EVERY
@LOW
def test_float32_weights_lose_nothing(way: Way, dtype: torch.dtype) -> None:
    """Under autocast to either format, at a rate of which a low weight would see nothing."""
    own = model(torch.float32)
    before = [parameter.detach().clone() for parameter in own.parameters() if way.fits(parameter)]
    with precheck.watch(own) as report:
        trained(own, way, 1e-5, autocast=dtype)
    if way.kind is not torch.optim.LBFGS:  # whose first step is 1e-5 / |gradient|
        assert all(bool((old != new).any()) for old, new in zip(before, filter(way.fits, own.parameters()), strict=True))
    assert not told(report), report.summary()


# --- measure(), which runs the model itself ------------------------------------------------------------------------------

AWAKE = pytest.mark.parametrize("way", [way for way in ways() if way.kind in (torch.optim.SGD, torch.optim.AdamW)], ids=str)


def measured(way: Way, precision: str, rate: float) -> precheck.Report:
    target = normal(32, 16, seed=100)
    return precheck.measure(
        model(torch.float32), normal(32, 16, seed=0), precision=precision, steps=STEPS,
        loss=lambda out: (out.float() - target).square().mean(), optimizer=way.make(rate),
    )  # fmt: skip


@AWAKE
@pytest.mark.parametrize("precision", ["bf16-true", "bf16-master", "bf16-mixed", "32-true"])
def test_measure_finds_what_only_low_weights_lose(way: Way, precision: str) -> None:
    report = measured(way, precision, 1e-5)
    assert bool(lost(report)) == (precision == "bf16-true"), report.summary()
    assert {finding.rule for finding in report.errors} <= {"lost-update"}


@AWAKE
def test_measure_passes_what_arrives(way: Way) -> None:
    """At 0.02 AdamW moves a weight of one by five spacings downwards; SGD needs 2, the gradients being a hundredth.

    Torch 2.13's fused SGD moves nothing at any rate (pytorch#191763), which measure has to see.
    """
    report = measured(way, "bf16-true", 2.0 if way.kind is torch.optim.SGD else 0.02)
    assert bool(lost(report)) == (not carries_out(way)), report.summary()


def carries_out(way: Way) -> bool:
    """Whether a step of one on a weight of one leaves zero, in sixteen elements of bf16."""
    weight = torch.nn.Parameter(torch.ones(16, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    way.make(1.0)([weight]).step()
    return not bool((weight == 1.0).any())
