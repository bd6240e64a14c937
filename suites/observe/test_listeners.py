"""Who listens is told what long work is doing; nobody else is, and nothing is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import precheck
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of
from precheck.observe import listeners
from precheck.observe.listeners import doing, telling
from precheck.selftests.checks import selftested


class Overflows(nn.Module):
    """Out of float16's range."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x * 1e5) / 1e5


def test_blocks_inside_blocks_are_told_together_and_only_the_end_of_all() -> None:
    told: list[str] = []
    with telling(told.append):
        with doing("outer"):
            with doing("first"):
                pass
            with doing("second"):
                pass
        with doing("next"):
            pass
    assert told == ["outer", "outer: first", "outer: second", "", "next", ""]


def test_what_breaks_off_has_ended() -> None:
    told: list[str] = []
    with telling(told.append):
        with pytest.raises(ZeroDivisionError), doing("outer"), doing("inner"):
            raise ZeroDivisionError
        with doing("next"):
            pass
    assert told == ["outer", "outer: inner", "", "next", ""]


def test_after_the_block_nobody_listens() -> None:
    told: list[str] = []
    with telling(told.append):
        pass
    with doing("work"):
        pass
    assert told == []


def test_a_golden_tells_of_each_noise_run(tmp_path: Path) -> None:
    told: list[str] = []
    with telling(told.append):
        refresh(tmp_path / "it.safetensors", job_of(nn.Linear(8, 8), torch.ones(2, 8)))
    assert told == ["recording the golden", *(f"recording the golden: noise run {number} of 4" for number in (1, 2, 3, 4)), ""]


def test_a_measurement_tells_of_noise_runs_and_a_remedy_of_its_trials() -> None:
    told: list[str] = []
    with telling(told.append):
        assert precheck.measure(Overflows(), torch.ones(2, 8), precision="16-mixed").errors
    words = ["looking at every op", "noise run 1 of 2", "noise run 2 of 2", "running the model under 16-mixed", "running the model as a reference"]
    assert list(dict.fromkeys(each.partition(":")[0] for each in told if each)) == words
    told.clear()
    with telling(told.append):
        found = precheck.remedy(Overflows(), torch.ones(2, 8), precision="16-mixed")
    assert found is not None
    trials = [each.partition(",")[2] for each in told if each.startswith("looking for a remedy, trial") and ":" not in each]
    assert trials == [f" trial {number} of at most 24" for number in range(1, found.runs + 1)]


def test_a_long_run_tells_how_far_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "SILENCE", 0.0)
    told: list[str] = []
    with telling(told.append):
        precheck.measure(nn.Linear(8, 8), torch.ones(2, 8), precision="bf16-true")
    assert "looking at every op, at op 1" in told
    assert any(each.startswith("noise run 1 of 2, at op ") for each in told)
    assert told[-1] == ""


def test_a_run_in_which_nobody_waits_tells_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "SILENCE", 3600.0)
    told: list[str] = []
    with telling(told.append):
        precheck.measure(nn.Linear(8, 8), torch.ones(2, 8), precision="bf16-true")
    assert not any(", at op" in each for each in told)


def test_a_self_test_tells_of_each_fault(tmp_path: Path) -> None:
    model, inputs, golden, told = nn.Linear(8, 8), torch.randn(4, 8), tmp_path / "it.safetensors", list[str]()
    refresh(golden, job_of(model, inputs))
    with telling(told.append):
        outcomes = selftested(model, inputs, golden=golden, precision="bf16-true")
    outermost = list(dict.fromkeys(each.partition(":")[0] for each in told if each))
    assert outermost == ["self-test, what the check allows", *(f"self-test, fault {n} of 7, {each.fault}" for n, each in enumerate(outcomes, 1))]


def test_a_script_hears_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    precheck.measure(Overflows(), torch.ones(2, 8), precision="16-mixed")
    precheck.remedy(Overflows(), torch.ones(2, 8), precision="16-mixed")
    refresh(tmp_path / "it.safetensors", job_of(nn.Linear(8, 8), torch.ones(2, 8)))
    assert capfd.readouterr() == ("", "")
