"""What the tables are made of, on checks and goldens that are made up: no run, no clock."""

from __future__ import annotations

import dataclasses
import json
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import checker
import numpy
import pytest
import torch
from checker import checked, jobs
from circumstances import ONE_THREAD, PLAIN, SETTINGS, Circumstance, available, features, interpreters
from figures import BEGIN, END, EVERY, keep, load, tables
from healthy_seeds import SLOW, turns
from moved import movement
from products import TERMS, furthest, products
from travels import REPOSITORY, adopt, environment, facts, pairs
from verdicts import Margin, Verdict, line, read, total, travel, verdict_of

from precheck import Report
from precheck.analysis.noise_floor.noise import REASSOCIATED
from precheck.findings import Finding, Row
from precheck.goldens import lifecycle
from precheck.goldens.file import Golden, GoldenRecord, write
from precheck.measurement import job_of
from precheck.observe.job import Job
from precheck.observe.noise import ONE_ROUNDING
from precheck.observe.records import Record

HERE = Path(__file__).parent

RECORDED_WITH = {"seed": 0, "steps": 1, "loss": True, "optimizer": "", "weights": "5e", "inputs": "1f"}  # as every golden says


def row(tensor: str, r: float, *, allowed: float = 3.0, relative: float = 0.01, kind: str = "output") -> Row:
    return Row(tensor, kind, 1, (64, 64), "bfloat16", r, allowed, relative, relative / r if r else 1.0, relative, 0)


def made(near: float = 0.5, *, golden: float | None = 0.5, runs: int = 0, errors: tuple[str, ...] = (), **place: Any) -> Verdict:
    where = {"test": "test_three_steps", "model": "moe", "precision": "bf16-true", "seed": 0, "warnings": (), **place}
    beside = None if golden is None else Margin(golden, "loss")
    return Verdict(**where, errors=errors, noise_runs=runs, margin=Margin(near, "output of a"), golden=beside)


def test_a_verdict_has_the_worst_tensor_that_rounding_leaves_something_of() -> None:
    report = Report(precision="bf16-true", boundaries=[row("a", 1.5), row("b", 6.0, allowed=8.0), row("key.bias", 9.0, relative=30.0)])
    report.add([Finding("headroom", "warning", "near the end"), Finding("overflow", "note", "none")])
    report.facts["noise_runs"] = 8
    found = verdict_of(report, "test_three_steps", "moe", golden=[row("c", 12.0)])
    assert found == Verdict("test_three_steps", "moe", "bf16-true", 0, (), ("headroom",), 8, Margin(0.75, "output of b"), Margin(4.0, "output of c"))
    assert (found.measured, found.closer) == (True, True)
    alone = verdict_of(Report(precision="32-true"), "test_three_steps", "moe", seed=3)
    assert (alone.measured, alone.margin, alone.golden, alone.seed, alone.closer) == (False, Margin(0.0, ""), None, 3, False)
    assert verdict_of(Report(facts={"noise_runs": 2, "excused": ["output:a@1"]}), "test_three_steps", "moe").closer, "it was beyond its limit"


def test_verdicts_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "beside.jsonl"
    verdicts = [made(float("inf"), golden=None, errors=("nan", "overflow")), made(runs=2)]
    path.write_text("".join(map(line, verdicts)), encoding="utf8")
    assert read(path) == verdicts


def test_a_total_counts_and_keeps_apart_what_took_a_closer_look() -> None:
    found = total([made(0.4), made(0.6, runs=2), made(1.2, runs=8, precision="16-mixed"), made(0.1, runs=8, errors=("nan",), warnings=("headroom",))])
    assert (found.checks, found.failed, found.warned, found.measured, found.closer) == (4, 1, 1, 3, 2)
    assert (found.margin, found.at) == (0.6, "output of a: moe, bf16-true, three steps")
    assert (found.closest, found.closest_at) == (1.2, "output of a: moe, 16-mixed, three steps")
    assert total([]).checks == 0


