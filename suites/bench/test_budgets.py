"""The program behind the table: all take turns, each figure is made of what it says, and nothing fails on a clock."""

from __future__ import annotations

import json
import math
import platform
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from budgets import KINDS, RATIOS, Ratio, Result, contest, golden, results
from contenders import RIVALS
from ratios import medians
from sized import GPT, SHAPES, Trained
from startup import Children, startup
from table import BEGIN, END, Figures, into, read, table
from waiting import waits

from precheck import Report
from precheck.observe.timing.clocks import CpuClock

HERE = Path(__file__).parent


@pytest.fixture
def few_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts of pytest for each round, where a figure that is kept needs ten."""
    monkeypatch.setattr("startup.PAIRS", 1)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_ratio_is_measured_and_kept_with_what_it_is_made_of(kind: str) -> None:
    found, measured = results(0, kind, CpuClock(), device="cpu", rounds=1)
    assert [each.what for each in found] == [*(ratio.what for ratio in RATIOS), "golden: KB a tensor"]
    assert all(math.isfinite(each.value) and each.value > 0 for each in found)
    seconds, memory = measured["seconds"], measured["memory"]
    watched = found[2]
    assert watched.value == pytest.approx(seconds["watched"] / (seconds["low"] + seconds["float32"]))
    assert watched.memory == pytest.approx(memory["watched"] / (memory["low"] + memory["float32"]))
    assert memory["watched"] > memory["low"], "it holds a shadow beside what it watches"


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_timed_as_a_check_is_settled_by_the_golden_alone_and_as_a_watch_covers_all(kind: str) -> None:
    contestants = contest(0, kind, "cpu")
    for steps in (1, 4):
        report = contestants[f"check {steps}"].call()
        assert isinstance(report, Report)
        assert (report.errors, "noise_runs" in report.facts) == ([], False)
    for name in ("watched", "check at ops"):
        report = contestants[name].call()
        assert isinstance(report, Report)
        assert (report.facts["covered"], "noise_runs" in report.facts) == (1.0, False)


@pytest.mark.usefixtures("tiny")
def test_rivals_leave_nothing_behind_on_the_model_that_all_share() -> None:
    contestants = contest(0, "bf16-true", "cpu")
    alone = Trained(0, dtype=torch.bfloat16)
    for name in (*RIVALS, "watched"):
        contestants[name].call()
        alone.step()
    shared = contestants["low"].call.__self__  # type: ignore[attr-defined]
    assert all(torch.equal(one, other) for one, other in zip(shared.model.parameters(), alone.model.parameters(), strict=True))
    assert not any(module._forward_hooks for module in shared.model.modules())


@pytest.mark.parametrize("millions", list(SHAPES))
def test_a_size_is_what_it_is_called(millions: int) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in GPT(*SHAPES[millions]).parameters())
    assert count == pytest.approx(millions * 1e6, rel=0.05)


@pytest.mark.usefixtures("tiny")
def test_what_is_held_is_weights_and_moments() -> None:
    trained = Trained(0)
    weights = sum(4 * parameter.numel() for parameter in trained.model.parameters())
    assert trained.held == weights
    trained.step()
    counts = 4 * len(list(trained.model.parameters()))  # AdamW counts steps for each
    assert trained.held == 3 * weights + counts


def test_a_golden_of_forward_and_gradients_stays_within_its_bytes() -> None:
    found = golden(1, "cpu")
    assert not found.missed, f"{found.value:.3f} KB a tensor"


def test_contestants_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    class Clock:
        def seconds(self, call: object) -> float:
            assert callable(call)
            call()
            return 100.0 if len(order) <= 2 else float(len(order))

    found = medians({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2, Clock())
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": 4.5, "b": 4.5}


@pytest.mark.usefixtures("few_starts")
def test_processor_time_of_children_counts_and_sleep_does_not(tmp_path: Path) -> None:
    busy = Children().seconds(lambda: subprocess.run([sys.executable, "-c", "sum(range(5_000_000))"], check=True))
    assert busy > 0.01, "five million additions are over fifty million instructions"
    assert Children().seconds(lambda: None) == pytest.approx(0.0, abs=1e-9)
    assert startup(tmp_path, 1).what == "start of pytest where unused: seconds more"


def test_a_missed_budget_is_bold_and_no_failure() -> None:
    missed, kept = Result("check", "bf16-true", 17, 1.204, 1.15, 1.5), Result("check", "bf16-true", 1, 1.0, 1.15, 0.25)
    free, start = Result("watch", "bf16-true", 17, 3.0), Result("start", "any", 0, 0.0182, 0.02)
    figures = Figures({"device": "Toy"})
    figures.add([missed, kept, free, start])
    assert table(figures) == (
        "| | precision | budget | 1 M | 17 M |\n|---|---|---|---|---|\n"
        "| check | bf16-true | 1.15 | 1.00 (0.25) | **1.20** (1.50) |\n"
        "| watch | bf16-true | – |  | 3.00 |\n"
        "| start | any | 0.02 | 0.0182 | 0.0182 |\n"
    )


def test_figures_are_added_to_those_of_the_same_machine_and_of_no_other(tmp_path: Path) -> None:
    path, figures = tmp_path / "results.json", Figures({"device": "Toy"}, [Result("check", "bf16-true", 1, 1.5)])
    figures.write(path)
    again = read(path, {"device": "Toy"})
    again.add([Result("check", "bf16-true", 1, 1.25), Result("check", "bf16-true", 4, 1.5)])
    assert [(each.millions, each.value) for each in again.results] == [(1, 1.25), (4, 1.5)]
    with pytest.raises(ValueError, match=r"is of \{'device': 'Toy'\}, and this is \{'device': 'Other'\}.*pass another --json"):
        read(path, {"device": "Other"})


def test_the_table_goes_between_its_marks_and_nowhere_else(tmp_path: Path) -> None:
    page, figures = tmp_path / "README.md", Figures({"device": "Toy"}, [Result("check", "bf16-true", 1, 1.5)])
    page.write_text(f"before\n{BEGIN}old\n{END}after\n", encoding="utf8")
    into(page, figures)
    into(page, figures)
    text = page.read_text(encoding="utf8")
    assert text == f"before\n{BEGIN}\n{table(figures)}\nMeasured on device Toy.\n\n{END}after\n"
    page.write_text("no marks\n", encoding="utf8")
    with pytest.raises(ValueError, match="has no place for the figures"):
        into(page, figures)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are glibc's switches")
@pytest.mark.parametrize("keep", [True, False])
def test_memory_that_is_kept_is_not_asked_for_again(keep: bool) -> None:
    """Without torch, which takes seconds to import and asks the same C library.

    64 MB are 16 thousand pages of 4 KB, or 32 huge ones. A heap that is kept has room after a few turns, if not at once.
    """
    code = f"""
