"""What the thirty-first set showed: the kernel is told in its class and in these words, and its fixed twin passes in the same trials."""

from __future__ import annotations

import pytest
import torch
from cases import need
from sets import BROKEN_BY_NAME

import precheck
from precheck.kernels import dimensions, examples, plan, trials, unmasked
from precheck.kernels.bench import Bench
from precheck.kernels.causes import Search
from precheck.kernels.running import Wishes
from precheck.kernels.states import State
from precheck.kernels.trial_result import Fault, Judged

TOLD = {
    "rows put into a cache: those of padding are put into its last row": "it is right where nothing is masked in inputs[2]",
    "codes times codes: added up in sixteen bits": "whole numbers have 16 bits and wrap around",
    "best two of each row: a place is found again by its number": "4 places of 12 for the second time in a row, where each number has one",
    "tanh: its slope is stored over its result": "output: the candidate's backward pass writes into it",
    "what a thin sample hides: one less a power": "here there are numbers of about 1e-3",
}


@pytest.mark.parametrize("name", TOLD)
def test_it_is_told_in_its_class_and_its_twin_passes(name: str) -> None:
    case = BROKEN_BY_NAME[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), trials=9)
    assert [each.rule for each in report.errors] == [case.rule], report.summary()
    assert TOLD[name] in report.errors[0].message
    report = precheck.compare_kernels(case.kernel(False), case.reference, case.inputs(), trials=4)
    assert not report.errors, report.summary()


def test_what_wraps_around_and_is_no_sum_is_rounding() -> None:
    codes = torch.arange(-40, 40, dtype=torch.int8)
    report = precheck.compare_kernels(lambda x: (x * x).int(), lambda x: x.int() * x.int(), codes, trials=3)
    assert [each.rule for each in report.errors] == ["kernel-rounding"]
    assert "whole numbers have 8 bits and wrap around" in report.errors[0].message


@pytest.mark.parametrize("drops", [True, False])
def test_a_nan_is_looked_for_behind_tiles(drops: bool) -> None:
    """Full tiles keep it."""

    def tiles(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        whole = x.shape[1] // 16 * 16
        rest = x[:, whole:]
        return torch.cat([x[:, :whole].abs(), torch.where(rest > 0, rest, torch.where(rest < 0, -rest, 0)) if drops else rest.abs()], 1)

    example = examples.read(torch.randn(2, 16, generator=torch.Generator().manual_seed(0)), None, True)[0]
    bench = Bench(tiles, torch.abs, example, dimensions.of(example), Wishes())
    tried = [trial for trial in plan.sized(bench) if trial.family == "NaN" and bench.takes(trial) is not None]
    assert {size for trial in tried for _, size in trial.sizes} == set(plan.BEHIND)
    found = [fault.kind for trial in tried if (fault := bench.judge(trial).fault) is not None]
    assert set(found) == ({"NaN lost"} if drops else set())


@pytest.mark.parametrize("wrong", [True, False])
def test_what_differs_from_call_to_call_since_memory_is_not_written_is_stale(wrong: bool) -> None:
    case = BROKEN_BY_NAME["sequences less their means: on the way back rows behind the last sequence are not written"]
    example = examples.read(case.inputs(), None, True)[0]
    bench = Bench(case.kernel(wrong), case.reference, example, dimensions.of(example), Wishes())
    unlike = Judged(trials.Trial(given=True), fault=Fault("unlike", "gradient of inputs[0]", ""))
    assert Search(bench, State(bench.candidate)).cause(unlike).rule == ("kernel-stale" if wrong else "kernel-nondeterminism")


def test_numbers_of_one_sign_are_small_too_and_keep_it() -> None:
    example = examples.read(torch.rand(40, generator=torch.Generator().manual_seed(0)) + 0.5, None, True)[0]
    (made,) = trials.trial_inputs(example, dimensions.of(example), trials.Trial(seed=4, family="small")).values
    assert 0 < float(made.min()) <= float(made.max()) < 0.002


def test_slots_of_padding_get_numbers_that_nobody_has() -> None:
    plain = list(unmasked._plain(torch.tensor([2, -1, 0, 5, -1]), ()))
    assert [each.tolist() for each in plain] == [[2, 0, 0, 5, 0], [2, 1, 0, 5, 3]]
    assert len(list(unmasked._plain(torch.tensor([2, -1, 2]), ()))) == 1