def test_a_travel_compares_each_check_with_the_same_beside_its_own_golden() -> None:
    own = [made(0.4, golden=0.4, seed=1), made(0.3, golden=9.0, runs=2, seed=2), made(0.2, golden=0.2, seed=3), made(seed=4, golden=None, runs=2)]
    other = [
        made(0.45, golden=0.45, seed=1), made(0.3, golden=99.0, runs=2, seed=2), made(0.9, golden=1.1, runs=8, seed=3, errors=("golden-stale",)),
        made(seed=4, golden=None, runs=2), made(seed=5),
    ]  # fmt: skip
    found = travel(own, other)
    assert (found.checks, found.changed, found.measured, found.own, found.more) == (4, 1, 3, 2, 1)
    assert found.shift == pytest.approx(0.9)
    assert (found.margin, found.at) == (0.45, "output of a: moe, bf16-true, three steps")


def golden_at(path: Path, *, moved: float, step: float = 0.0, kind: str = "output", spread: float = 0.0) -> None:
    """Two tensors: a normal one of norm 1, the other's first component off by `moved`; and an update, off by `step` of its norm."""
    first, second, update = (numpy.zeros(127) for _ in range(3))
    first[0], second[0], second[1], update[0] = 1.0, 1.0, moved, 1.0 + step
    records = [
        Record("output", "a", 1, (64, 64), "float32", first, 1.0, 1.0),
        Record("output", "b", 1, (64, 64), "float32", second, 1.0, 1.0),
        Record("update", "b", 1, (64, 64), "float32", update, 1.0, 1.0),
    ]
    write(path, Golden([GoldenRecord(each, {"mixed": spread, "true": 9.0}) for each in records], {**RECORDED_WITH, "torch": "1", "cpu": "AVX2"}))


def test_float32_s_own_difference_is_told_in_floors(tmp_path: Path) -> None:
    """Without noise elsewhere the floor is one rounding of the tensor itself; with it, that and the noise in quadrature."""
    for folder, moved, step in (("one", 0.0, 0.0), ("other", REASSOCIATED / 2, 0.9)):
        golden_at(tmp_path / folder / "test_x-moe.safetensors", moved=moved, step=step)
    golden_at(tmp_path / "one" / "alone.safetensors", moved=0.0)
    found = movement(tmp_path / "one", tmp_path / "other")
    assert (found.tensors, found.same, found.stale) == (2, 1, 1)
    assert found.r == pytest.approx(0.5 / ONE_ROUNDING, rel=1e-6)
    assert (found.median, found.p99) == pytest.approx((found.r / 2, 0.99 * found.r))
    assert found.margin == pytest.approx(found.r / 3)
    assert (found.goldens, found.rewritten) == (1, 1)
    assert found.at == "output of b: moe, x"
    golden_at(tmp_path / "one" / "test_x-moe.safetensors", moved=0.0, spread=2.0)
    assert movement(tmp_path / "one", tmp_path / "other").r == pytest.approx(0.5 / (4 + ONE_ROUNDING**2) ** 0.5, rel=1e-6)


def test_sums_are_told_apart_in_floors_by_the_two_that_are_furthest() -> None:
    plain = {str(terms): [3.0, 4.0] for terms in TERMS}
    off = {name: [each * (1 + REASSOCIATED) for each in values] for name, values in plain.items()}
    found = furthest({"a": plain, "b": plain, "c": off})
    assert [each["terms"] for each in found] == list(TERMS)
    assert all(each["r"] == pytest.approx(1 / ONE_ROUNDING) and each["other"] == "c" for each in found)


def test_products_have_as_many_sums_as_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("products.TERMS", (8, 64))
    found = products()
    assert {name: len(values) for name, values in found.items()} == {"8": 256, "64": 256}
    assert found["64"] == products()["64"]


def test_a_setting_that_changes_nothing_here_is_left_out_with_a_line() -> None:
    here, left = available(SETTINGS, frozenset({"avx", "avx2", "sse4_1"}))
    assert [each.name for each in here] == [PLAIN, "torch: no vectors", "oneDNN: SSE4.1", "MKL: compatible", "all of the oldest"]
    assert "skipped: torch: AVX2, since there is no avx512f here to be taken away" in left
    assert "skipped: two threads, since there is no 2 processors here to be taken away" in left
    assert len({each.folder for each in SETTINGS}) == len(SETTINGS)
    assert features()


def test_settings_are_all_that_differs_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = environment(Circumstance("x", {"ATEN_CPU_CAPABILITY": "default"}))
    ours = {name: value for name, value in found.items() if name.startswith(("ATEN_", "MKL_", "OMP_"))}
    assert ours == {"ATEN_CPU_CAPABILITY": "default", **ONE_THREAD}


