"""In which module, in which optimizer step and under which loss scale a watched run is."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from beside import normal, shadow_now
from torch import nn

import precheck


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).tanh()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).exp()


def modules(report: precheck.Report, op: str, phase: str = "forward") -> set[str]:
    return {row.module for row in report.ops if op in row.op and row.phase == phase}


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_module_paths(named: bool) -> None:
    model = Model().bfloat16()
    with precheck.watch(model if named else None) as report:
        model(normal(3, 4).bfloat16()).sum().backward()
    for phase in ("forward", "backward"):
        assert modules(report, "tanh", phase) == {"blocks.0", "blocks.1"}
        assert modules(report, "mm", phase) == {"blocks.0.inner", "blocks.1.inner", "head"}
    assert modules(report, "exp") == {""}


def test_a_module_called_twice_is_one_module() -> None:
    block = Block().bfloat16()
    with precheck.watch(block) as report:
        block(block(normal(3, 4).bfloat16()))
    assert modules(report, "tanh") == {""}
    assert [row.calls for row in report.ops if "addmm" in row.op] == [2]


def test_two_models_and_a_loss() -> None:
    """The first to run is the model; others go by their class."""
    student, teacher = Model().bfloat16(), Block().bfloat16()
    with precheck.watch() as report:
        x = normal(3, 4).bfloat16()
        nn.MSELoss()(student(x).sum(), teacher(x).sum())
    assert modules(report, "tanh") == {"blocks.0", "blocks.1", "Block"}
    assert modules(report, "addmm") == {"blocks.0.inner", "blocks.1.inner", "head", "Block.inner"}
    assert modules(report, "mse_loss") == {"MSELoss"}


def test_a_loss_that_runs_first_is_not_the_model() -> None:
    model, x = Model().bfloat16(), normal(3, 4).bfloat16()
    with precheck.watch() as report:
        nn.L1Loss()(x, x)
        model(x)
    assert modules(report, "addmm") == {"blocks.0.inner", "blocks.1.inner", "head"}


@pytest.mark.parametrize("late", [True, False], ids=["compiled inside", "wrapped outside"])
def test_a_compiled_model_runs_eagerly_under_its_own_names(late: bool) -> None:
    model = Model().bfloat16()
    wrapped = torch.compile(model, backend="eager")
    x = normal(3, 4).bfloat16()
    plain = copy.deepcopy(model)(x)
    with precheck.watch(model if late else wrapped) as report:
        if late:
            model.compile(backend="eager")
        result = (model if late else wrapped)(x)
    assert torch.equal(result, plain)
    assert modules(report, "tanh") == {"blocks.0", "blocks.1"}
    assert modules(report, "addmm") == {"blocks.0.inner", "blocks.1.inner", "head"}
    assert "eager" in report.facts["compiled"]


def test_an_exception_that_is_caught_leaves_the_stack_as_it_was() -> None:
    model = Model().bfloat16()
    with precheck.watch(model) as report:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(normal(3, 5).bfloat16())
        normal(3).bfloat16().cos()
        model(normal(3, 4).bfloat16())
    assert modules(report, "cos") == {""}
    assert modules(report, "tanh") == {"blocks.0", "blocks.1"}


def test_steps_are_counted_by_the_optimizer_that_makes_most() -> None:
    """Two optimizers of one loop step together; their steps are not added up."""
    model = Model().bfloat16()
    first, second = torch.optim.SGD(model.blocks.parameters(), 0.1), torch.optim.SGD(model.head.parameters(), 0.1)
    with precheck.watch(model):
        tracker = shadow_now().tracker
        for step in range(1, 4):
            assert tracker.step == step
            model(normal(3, 4).bfloat16()).sum().backward()
            first.step()
            second.step()
        operations = shadow_now().observation.operations
    assert {operation.step for operation in operations if operation.base == "tanh"} == {1, 2, 3}
    assert {operation.phase for operation in operations if operation.in_optimizer} == {"optimizer"}


def test_an_op_between_steps_is_not_the_optimizers() -> None:
    model = Model().bfloat16()
    trainer = torch.optim.SGD(model.parameters(), 0.1)
    with precheck.watch(model) as report:
        model(normal(3, 4).bfloat16()).sum().backward()
        trainer.step()
        normal(3).bfloat16().cos()
    assert {row.phase for row in report.ops if "cos" in row.op} == {"forward"}


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, type("Mine", (torch.amp.GradScaler,), {})], ids=["torch's", "a subclass"])
def test_the_scale_is_that_of_the_backward_pass(kind: type[torch.amp.GradScaler]) -> None:
    model = Model()
    trainer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = kind("cpu", init_scale=64.0, growth_interval=1)
    scales = []
    with precheck.watch(model):
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(normal(3, 4)).float().sum()
            scaler.scale(loss).backward()
            scales.append(shadow_now().tracker.scale)
            scaler.step(trainer)
            scaler.update()
        backward = {operation.scale for operation in shadow_now().observation.operations if operation.phase == "backward"}
    assert scales == [64.0, 128.0, 256.0]
    assert backward == {64.0, 128.0, 256.0}


def test_a_scaler_of_another_thread_is_not_heard() -> None:
    def work() -> None:
        torch.amp.GradScaler("cpu", init_scale=4096.0).scale(torch.ones(()))

    with precheck.watch():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert shadow_now().tracker.scale == 1.0
