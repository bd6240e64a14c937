"""A measurement that fails names the op, the module and the line; one that passes costs no diagnosis."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precheck
import precheck.measurement
import precheck.shared_runs.evidence
from precheck.measurement import job_of
from precheck.precisions import resolve
from precheck.shared_runs.evidence import diagnose
from precheck.words import op_words


class HalfNorm(nn.Module):
    """Sums squares in the dtype of its input: 300 squared is beyond float16 (pytorch#133085)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)  # culprit
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


class Rotated(nn.Module):
    """Angles of positions that bfloat16 cannot tell apart (EleutherAI/gpt-neox#1003)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(1000, 1000 + x.shape[0]).to(x.dtype)  # culprit
        angles = positions.float()[:, None] * torch.linspace(0.1, 1, 32)
        return x * angles.cos().to(x.dtype)


class Guarded(nn.Module):
    """An eps that float16 rounds to zero (pytorch#32137)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.where(torch.arange(x.shape[0])[:, None] % 7 == 0, torch.zeros_like(x), x)
        return rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-12)  # culprit


class Logits(nn.Module):
    """The product is scaled too late (ultralytics#24990)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (60 * x) @ (60 * x).T  # culprit
        return (scores * 1e-3).softmax(-1) @ x


def around(site: nn.Module, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("before", nn.Linear(32, 32))
    net.add_module("scaled", Scaled(scale))
    net.add_module("site", site)
    net.add_module("after", nn.Linear(32, 4))
    return net


class Scaled(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def culprit(kind: type) -> str:
    lines, start = inspect.getsourcelines(kind)
    number = next(start + place for place, line in enumerate(lines) if "# culprit" in line)
    return f"{Path(__file__).name}:{number}"


def inputs() -> torch.Tensor:
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(0))


CASES: list[tuple[type[nn.Module], float, str, str, str, str]] = [
    (HalfNorm, 500.0, "16-true", "overflow", "aten.pow.Tensor_Scalar",
     "call .float() on what this line reads; or scale its input down, and undo this later"),
    (Rotated, 1.0, "bf16-true", "integer-rounding", "aten._to_copy.default",
     "leave out this cast: keep whole numbers in torch.long or float32 until they have been multiplied by a step or looked up"),
    (Guarded, 1.0, "16-true", "vanished-constant", "aten.clamp_min.default",
     "give a constant that float16 holds (at least 6e-05); or call .float() on what this line reads"),
    (Logits, 2.0, "16-mixed", "overflow", "aten.mm.default",
     "run this line with torch.autocast(..., enabled=False) and .float() on what it reads; or scale its input down, and undo this later"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "scale", "precision", "mechanism", "op", "remedy"), CASES, ids=[f"{case[0].__name__}-{case[3]}" for case in CASES])
def test_an_error_names_its_op_and_line(kind: type[nn.Module], scale: float, precision: str, mechanism: str, op: str, remedy: str) -> None:
    report = precheck.measure(around(kind(), scale), inputs(), precision=precision)
    first = report.errors[0]
    assert (first.op, first.cause_rule, first.module) == (op, mechanism, "site"), report.summary()
    assert Path(first.source).name == culprit(kind)
    assert first.cause.startswith(f"{mechanism}: {op_words(op, 'bfloat16')} at {first.source}: ")
    assert first.remedy == remedy
    assert f"\n    by {first.cause}\n    cure: {first.remedy}\n" in report.summary()


def test_every_op_of_the_run_is_in_the_report() -> None:
    report = precheck.measure(around(HalfNorm(), 500.0), inputs(), precision="16-true", loss=lambda out: out.float().square().mean())
    phases = {row.phase for row in report.ops}
    assert {"forward", "backward"} <= phases
    assert [row.first for row in report.ops] == sorted(row.first for row in report.ops)
    squared = next(row for row in report.ops if row.op == "aten.pow.Tensor_Scalar" and row.phase == "forward")
    assert squared.nonfinite > 0
    assert (squared.module, squared.dtype, squared.calls) == ("site", "float16", 1)
    assert report.facts["covered"] == 1
    assert report.facts["opaque"] == {}
    written = json.loads(report.to_json())
    assert written["schema"] == precheck.findings.SCHEMA
    assert written["ops"][0].keys() == {field.name for field in dataclasses.fields(report.ops[0])}


def test_every_op_is_at_a_line_of_the_users() -> None:
    """The optimizer's too, which the run makes: none is at a line of precheck's own."""
    trained = {"loss": lambda out: out.float().square().mean(), "optimizer": functools.partial(torch.optim.AdamW, lr=1e-3)}
    report = precheck.measure(around(HalfNorm(), 500.0), inputs(), precision="16-true", **trained)
    package = Path(precheck.__file__).parent
    assert "optimizer" in {row.phase for row in report.ops}
    assert not [row.source for row in report.ops if package in Path(row.source.rpartition(":")[0]).resolve().parents]


def test_at_the_depth_of_boundaries_a_passing_measurement_is_not_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*given: Any) -> None:
        raise AssertionError("a run that passes was diagnosed")

    monkeypatch.setattr(precheck.measurement, "diagnose", called)
    report = precheck.measure(around(nn.LayerNorm(32)), inputs(), precision="bf16-true", depth="boundaries")
    assert report.errors == []
    assert report.ops == []


def test_at_the_depth_of_ops_a_failing_measurement_is_observed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    observed = precheck.shared_runs.evidence.observed

    def counted(*given: Any, **named: Any) -> Any:
        runs.append(given)
        return observed(*given, **named)

    monkeypatch.setattr(precheck.shared_runs.evidence, "observed", counted)
    report = precheck.measure(around(HalfNorm(), 500.0), inputs(), precision="16-true")
    assert report.errors[0].op == "aten.pow.Tensor_Scalar"
    assert len(runs) == 1


def test_where_no_mechanism_is_known_the_rounding_behind_the_op_that_added_most_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precheck.shared_runs.evidence.watched_runs.RunJudge, "candidates", lambda verdict, observation: [])
    report = precheck.measure(around(Rotated()), inputs(), precision="bf16-true")
    first = report.errors[0]
    assert (first.op, first.cause_rule, first.module) == ("aten._to_copy.default", "", "site"), report.summary()
    assert first.cause.startswith(f"cast to bfloat16 (aten._to_copy) at {first.source}: its rounding error grows at aten.cos.default at ")
    assert first.cause.endswith(" comes out")
    assert first.remedy == "leave out this cast"  # the cosine is float32 already


@pytest.mark.parametrize("depth", ["ops", "boundaries"])
def test_a_model_that_no_mode_can_watch_keeps_its_report(depth: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*given: Any, **named: Any) -> None:
        raise RuntimeError("not under a dispatch mode")

    monkeypatch.setattr(precheck.shared_runs.evidence, "observed", refuses)
    report = precheck.measure(around(HalfNorm(), 500.0), inputs(), precision="16-true", depth=depth)
    assert report.errors[0].op == ""
    assert report.facts["diagnosis"] == "none: RuntimeError: not under a dispatch mode"


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_what_stores_nothing_low_has_no_diagnosis(precision: str) -> None:
    report = precheck.Report(precision=precision)
    diagnose(job_of(around(HalfNorm()), inputs()), resolve(precision), report)
    assert report.ops == []
    assert report.facts == {}


@pytest.mark.parametrize("build", [lambda: around(HalfNorm(), 500.0), lambda: around(Rotated())])
def test_the_model_comes_back_as_it_was(build: Callable[[], nn.Module]) -> None:
    model = build()
    before = {name: (value.clone(), value.data_ptr()) for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    report = precheck.Report(precision="16-true")
    diagnose(job_of(model, inputs(), loss=lambda out: out.float().sum()), resolve("16-true"), report)
    assert report.ops
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name][0])
        assert value.data_ptr() == before[name][1]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_fault_of_a_later_step_is_found_there() -> None:
    class Growing(nn.Module):
        """Overflows from the third step on."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(32))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.weight * (1e5 if self.calls >= 3 else 1.0)

    report = precheck.measure(
        around(Growing()), inputs(), precision="16-true", loss=lambda out: out.float().square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3), steps=4,
    )  # fmt: skip
    first = report.errors[0]
    assert first.rule in ("overflow", "nan")
    assert first.step == 3
    assert first.op.startswith("aten.mul"), report.summary()


def test_weights_that_a_step_broke_are_the_cause_of_what_the_next_step_computes() -> None:
    """Adam's eps of 1e-8 is zero in float16. Its first step makes Inf of the weights, and only the second forward pass shows it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    report = precheck.measure(
        model, torch.randn(4, 8), precision="16-true", steps=2,
        loss=lambda out: out.square().mean() * 1e-3, optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
    )  # fmt: skip
    first = report.errors[0]
    assert (first.rule, first.step, first.cause_rule) == ("overflow", 2, "vanished-constant")
    assert first.remedy == "keep the weights and the optimizer's states in float32"
