"""The verb: checks that can fail catch every fault, and of those that cannot it says which fault, how large, and what to do."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of
from precheck.rules.accumulated_drift.rule import AccumulatedDrift
from precheck.selftests.checks import FAULTS, MARGIN, Outcome, selftested


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def data() -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def adamw(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=rate)


STEPS: dict[str, Any] = {"loss": loss, "optimizer": adamw(1e-2), "steps": 2}


@pytest.fixture
def tried(tmp_path: Path) -> Callable[..., dict[str, Outcome]]:
    """tried(model, inputs, precision, **settings): the outcomes by fault, of a check that passes."""

    def call(model: Any, inputs: Any, precision: str, tolerated: tuple[str, ...] = (), **settings: Any) -> dict[str, Outcome]:
        golden = tmp_path / "it.safetensors"
        refresh(golden, job_of(model, inputs, **settings))
        report = precheck.check(model, inputs, golden=golden, precision=precision, **settings)
        assert not report.errors, report.summary()
        found = selftested(model, inputs, golden=golden, precision=precision, tolerated=tolerated, **settings)
        assert tuple(outcome.fault for outcome in found) == FAULTS
        return {outcome.fault: outcome for outcome in found}

    return call


Tried = Callable[..., dict[str, Outcome]]


def statuses(found: dict[str, Outcome]) -> dict[str, str]:
    return {fault: outcome.status for fault, outcome in found.items()}


OUTPUTS = {"drift", "zeroed", "shuffled", "stale"}


@pytest.mark.parametrize(
    ("precision", "applies"),
    [
        ("32-true", OUTPUTS | {"lost update"}),
        ("64-true", OUTPUTS | {"lost update"}),
        ("bf16-mixed", OUTPUTS | {"overflow"}),
        ("bf16-true", OUTPUTS | {"overflow", "lost update"}),
        ("bf16-master", OUTPUTS | {"overflow"}),
        ("16-mixed", OUTPUTS | {"overflow", "skipped step"}),
        ("tf32", OUTPUTS | {"overflow"}),
        ("fp8-e4m3-mixed", OUTPUTS | {"overflow"}),
    ],
)
def test_a_healthy_check_catches_every_fault_that_its_precision_has(tried: Tried, precision: str, applies: set[str]) -> None:
    found = tried(layers(), data(), precision, **STEPS)
    assert statuses(found) == {fault: "caught" if fault in applies else "inapplicable" for fault in FAULTS}, found
    rules = {fault: outcome.rule for fault, outcome in found.items() if outcome.status == "caught"}
    low = dict.fromkeys(OUTPUTS, "accumulated-drift") | {"lost update": "lost-update", "overflow": "overflow", "skipped step": "overflow"}
    assert rules == {fault: low[fault] if "overflow" in applies else "golden-stale" for fault in applies}, "by the rule that is there for it"


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "16-mixed"])
def test_a_drift_is_as_small_as_the_check_must_notice_where_it_sees_least(tried: Tried, precision: str) -> None:
    drift = tried(layers(), data(), precision)["drift"]
    assert drift.limit is not None
    assert drift.size is not None
    # the factor 1 + 4 limit is rounded as the tensor is stored: off by half a spacing of 1 at most, u, and by the roundings of single
    # elements, together less than u too
    roundoff = {"32-true": 2.0**-24, "bf16-true": 2.0**-8, "16-mixed": 2.0**-11}[precision]
    assert drift.size == pytest.approx(MARGIN * drift.limit, abs=2 * roundoff)
    # 3 noise floors, each at least of the last rounding (0.42 u), and of float32 what reassociation may do: a handful of roundings
    unit = {"32-true": 2.0**-20}.get(precision, roundoff)
    assert 3 * 0.42 * unit <= drift.limit < 20 * unit


def test_without_an_optimizer_no_update_is_planted_and_it_is_said_what_to_pass(tried: Tried) -> None:
    found = tried(layers(), data(), "16-mixed", loss=loss)
    assert found["lost update"].status == found["skipped step"].status == "inapplicable"
    assert "pass optimizer=" in found["lost update"].text
    assert "pass optimizer=" in found["skipped step"].text


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_learning_rate_of_zero_could_lose_every_update(tried: Tried, precision: str) -> None:
    lost = tried(layers(), data(), precision, loss=loss, optimizer=adamw(0.0))["lost update"]
    assert lost.status == "unnoticed"
    assert "no parameter moves in 1 step" in lost.text
    assert "raise the learning rate" in lost.advice


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(self.layer(x))


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_an_output_that_ignores_the_input_might_be_stale(tried: Tried, precision: str) -> None:
    found = tried(Constant(), data(), precision)
    assert found["stale"].status == "unnoticed"
    assert "0% away" in found["stale"].text
    assert found["shuffled"].status == "same"
    assert "the input cannot show it" in found["shuffled"].text
    assert found["zeroed"].status == "caught"


class Zero(Constant):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * 0


def test_an_output_that_is_zero_cannot_be_zeroed(tried: Tried) -> None:
    zeroed = tried(Zero(), data(), "bf16-true")["zeroed"]
    assert zeroed.status == "unnoticed"
    assert "give it weights that show" in zeroed.advice


class Choice(Constant):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).argmax(-1)


def test_a_result_that_is_not_compared_cannot_be_noticed_though_drift_inside_is(tried: Tried) -> None:
    found = tried(Choice(), data(), "bf16-true")
    assert {fault for fault, outcome in found.items() if outcome.status == "unnoticed"} == {"zeroed", "shuffled", "stale"}
    assert "compares no floating-point output" in found["zeroed"].text
    assert "return what it computes" in found["zeroed"].advice
    assert found["drift"].status == "caught"


class Expanded(Constant):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sum(0).expand(4, -1)


def test_an_expanded_output_is_as_good_as_any_but_for_its_equal_rows(tried: Tried) -> None:
    found = tried(Expanded(), data(), "bf16-true")
    assert found["shuffled"].status == "same"
    assert {fault for fault, outcome in found.items() if outcome.status == "caught"} == {"overflow", "drift", "zeroed", "stale"}


def test_rows_that_are_equal_cannot_show_that_they_are_shuffled(tried: Tried) -> None:
    found = tried(layers(), data()[:1].repeat(4, 1), "bf16-true")
    assert statuses(found)["shuffled"] == "same"
    assert found["stale"].status == "caught", "back to front, a row is another one"


def test_one_element_has_no_rows(tried: Tried) -> None:
    torch.manual_seed(0)
    found = tried(nn.Linear(8, 1), data()[:1], "bf16-true")
    assert found["shuffled"].status == "inapplicable"


def test_an_input_of_zeros_cannot_show_what_is_stale(tried: Tried) -> None:
    assert tried(layers(), torch.zeros(4, 8), "bf16-true")["stale"].status == "same"


def test_a_rule_that_hears_nothing_is_found_out(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccumulatedDrift, "beside", lambda self, run: [])
    found = tried(layers(), data(), "bf16-true")
    assert {fault for fault, outcome in found.items() if outcome.status == "unnoticed"} == OUTPUTS
    assert re.fullmatch(r"output of module \d is off by [\d.]+% of its norm, where the check sees least; limit: [\d.]+%", found["drift"].text)
    assert found["overflow"].status == "caught", "by another rule"


def test_a_function_is_tried_as_a_model_is(tried: Tried) -> None:
    found = tried(lambda x: x.softmax(-1), data(), "bf16-mixed")
    assert {fault for fault, outcome in found.items() if outcome.status == "caught"} == OUTPUTS | {"overflow"}


@pytest.mark.filterwarnings("ignore:.torch.jit.(script|trace|trace_method). is deprecated")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
@pytest.mark.parametrize("build", [lambda: torch.jit.script(layers()), lambda: torch.jit.trace(layers(), data())], ids=["scripted", "traced"])
def test_a_scripted_model_is_tried_as_any_other(tried: Tried, build: Callable[[], nn.Module], precision: str) -> None:
    model = build()
    kind = type(model)
    found = tried(model, data(), precision, **STEPS)
    missing = {"32-true": {"overflow", "skipped step"}, "bf16-mixed": {"lost update", "skipped step"}, "16-mixed": {"lost update"}}[precision]
    assert statuses(found) == {fault: "inapplicable" if fault in missing else "caught" for fault in FAULTS}, found
    assert type(model) is kind


@pytest.mark.parametrize("precision", ["bf16-true", "32-true"])
def test_without_a_golden_one_is_recorded_in_memory(tried: Tried, precision: str) -> None:
    found = selftested(layers(), data(), golden=None, precision=precision, **STEPS)
    assert {outcome.fault: outcome.status for outcome in found} == statuses(tried(layers(), data(), precision, **STEPS))


def test_what_markers_let_through_is_neither_caught_nor_unnoticed(tried: Tried) -> None:
    found = tried(layers(), data(), "bf16-true", tolerated=("accumulated-drift",))
    assert {fault: found[fault].status for fault in OUTPUTS} == dict.fromkeys(OUTPUTS, "allowed")
    assert found["overflow"].status == "caught"


class Guarded(Constant):
    """Says itself that something is wrong."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        if not bool(hidden.isfinite().all()):
            raise FloatingPointError("Inf in layer")
        return hidden