import resource, sys
sys.path.insert(0, {str(HERE)!r})
from allocator import keep
if {keep}:
    assert keep()
faults = []
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(b"\\1") * 2**26
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (int(told.stdout) < 16) is keep


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are glibc's switches")
@pytest.mark.parametrize("millions", [0, 1])
def test_what_a_model_will_need_is_there_from_the_first_turn(millions: int) -> None:
    code = f"""
import resource, sys
sys.path.insert(0, {str(HERE)!r})
from allocator import keep
keep({millions})
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
held = bytearray(b"\\1") * 2**26
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (int(told.stdout) < 16) is bool(millions)


def program(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """What `python suites/bench` ends with."""
    monkeypatch.setattr(sys, "argv", ["bench", "--no-keep-memory", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(HERE / "__main__.py"), run_name="__main__")
    return ended.value.code


@pytest.mark.usefixtures("tiny", "few_starts")
def test_the_program_keeps_its_figures_and_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page, kept = tmp_path / "README.md", tmp_path / "results.json"
    page.write_text(BEGIN + END, encoding="utf8")
    assert program(monkeypatch, "0", "--precision=bf16-true", "--rounds=1", f"--json={kept}", f"--page={page}") == 0
    content = json.loads(kept.read_text(encoding="utf8"))
    assert table(read(kept, content["machine"])) in page.read_text(encoding="utf8")
    assert set(content["measured"]) == {"0 M, bf16-true"}
    said = capsys.readouterr().out
    assert "  a check of one step, over that step: " in said
    assert " of 1.15 allowed" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("5",), "argument sizes: 5 is none of 1, 4, 17, 124"),
        (("--rounds=0",), "--rounds=0: at least one has to count"),
        (("--precision=fp8",), "argument --precision: invalid choice: 'fp8'"),
        (("--device=tpu",), "Expected one of cpu, cuda"),
        (("--page=missing.md",), "missing.md has no place for the figures; it needs the lines <!-- figures"),
        (("--device=meta",), "the model lies on meta; CPUs and CUDA devices can be timed here"),
        pytest.param(("--device=cuda",), "sees no CUDA device here; use cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has one")),
    ],
)
def test_what_the_program_cannot_do_is_one_line(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program(monkeypatch, *words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_page_shows_the_figures_that_are_kept_beside_it() -> None:
    kept = HERE / "results.json"
    if not kept.exists():
        pytest.skip("no figures have been kept yet")
    content = json.loads(kept.read_text(encoding="utf8"))
    assert table(read(kept, content["machine"])) in (HERE / "README.md").read_text(encoding="utf8")


def test_waits_are_torchs_warnings_of_them_under_a_mode_that_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def call() -> None:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:147.)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    assert waits(call) == 3
    assert modes == [0, "warn", 0]


def test_a_ratio_over_repeats_divides_time_and_not_memory() -> None:
    ratio = Ratio("noise", "noise", ("float32",), 1.3, times=3.0)
    assert ratio.of({"noise": 6.0, "float32": 1.0}) == 6.0
    assert [each.times for each in RATIOS if each.over == "noise"] == [3.0]
