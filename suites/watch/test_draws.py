"""Random numbers of a low format: what stands for a step of it is one number, and one in 512 of bfloat16's is zero."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bugs.solvers import allowed_draws
from torch import nn

import precheck
from precheck.findings import Report

LOW, HALF, WIDE = torch.bfloat16, torch.float16, torch.float32
Program = Callable[[torch.dtype], Any]


def seen(code: Callable[[], Any]) -> Report:
    torch.manual_seed(0)
    with precheck.watch() as report:
        result = code()
    del result
    return report


def box_muller(dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers from uniform ones, none beyond 3.4 in bfloat16."""
    radius = (-2 * (1 - torch.rand(100_000, dtype=dtype)).log()).sqrt()
    return radius * (2 * math.pi * torch.rand(100_000, dtype=dtype)).cos()


def exponentials(dtype: torch.dtype) -> torch.Tensor:
    return -torch.rand(10_000, dtype=dtype).log()


def decays(dtype: torch.dtype) -> torch.Tensor:
    """What a state space starts from."""
    return torch.empty(4096, dtype=dtype).uniform_(0, 16).log()


def times(dtype: torch.dtype) -> torch.Tensor:
    return torch.logit(torch.rand(4096, dtype=dtype))


@pytest.mark.parametrize("dtype", [LOW, HALF])
def test_a_tail_that_the_format_cuts_off(dtype: torch.dtype) -> None:
    finding = seen(lambda: box_muller(dtype)).errors[0]
    assert (finding.rule, finding.op) == ("amplified-rounding", "aten.rand.default")
    if dtype is HALF and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
        return  # that draw's logarithm is off by more near 1 than the tail is short of, and that is said first
    assert re.search(r"aten\.log\.default at .* makes numbers up to \d\.\d+ of it in b?float16", finding.message)
    assert re.search(r"in float32 \d+ of 100000 numbers lie beyond that, up to 1\d\.", finding.message)
    assert finding.measured is not None
    assert finding.limit == 8
    assert finding.measured > 8
    assert not seen(lambda: box_muller(WIDE)).findings
    assert not seen(lambda: box_muller(WIDE).to(dtype)).findings, "drawn wide and stored low"


@pytest.mark.parametrize("dtype", [LOW, HALF])
@pytest.mark.parametrize("program", [exponentials, decays, times])
def test_a_zero_that_is_drawn_has_a_logarithm_in_float32(program: Program, dtype: torch.dtype) -> None:
    finding = seen(lambda: program(dtype)).errors[0]
    assert finding.rule == "underflow"
    assert finding.op in ("aten.rand.default", "aten.uniform_.default")
    assert re.search(r"in the reference became zero here; aten\.log(it)?\.default at .* made Inf of it", finding.message)
    assert not seen(lambda: program(WIDE)).findings


@pytest.mark.parametrize("dtype", [LOW, HALF])
def test_a_tail_that_a_squashing_function_cuts_off_is_not_the_draws(dtype: torch.dtype) -> None:
    """tanh rounds all large numbers to one, however finely they were drawn."""
    report = seen(lambda: (1.0001 * (3 + 6 * torch.rand(1000, dtype=dtype)).tanh()).atanh())
    assert not [finding for finding in report.findings if "tail of this draw" in finding.message]


def dropped(dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(64, 64).to(dtype)
    return x * (torch.rand_like(x) < 0.9) / 0.9


def jittered(dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(64, 64).to(dtype)
    return (x * torch.empty_like(x).uniform_(0.99, 1.01) + 0.1 * (2 * torch.rand_like(x) - 1)).softmax(-1)


def whole_layers(dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(64, 8).to(dtype)
    return x * (0.9 + torch.rand(64, 1, dtype=dtype)).floor_() / 0.9


def interpolated(dtype: torch.dtype) -> torch.Tensor:
    t, x, noise = torch.rand(64, 1, dtype=dtype), torch.randn(64, 64).to(dtype), torch.randn(64, 64).to(dtype)
    return (1 - t) * x + t * noise


def initialised(dtype: torch.dtype) -> torch.Tensor:
    layer = nn.Linear(64, 64, dtype=dtype)
    return layer(torch.randn(8, 64).to(dtype)).float().square().mean()


def kept_off(dtype: torch.dtype) -> torch.Tensor:
    """A range that keeps off the pole."""
    return torch.empty(100_000, dtype=dtype).uniform_(1, 16).log()


@pytest.mark.parametrize("dtype", [LOW, HALF])
@pytest.mark.parametrize("program", [dropped, jittered, whole_layers, interpolated, initialised, kept_off])
def test_draws_that_need_no_more_than_their_format_has(program: Program, dtype: torch.dtype) -> None:
    assert not seen(lambda: program(dtype)).findings


def test_watching_draws_the_same_numbers() -> None:
    torch.manual_seed(0)
    plain, after = box_muller(LOW), torch.get_rng_state()
    torch.manual_seed(0)
    with precheck.watch():
        watched = box_muller(LOW)
    assert torch.equal(plain, watched)
    assert torch.equal(after, torch.get_rng_state())


def test_a_token_that_has_no_probability() -> None:
    report = seen(lambda: allowed_draws(HALF))
    assert report.errors[0].rule == "underflow"
    assert re.search(r"\d+ of 48 draws chose an outcome of probability 0: some of the random numbers are zero in float16", report.errors[0].message)
    assert not seen(lambda: allowed_draws(WIDE)).findings


def looked_up(dtype: torch.dtype, *, added_up: torch.dtype | None = None, led: bool = False, tokens: int = 1000) -> torch.Tensor:
    """Draws by the inverse of a distribution function, as of tokens, particles or positions on a ray."""
    chances = torch.softmax(torch.randn(8, tokens), -1).to(dtype)
    sums = chances.cumsum(-1, dtype=added_up or dtype)
    sums = torch.cat((torch.zeros(8, 1, dtype=sums.dtype), sums), -1) if led else sums
    return torch.searchsorted(sums, torch.rand(8, 64).to(sums.dtype), right=led)


@pytest.mark.parametrize("led", [False, True])
@pytest.mark.parametrize("dtype", [LOW, HALF])
def test_draws_by_a_sum_whose_steps_have_no_width(dtype: torch.dtype, led: bool) -> None:
    finding = seen(lambda: looked_up(dtype, led=led)).errors[0]
    assert (finding.rule, finding.op) == ("decision-flip", "aten.cumsum.default")
    told = re.search(r"draws from this cumulative sum, and (\S+)% of its draws differ \(limit (\S+)%\): (\d+) of 80\d\d outcomes", finding.message)
    assert told is not None, finding.message
    assert float(told[1]) > float(told[2])
    assert int(told[3]) > 100
    assert not seen(lambda: looked_up(WIDE, led=led)).findings


@pytest.mark.parametrize("dtype", [LOW, HALF])
def test_probabilities_that_are_added_up_wide_or_are_few(dtype: torch.dtype) -> None:
    assert not seen(lambda: looked_up(dtype, added_up=WIDE)).findings
    assert not seen(lambda: looked_up(dtype, tokens=8)).findings


def test_bins_are_no_sums() -> None:
    def binned() -> torch.Tensor:
        return torch.searchsorted(torch.linspace(-3, 3, 300).to(LOW), torch.randn(512).to(LOW))

    assert not [finding for finding in seen(binned).errors if "cumulative" in finding.message]
