"""The losses of a run beside the reference's: of each step that is measured, of each backward pass that is watched."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import precheck
from precheck.checking import check
from precheck.findings import Loss
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of
from precheck.observe.shadow.comparing import fetching
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.places.module_tracker import ModuleTracker


def trained(dtype: torch.dtype, steps: int, sign: float = 1.0, given: torch.dtype = torch.bfloat16) -> list[float]:
    """The losses of a plain loop in `dtype`, on weights and inputs as `given` stores them."""
    model, inputs = task()
    model, inputs = model.to(given).to(dtype), inputs.to(given).to(dtype)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = sign * model(inputs).square().mean()
        found.append(loss.item())
        loss.backward()
        optimizer.step()
    return found


def task() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.Linear(16, 4), torch.randn(8, 16)


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


class TestMeasure:
    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_both_are_the_numbers_of_plain_runs(self, sign: float) -> None:
        model, inputs = task()
        report = precheck.measure(model, inputs, precision="bf16-true", loss=lambda out: sign * out.square().mean(), optimizer=sgd, steps=4)
        assert [loss.step for loss in report.losses] == [1, 2, 3, 4]
        assert [loss.low for loss in report.losses] == trained(torch.bfloat16, 4, sign)
        exact = trained(torch.float32, 4, sign, given=torch.float32)  # a measurement's reference rounds nothing
        assert [loss.reference for loss in report.losses] == pytest.approx(exact, rel=1e-6)  # sixteen roundings of float32

    def test_the_floor_is_that_of_the_losss_row(self) -> None:
        model, inputs = task()
        report = precheck.measure(model, inputs, precision="bf16-true", loss=lambda out: out.square().mean(), optimizer=sgd, steps=2)
        assert [loss.floor for loss in report.losses] == [row.floor for row in report.boundaries if row.kind == "loss"]

    def test_an_infinite_loss_keeps_its_sign_and_an_undefined_one_is_nan(self) -> None:
        model, inputs = task()
        found = {}
        for name, loss in {"inf": lambda out: -(out.abs().sum() + 1) * 1e5, "nan": lambda out: (out.abs().sum() * 1e5) * 0}.items():
            (only,) = precheck.measure(model, inputs, precision="16-true", loss=loss).losses
            found[name] = only
        assert found["inf"].low == -math.inf
        assert -math.inf < found["inf"].reference < -65504
        assert math.isnan(found["nan"].low)
        assert found["nan"].reference == 0

    def test_without_a_loss_there_is_none(self) -> None:
        assert precheck.measure(*task(), precision="bf16-true").losses == []


@pytest.mark.parametrize("precision", ["bf16-true", "32-true"])
def test_a_check_that_passes_has_them_beside_the_goldens(tmp_path: Path, precision: str) -> None:
    model, inputs = task()
    settings: dict[str, Any] = {"loss": lambda out: -out.square().mean(), "optimizer": sgd, "steps": 3}
    path = tmp_path / "g.safetensors"
    refresh(path, job_of(model, inputs, **settings), "all")
    report = check(model, inputs, golden=path, precision=precision, **settings)
    assert not report.errors
    assert [loss.step for loss in report.losses] == [1, 2, 3]
    exact = trained(torch.float32, 3, -1.0, given=torch.float32)
    assert [loss.reference for loss in report.losses] == pytest.approx(exact, rel=1e-6)
    near = 1e-6 if precision == "32-true" else 2.0**-6  # bfloat16's roundings of a few weights and products, each 2^-9
    assert [loss.low for loss in report.losses] == pytest.approx(exact, rel=near)


class TestWatch:
    def test_each_backward_is_one_with_its_step_and_line(self) -> None:
        model, inputs = task()
        model, inputs = model.bfloat16(), inputs.bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with precheck.watch() as report:
            for _ in range(3):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
        assert [loss.step for loss in report.losses] == [1, 2, 3]
        assert [loss.low for loss in report.losses] == trained(torch.bfloat16, 3)
        assert [loss.reference for loss in report.losses] == pytest.approx(trained(torch.float32, 3), rel=1e-6)
        (line,) = {loss.source for loss in report.losses}
        assert Path(line.rpartition(":")[0]).name == "test_losses.py"
        assert {loss.floor for loss in report.losses} == {None}

    def test_a_loss_scale_is_divided_out(self) -> None:
        model, inputs = task()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        with precheck.watch(precision="16-mixed") as report:
            loss = model(inputs).float().square().mean()
            scaler.scale(loss).backward()
        (only,) = report.losses
        assert only.low == loss.item()
        assert only.reference == pytest.approx(only.low, rel=2.0**-9)

    def test_a_micro_batch_is_one_and_two_losses_have_two_lines(self) -> None:
        model, inputs = task()
        model, inputs = model.bfloat16(), inputs.bfloat16()
        with precheck.watch() as report:
            for part in inputs.chunk(2):
                model(part).mean().backward()
            model(inputs).sum().backward()
        assert [loss.step for loss in report.losses] == [1, 1, 1]
        assert len({loss.source for loss in report.losses}) == 2

    def test_gradients_asked_for_with_autograd_grad_count_too(self) -> None:
        x = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
        with precheck.watch() as report:
            torch.autograd.grad((x * 3).sum(), x)
        assert [(loss.low, loss.reference) for loss in report.losses] == [(12.0, 12.0)]

    def test_ones_for_anything_else_are_no_loss(self) -> None:
        x = torch.ones((), dtype=torch.bfloat16, requires_grad=True)
        with precheck.watch() as report:
            torch.ones_like(x * 2)
            (x * 2).backward(torch.ones((), dtype=torch.bfloat16))
        assert report.losses == []

    def test_is_the_same_on_an_accelerator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = of_three_steps()
        assert len(here) == 3
        monkeypatch.setattr(fetching, "elsewhere", lambda tensor: True)
        assert of_three_steps() == here


def of_three_steps() -> list[Loss]:
    model, inputs = task()
    model, inputs = model.bfloat16(), inputs.bfloat16()
    where = ModuleTracker()
    shadow = Shadow(where)
    with where.followed(), shadow:
        for _ in range(3):
            model(inputs).square().mean().backward()
    return shadow.finish().losses


def test_of_a_long_run_the_losses_furthest_from_the_reference_are_kept_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> tuple[list[Loss], precheck.Report]:
        weight = torch.randn(8, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
        with precheck.watch() as report:
            for step in range(41):
                (weight * (1 + step)).square().sum().backward()
        return report.losses, report

    whole, report = losses()
    assert len(whole) == 41
    assert "losses" not in report.facts
    monkeypatch.setattr("precheck.observe.shadow.training.losses.MOST", 8)
    few, report = losses()
    assert len(few) <= 10
    assert few[-1] == whole[-1]
    assert max(whole, key=lambda loss: abs(loss.low - loss.reference)) in few
    assert [each for each in whole if each in few] == few  # in the order of the run
    assert report.facts["losses"].startswith("of each 8 backward passes")
