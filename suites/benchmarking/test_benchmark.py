"""precheck.benchmark: a row's numbers are those of its runs, and its words those numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck import InputError, PrecisionError, benchmark
from precheck.benchmarking import Benchmark, Row, in_bytes, in_seconds

TWO = ", fails by nan, fails by overflow"
QUICK: dict[str, Any] = {"min_rounds": 2, "max_time": 0.0}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


@pytest.fixture(scope="module")
def trained(model: nn.Module) -> Benchmark:
    return benchmark(
        model,
        torch.linspace(-1, 1, 32 * 64).view(32, 64),
        precisions=["bf16", "bf16-mixed", "bf16-true", "32-true", "tf32"],
        loss=lambda out: out.float().square().mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        **QUICK,
    )


def test_each_precision_has_one_row_in_the_order_asked_for_beside_float32(trained: Benchmark) -> None:
    assert [row.precision for row in trained.rows] == ["bf16-mixed", "bf16-true", "tf32"]
    assert trained.baseline.precision == "32-true"
    assert trained["bf16"] is trained.rows[0]
    assert trained["32"] is trained.baseline
    with pytest.raises(KeyError, match="16-mixed was not benchmarked; 32-true, bf16-mixed, bf16-true, tf32 were"):
        trained["16-mixed"]


def test_speed_and_memory_are_ratios_of_medians_and_peaks(trained: Benchmark) -> None:
    base, row = trained.baseline, trained["bf16-true"]
    for each in (base, row):
        assert each.seconds == pytest.approx(sum(each.rounds) / 2), "the median of two"
    assert row.speedup == base.seconds / row.seconds
    assert row.memory_share == row.memory / base.memory
    # all that is stored halves; the loss, cast up, and its gradient stay, and a CPU's kernels may take scratch in float32
    assert 0.5 <= row.memory_share < 1
    weights = 4 * (64 * 256 + 256 + 256 * 64 + 64)
    assert base.memory >= 3 * weights, "weights, momentum, gradients"


def test_error_is_what_measure_finds(model: nn.Module, trained: Benchmark) -> None:
    report = precheck.measure(
        model,
        torch.linspace(-1, 1, 32 * 64).view(32, 64),
        precision="bf16-true",
        loss=lambda out: out.float().square().mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    )
    assert report.worst is not None
    assert (trained["bf16-true"].r, trained["bf16-true"].allowed) == (report.worst.r, report.worst.allowed)


def test_what_is_emulated_has_an_error_and_neither_time_nor_memory(trained: Benchmark) -> None:
    row = trained["tf32"]
    assert (row.seconds, row.memory, row.speedup, row.memory_share, row.rounds) == (None, None, None, None, ())
    assert row.r is not None
    assert row.r < 3
    assert str(row) == f"tf32: emulated here, so neither timed nor weighed, r = {row.r:.1f}"


def test_errors_stand_in_the_row_whatever_the_speed() -> None:
    found = benchmark(lambda x: (x * 1e4).softmax(-1).sum(-1) * (x * x).sum(-1), torch.full((4, 64), 100.0), precisions=["16-true"], **QUICK)
    assert found["16-true"].errors == ("overflow",)
    assert str(found["16-true"]).endswith("fails by overflow")


def test_a_function_and_keywords_are_taken_as_measure_takes_them() -> None:
    found = benchmark(torch.nn.functional.softmax, {"input": torch.randn(8, 8), "dim": -1}, precisions=["bf16-true"], **QUICK)
    assert found.summary().startswith("beside 32-true on cpu: ")
    assert "512 B a step, median of 2 interleaved rounds\n  bf16-true: " in found.summary(), "8 × 8 in and out, 4 bytes each"


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("kind", ["scripted", "compiled"])
def test_models_that_compile_for_a_dtype_run_under_one_after_the_other(model: nn.Module, kind: str) -> None:
    made = torch.jit.script(model) if kind == "scripted" else torch.compile(model, backend="eager")
    found = benchmark(made, torch.ones(2, 64), precisions=["bf16-true", "16-true"], loss=lambda out: out.float().sum(), **QUICK)
    assert [row.errors for row in found.rows] == [(), ()]


def test_inside_inference_mode_and_autocast_it_is_the_same(model: nn.Module) -> None:
    x = torch.ones(2, 64)
    with torch.inference_mode(), torch.autocast("cpu"):
        found = benchmark(model, x, precisions=["bf16-true"], loss=lambda out: out.float().sum(), **QUICK)
    outside = benchmark(model, x, precisions=["bf16-true"], loss=lambda out: out.float().sum(), **QUICK)
    assert (found.rows[0].r, found.rows[0].memory) == (outside.rows[0].r, outside.rows[0].memory)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (Row("bf16-mixed", 1, 1, 1.9, 0.51, 1.1, 3.0), "bf16-mixed: 1.9× faster, 0.51× memory, r = 1.1"),
        (Row("16-mixed", 1, 1, 0.1, 1.0, 0.98, 3.0), "16-mixed: 10.0× slower, 1.00× memory, r = 1.0"),
        (Row("16-true", 1, 1, 1.04, 0.5, 1983.8, 3.0, ("nan", "overflow")), f"16-true: as fast, 0.50× memory, r = 1980{TWO}"),
        (Row("bf16-true", 1, 1, 0.97, 0.5, None), "bf16-true: as fast, 0.50× memory, r not determined"),
        (Row("bf16-true", 1, 1, 250.0, 0.5, math.inf, 3.0, ("nan",)), "bf16-true: 250× faster, 0.50× memory, r = inf, fails by nan"),
    ],
)
def test_a_row_in_words(row: Row, line: str) -> None:
    assert str(row) == line


@pytest.mark.parametrize(("seconds", "words"), [(2.0, "2 s"), (0.0123, "12.3 ms"), (0.00012345, "123 µs"), (1e-7, "0.1 µs")])
def test_seconds_in_words(seconds: float, words: str) -> None:
    assert in_seconds(seconds) == words


@pytest.mark.parametrize(("count", "words"), [(512, "512 B"), (1536, "1.5 KiB"), (119 * 2**20, "119 MiB"), (4.1 * 2**30, "4.1 GiB")])
def test_bytes_in_words(count: float, words: str) -> None:
    assert in_bytes(count) == words


def test_all_of_it_goes_into_json(trained: Benchmark) -> None:
    content = json.loads(trained.to_json())
    assert content["facts"]["device"] == "cpu"
    assert [len(content["baseline"]["rounds"]), len(content["rows"])] == [2, 3]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"precisions": "bf16"}, InputError, r'precisions=\'bf16\' is one word; pass a list of names, as in precisions=\["bf16"\]'),
        ({"precisions": []}, InputError, r"precisions=\[\] names none to hold beside 32-true; pass some, as in"),
        ({"precisions": ["32"]}, InputError, r"precisions=\['32'\] names none to hold beside 32-true"),
        ({"precisions": ["bf17"]}, PrecisionError, r"unknown precision 'bf17'; do you mean bf16\? pytest --help"),
        ({"min_rounds": 0}, InputError, "min_rounds=0; pass a whole number from 1"),
        ({"min_rounds": 2.5}, InputError, "min_rounds=2.5; pass a whole number from 1"),
        ({"max_time": -1}, InputError, "max_time=-1; pass seconds, as in max_time=1.0"),
        ({"max_time": math.nan}, InputError, "max_time=nan; pass seconds"),
        ({"max_time": "1s"}, InputError, "max_time='1s'; pass seconds"),
        ({"optimizer": torch.optim.SGD}, InputError, "an optimizer needs a loss"),
        ({"loss": lambda out: out}, InputError, r"loss returned a tensor of shape \(1, 64\); it must be a scalar"),
    ],
)
def test_what_cannot_be_benchmarked_is_one_clear_error(model: nn.Module, given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        benchmark(model, torch.ones(1, 64), **given)