def test_a_model_that_raises_at_a_fault_has_caught_it(tried: Tried) -> None:
    found = tried(Guarded(), data(), "bf16-true")
    assert found["overflow"].rule == "FloatingPointError: Inf in layer"


class Picky(nn.Embedding):
    """Takes the one input that it was made for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0] != 3:
            raise IndexError("starts with 3")
        return super().forward(x)


def test_a_model_that_takes_no_other_input_is_not_accused_of_it(tried: Tried) -> None:
    torch.manual_seed(0)
    stale = tried(Picky(8, 16), torch.tensor([3, 5, 7]), "bf16-true")["stale"]
    assert stale.status == "inapplicable"
    assert "IndexError: starts with 3" in stale.text


def test_model_inputs_and_random_state_come_back_bit_for_bit(tmp_path: Path) -> None:
    model, inputs, golden = layers().train(), data(), tmp_path / "it.safetensors"
    settings = {**STEPS, "steps": 1}
    refresh(golden, job_of(model, inputs, **settings))
    model[0].weight.grad = torch.ones_like(model[0].weight)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    held = [dict(module.__dict__) for module in model.modules()]
    seen, drawn = inputs.clone(), (torch.get_rng_state(), random.getstate())
    for precision in ("32-true", "16-mixed", "bf16-true"):
        selftested(model, inputs, golden=golden, precision=precision, **settings)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [dict(module.__dict__) for module in model.modules()] == held, "hooks are gone"
    assert torch.equal(model[0].weight.grad, torch.ones(16, 8))
    assert model[0].weight._backward_hooks is None
    assert torch.equal(inputs, seen)
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