def test_an_interpreter_is_called_by_its_torch() -> None:
    assert [(each.name, each.python) for each in interpreters([sys.executable])] == [(f"torch {torch.__version__}", sys.executable)]
    with pytest.raises(ValueError, match="--python=/no/python: No such file"):
        list(interpreters(["/no/python"]))


def test_what_is_checked_is_what_the_suite_checks() -> None:
    found = {(test, model): (precisions, job.steps, job.optimizer is None) for test, model, precisions, job in jobs() if model in ("moe", "lstm")}
    assert found["test_forward_and_gradients", "moe"] == (("32-true", "bf16-mixed", "bf16-true", "16-mixed"), 1, True)
    assert found["test_three_steps", "lstm"] == (("32-true", "bf16-mixed", "16-mixed", "bf16-master"), 3, False)
    assert found["network", "moe"][0] == ("32-true", "bf16-mixed", "16-mixed", "bf16-true")
    assert len(found) == 5


def test_only_what_is_there_is_compared(tmp_path: Path) -> None:
    one, other = Circumstance("one"), Circumstance("other 2")
    adopt(tmp_path / REPOSITORY.folder)
    assert facts(tmp_path, REPOSITORY)["set"] == "not known"
    for here, whose in ((one, one), (one, other), (other, one)):
        path = tmp_path / here.folder / f"beside-{whose.folder}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(line(made()), encoding="utf8")
    assert list(pairs(tmp_path, [one, other])) == [("other 2", "one", [made()], [made()])]


def test_seeds_go_round_and_the_slow_model_takes_few() -> None:
    rounds = turns(("moe", SLOW), ("32-true", "tf32"))
    first = [next(rounds) for _ in range(22)]
    assert first[:3] == [("moe", "32-true", 0), ("moe", "tf32", 0), ("moe", "32-true", 1)]
    assert first[-3:] == [("moe", "tf32", 9), (SLOW, "32-true", 9), (SLOW, "tf32", 9)]


TRAVELS = {"checks": 60, "changed": 0, "measured": 18, "own": 15, "more": 3, "shift": 0.25, "margin": 0.5, "at": "here"}
APART = {
    "one": "a", "tensors": 10, "same": 5, "median": 0.1, "p99": 0.5, "r": 0.5, "at": "x", "margin": 0.2, "margin_at": "y", "stale": 1, "goldens": 4,
    "rewritten": 3,
}  # fmt: skip
FIGURES = {
    "settings": {
        "settings": [{"name": "a", "set": "nothing", "torch": "2", "capability": "AVX2", "threads": 1}],
        "travels": [{"golden": "b", "here": "a", **TRAVELS}, {"golden": "a", "here": "b", **TRAVELS, "changed": 2, "margin": 0.75, "at": "there"}],
        "sums": [{"terms": 1024, "r": 0.5, "one": "a", "other": "b"}],
        "float32": [{**APART, "other": "b"}, {**APART, "one": "b", "other": "c", "r": 2.0, "at": "z"}],
    },
    "seeds": [
        {"precision": "tf32", "checks": 7, "seeds": 2, "failed": 0, "warned": 1, "closer": 1, "margin": 0.5, "at": "x", "closest": 1.05,
         "closest_at": "y"}
    ],
}  # fmt: skip


def test_the_tables_add_counts_up_and_take_the_greatest_margin() -> None:
    lines = tables(FIGURES).splitlines()
    assert "| a | nothing | 2 | AVX2 | 1 |" in lines
    assert "| b | 60 | 2 | 25.0% | 30.0% | 3 | 0.25 | 0.75 | there |" in lines
    assert f"| {EVERY} | 120 | 2 | 25.0% | 30.0% | 6 | 0.25 | 0.75 | there |" in lines
    assert "| a | b | 10 | 50% | 0.1 | 0.5 | 0.5 | 2^-21.0 | x | 0.2 | 3 of 4 | 1 |" in lines
    assert f"| {EVERY} | 2 pairs | 20 | 50% | 0.1 | 0.5 | 2 | 2^-19.0 | z | 0.2 | 6 of 8 | 2 |" in lines
    assert "| 1024 | 0.5 | 2^-21.0 | a | b |" in lines
    assert "| tf32 | 7 | 2 | 0 | 1 | 0.50 | x | 1 | 1.05 | y |" in lines


