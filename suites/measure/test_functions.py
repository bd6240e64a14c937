"""What the user's functions return is held against noise: as modules' results are, and one rounding for each line that rounds."""

from __future__ import annotations

import cProfile
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Finding
from precheck.goldens import lifecycle
from precheck.goldens.file import read, write
from precheck.measurement import job_of
from precheck.observe.job import Job
from precheck.observe.records import Trace
from precheck.rules.golden_stale import rule as staleness


def divergence(mean: torch.Tensor, spread: torch.Tensor, *, wide: bool) -> torch.Tensor:
    """Of a normal distribution from the standard one."""
    if wide:
        mean, spread = mean.float(), spread.float()
        return 0.5 * (mean.square() + torch.expm1(spread) - spread)
    return (-0.5 * (1 + spread - mean.square() - torch.exp(spread))).float()  # culprit


CULPRIT = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# culprit"))


def masked(scores: torch.Tensor) -> torch.Tensor:
    """Every later position at the end of the scores' own format."""
    hidden = torch.ones(scores.shape[-1], scores.shape[-1], dtype=torch.bool).triu(1)
    return torch.zeros_like(scores).masked_fill(hidden, torch.finfo(scores.dtype).min)


def summed(parts: torch.Tensor) -> torch.Tensor:
    """Row by row, in the format of the parts."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return total


class Net(nn.Module):
    """`code` works on what two linear layers give, and its result is a thousandth of what is returned."""

    def __init__(self, code: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.code, self.one, self.other, self.main = code, nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x) + 1e-3 * self.code(0.05 * self.one(x), 0.05 * self.other(x))


def x() -> torch.Tensor:
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(1))


def rows(report: precheck.Report) -> dict[str, float]:
    return {row.tensor: row.r for row in report.boundaries if row.kind == "returned"}


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
@pytest.mark.parametrize("wide", [True, False])
def test_a_function_whose_result_is_lost_is_an_error_at_its_line(precision: str, wide: bool) -> None:
    report = precheck.measure(Net(lambda mean, spread: divergence(mean, spread, wide=wide)), x(), precision=precision)
    if wide:
        assert report.errors == [], report.summary()
        assert rows(report)["divergence()"] < 2
    else:
        first = report.errors[0]
        assert (first.tensor, first.source.rpartition("/")[2]) == ("divergence()", f"test_functions.py:{CULPRIT}"), report.summary()
        assert first.message.startswith("what divergence() returns: off by ")


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
def test_a_mask_of_the_least_number_is_no_error(precision: str) -> None:
    report = precheck.measure(Net(lambda one, other: (one @ other.T + masked(one @ other.T)).softmax(-1) @ other), x(), precision=precision)
    assert report.errors == [], report.summary()
    assert "masked()" in rows(report)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "16-true"])
def test_a_golden_holds_a_mask_of_the_least_number(precision: str, tmp_path: Path) -> None:
    model, golden = Net(lambda one, other: (one @ other.mT + masked(one @ other.mT)).softmax(-1) @ one), tmp_path / "golden.safetensors"
    write(golden, lifecycle.record(job_of(model, x(), loss=torch.Tensor.sum)))
    (mask,) = (each.record for each in read(golden).records if each.record.kind == "returned")
    assert mask.nonfinite == 64 * 63 // 2
    assert not precheck.check(model, x(), loss=torch.Tensor.sum, golden=golden, precision=precision).errors


def biased(scores: torch.Tensor, slope: float) -> torch.Tensor:
    """A bias that grows with the distance, for scores of that shape."""
    here = torch.arange(scores.shape[-1], dtype=torch.float32)
    return slope * (here[:, None] - here).abs()


def unbiased(scores: torch.Tensor) -> torch.Tensor:
    """As many zeros."""
    return torch.zeros_like(scores)


@pytest.mark.parametrize(
    ("bias", "said"),
    [
        (lambda scores: biased(scores, -0.125), r"in float32 what biased\(\) returns moved by 2\d% of its norm"),
        (unbiased, r"first what unbiased\(\) returns of shape \(64, 64\)"),
    ],
    ids=["moved", "new"],
)
def test_that_a_function_returns_something_else_is_said_in_words(bias: Callable[[torch.Tensor], torch.Tensor], said: str) -> None:
    """Of a golden recorded with what functions return, and float32 runs of today that know it, too."""

    def job(bias: Callable[[torch.Tensor], torch.Tensor]) -> Job:
        return job_of(Net(lambda one, other: (one @ other.mT + bias(one @ other.mT)).softmax(-1) @ one), x())

    def stale(now: Trace) -> list[Finding]:
        held = {each.record.key: each.record for each in golden.records if each.record.kind != "input"}
        rows = staleness.compare(Trace(records=held), {each.record.key: each.spread for each in golden.records}, now)
        return staleness.out_of_date(rows, Trace(records=held), now, weights_differ=False)

    golden = lifecycle.record(job(lambda scores: biased(scores, -0.1)))
    assert not stale(lifecycle.float32(job(lambda scores: biased(scores, -0.1)), functions=True))
    (finding,) = stale(lifecycle.float32(job(bias), functions=True))
    assert finding.rule == "golden-stale"
    assert re.search(said, finding.message), finding.message


def test_a_loop_over_one_line_earns_one_rounding() -> None:
    report = precheck.measure(Net(lambda one, other: one + summed((1 + other).expand(400, 64, 32))), x(), precision="bf16-true")
    assert rows(report)["summed()"] > 6
    assert report.errors


def test_fast_checks_follow_no_function() -> None:
    assert rows(precheck.measure(Net(lambda one, other: masked(one @ other.T) @ other), x(), depth="boundaries")) == {}


def test_a_profiler_in_python_sees_the_calls_too() -> None:
    seen: list[str] = []
    sys.setprofile(lambda frame, event, argument: seen.append(frame.f_code.co_name))
    try:
        report = precheck.measure(Net(lambda one, other: one + summed(other.expand(4, 64, 32))), x())
        on = sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert on
    assert "summed" in seen
    assert "summed()" in rows(report)


def test_a_profiler_in_c_is_left_alone() -> None:
    def afterwards() -> None:
        pass

    profiler, net = cProfile.Profile(), Net(lambda one, other: one + summed(other.expand(4, 64, 32)))
    profiler.enable()
    try:
        report = precheck.measure(net, x())
        afterwards()
    finally:
        profiler.disable()
    assert any(entry.code is afterwards.__code__ for entry in profiler.getstats())
    shared = sys.version_info >= (3, 12)  # there cProfile has a place of its own, and functions are looked at beside it
    assert rows(report) == (rows(precheck.measure(net, x())) if shared else {})
