"""One input judged: what it costs, what it is rounded to, and how near it came."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hazards import NarrowNorm, WideNorm

from precheck.formats import BF16, FP16
from precheck.input_search.trials import Trials
from precheck.measurement import job_of
from precheck.observe.recording.range_use import Reach
from precheck.precisions import resolve


class Counting(WideNorm):
    runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counting.runs += 1
        return super().forward(x)


def trials(model: Any, precision: str = "16-true") -> Trials:
    return Trials(job_of(model, None), resolve(precision))


def test_an_input_that_breaks_nothing_obvious_costs_two_runs_and_an_equal_one_none() -> None:
    tried, x = trials(Counting()), torch.ones(2, 32)
    Counting.runs = 0
    first = tried.verdict(x)
    assert first.fault is None
    assert Counting.runs == 2
    assert tried.verdict(x.clone()) is first
    assert Counting.runs == 2
    tried.verdict(x.half().float() * 2)
    assert Counting.runs == 4


def test_the_layout_in_memory_is_part_of_an_input() -> None:
    tried, x = trials(WideNorm()), torch.ones(32, 32)
    assert tried.verdict(x) is not tried.verdict(x.t().contiguous().t())
    assert not trials(torch.nn.Linear(1, 2)).verdict(torch.zeros(1, 2)[:, ::2]).why  # contiguous, with a stride of two


def test_reach_and_drift_say_how_near_it_came() -> None:
    near, far = (trials(NarrowNorm()).verdict(torch.full((1, 32), size)) for size in (128.0, 2.0))
    assert near.reach == pytest.approx(math.log2(128**2 / 65504))  # the square, inside the module
    assert far.reach == pytest.approx(math.log2(2**2 / 65504))
    assert trials(NarrowNorm()).verdict(torch.full((1, 32), 2.0**-7)).drift > near.drift  # where eps and the square round away


def test_from_the_first_fault_on_only_that_is_one() -> None:
    tried = trials(torch.nn.Sequential(NarrowNorm(), torch.nn.Identity(), NarrowNorm()))
    first = tried.verdict(torch.full((1, 32), 300.0)).fault
    assert first is not None
    assert first.module == "0"
    assert tried.verdict(torch.full((1, 32), 400.0)).fault is not None

    other = Trials(tried.job, tried.precision)
    other.fault = first
    object.__setattr__(other.fault, "module", "2")
    assert other.verdict(torch.full((1, 32), 300.0)).fault is None


def test_inputs_are_stored_as_the_precision_stores_them() -> None:
    x, ids = torch.tensor([0.1, 1e-9]), torch.arange(3)
    stored = trials(WideNorm()).stored((x, ids))
    assert torch.equal(stored[0], x.half().float())
    assert torch.equal(stored[1], ids)
    assert trials(WideNorm(), "16-mixed").stored(x) is x  # autocast casts where it is needed, which is the model's doing
    assert trials(WideNorm()).stored(torch.tensor([1e5, 0.0])) is None
    mask = torch.tensor([0.0, torch.finfo(torch.float32).min])
    assert torch.equal(trials(WideNorm()).stored(mask), mask)  # the fill of a mask need not be held
    infinite = torch.tensor([1.0, -math.inf])
    assert torch.equal(trials(WideNorm()).stored(infinite), infinite)


def test_reach_is_the_greatest_result_of_any_op_in_that_format() -> None:
    x = torch.tensor([2.0, -3.0], dtype=torch.float16)
    with Reach(FP16) as reach, Reach(BF16) as other:
        (x * 100 * 10) / 1e4
        x.float() * 1e6
    assert reach.greatest == 3000
    assert other.bits == -math.inf


def test_what_lies_at_the_end_of_the_format_or_beyond_is_left_out_and_nothing_changes() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float16)
    with Reach(FP16) as reach:
        result = torch.stack([x * 4, x.masked_fill(x > 1, -65504.0), x * 65504, x / 0, (x - x) / 0])
    assert reach.greatest == 8
    assert torch.equal(result[:2], torch.tensor([[4.0, 8.0], [1.0, -65504.0]], dtype=torch.float16))