def test_what_one_subcommand_measures_leaves_the_other_s_tables(tmp_path: Path) -> None:
    page, kept = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n", encoding="utf8")
    for name, found in FIGURES.items():
        keep(kept, page, **{name: found})
    assert page.read_text(encoding="utf8") == f"before\n{BEGIN}\n{tables(FIGURES)}\n{END}after\n"
    assert json.loads(kept.read_text(encoding="utf8")) == FIGURES


def test_the_page_shows_the_figures_that_are_kept() -> None:
    assert tables(load(HERE / "results.json")) in (HERE.parents[2] / "docs" / "portability.md").read_text(encoding="utf8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("settings", "x", "--python=/no/python"), "--python=/no/python: No such file or directory"),
        (("seeds", "x", "--page=missing.md"), "missing.md has no place for the figures; it needs the lines <!-- figures"),
        (("seeds", "x", "--checks=0"), "--checks=0: at least one has to be made"),
        ((), "the following arguments are required: command"),
    ],
)
def test_what_the_program_cannot_do_is_one_line(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["portability", *words])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(HERE / "__main__.py"), run_name="__main__")
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def linear() -> Job:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return job_of(torch.nn.Linear(64, 64), torch.randn(32, 64), loss=torch.Tensor.sum)


def test_a_check_keeps_what_it_saw_beside_the_golden(linear: Job, tmp_path: Path) -> None:
    golden = tmp_path / "golden.safetensors"
    write(golden, lifecycle.record(linear))
    settled = checked(linear, "bf16-true", golden, "test_x", "linear")
    assert (settled.errors, settled.measured, settled.golden) == ((), False, settled.margin)
    assert 0 < settled.margin.value < 1
    with torch.no_grad():
        linear.model.weight.mul_(2)
    moved = checked(linear, "bf16-true", golden, "test_x", "linear")
    assert (moved.errors, moved.measured) == (("golden-stale",), True)
    assert moved.golden is not None
    assert moved.golden.value > 1 > moved.margin.value


def test_what_torch_refuses_is_an_error_by_its_name(linear: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(golden := tmp_path / "golden.safetensors", lifecycle.record(linear))
    monkeypatch.setattr(linear.model, "forward", lambda x: x.view(1))
    found = checked(linear, "bf16-true", golden, "test_x", "linear")
    assert (found.errors, found.measured, found.golden) == (("RuntimeError",), False, None)


def test_beside_the_same_golden_no_check_is_made_twice(linear: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "jobs", lambda: [("test_x", "linear", ("32-true", "bf16-true"), linear), ("test_y", "linear", ("32-true",), linear)])
    monkeypatch.setattr(checker, "checked", lambda *given: made_of.append(given[2]) or made(model="linear"))
    made_of: list[Path] = []
    golden, others = lifecycle.record(linear), [tmp_path / "one", tmp_path / "other"]
    for folder, torch_ in zip(others, ("2.9", "2.13"), strict=True):
        write(folder / checker.GOLDENS / "test_x-linear.safetensors", Golden(golden.records, {**golden.provenance, "torch": torch_}))
    checker.check(tmp_path, others)
    for folder in others:
        assert len(read(checker.beside(tmp_path, folder))) == 2, "of test_y there is no golden"
    assert made_of == [others[0] / checker.GOLDENS / "test_x-linear.safetensors"] * 2


def test_checks_beside_several_goldens_share_their_runs_and_say_what_each_alone_would(linear: Job, tmp_path: Path) -> None:
    """Beside a golden that is content, one without floors, so that only a measurement settles it, and one that is stale."""
    right, bare, stale = (tmp_path / f"{name}.safetensors" for name in ("right", "bare", "stale"))
    golden = lifecycle.record(linear)
    write(right, golden)
    write(bare, Golden([dataclasses.replace(each, floors=dict.fromkeys(each.floors, math.nan)) for each in golden.records], golden.provenance))
    with torch.no_grad():
        linear.model.weight.mul_(2)
        write(stale, lifecycle.record(linear))
        linear.model.weight.div_(2)
    for precision in ("32-true", "bf16-true"):
        runs = checker.Runs()
        together = [checked(linear, precision, path, "test_x", "linear", runs) for path in (right, bare, stale, right)]
        assert together == [checked(linear, precision, path, "test_x", "linear") for path in (right, bare, stale, right)]
        assert together[2].errors == ("golden-stale",)
    assert [each.measured for each in together] == [False, True, True, False]
    assert [len(kept) for kept in (runs.evidence, runs.reports, runs.references)] == [1, 1, 1]
