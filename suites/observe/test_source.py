"""The line of an op: of the user's code, and for a backward op that of the forward op it differentiates."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from beside import normal
from torch import nn
from torch.utils.checkpoint import checkpoint

import precheck
from precheck.findings import Report
from precheck.observe.shadow.places.source import _kind, shortened

HERE = Path(__file__).name


def line_of(function: Callable[..., Any], marked: str) -> int:
    """The number of the one line of a function that ends in that mark."""
    lines, first = inspect.getsourcelines(function)
    (place,) = [number for number, line in enumerate(lines, first) if line.rstrip().endswith(f"# {marked}")]
    return place


def lines(report: Report, phase: str, op: str = "") -> set[tuple[str, int]]:
    """File names and line numbers of the ops of a phase."""
    found = {row.source for row in report.ops if row.phase == phase and op in row.op}
    return {(Path(each.rpartition(":")[0]).name, int(each.rpartition(":")[2])) for each in found}


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = x @ w  # product
    return hidden.tanh()  # bend


def test_a_backward_op_is_at_the_forward_line() -> None:
    x, w = normal(3, 4).bfloat16(), normal(4, 5).bfloat16().requires_grad_()
    with precheck.watch() as report:
        product(x, w).sum().backward()
    assert lines(report, "forward", "aten.mm") == {(HERE, line_of(product, "product"))}
    assert lines(report, "backward", "aten.mm") == {(HERE, line_of(product, "product"))}
    assert lines(report, "backward", "tanh_backward") == {(HERE, line_of(product, "bend"))}


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3  # cube

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x.square() * gradient  # slope


def test_user_code_in_a_backward_pass_is_at_its_own_line() -> None:
    x = normal(4).bfloat16().requires_grad_()
    with precheck.watch() as report:
        Cube.apply(x).sum().backward()
    assert lines(report, "forward", "pow") == {(HERE, line_of(Cube.forward, "cube"))}
    slope = {(HERE, line_of(Cube.backward, "slope"))}
    assert lines(report, "backward", "mul") == slope
    assert lines(report, "backward", "pow") == slope


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_is_forward(reentrant: bool) -> None:
    x, w = normal(3, 4).bfloat16().requires_grad_(), normal(4, 5).bfloat16().requires_grad_()
    with precheck.watch() as report:
        checkpoint(product, x, w, use_reentrant=reentrant).sum().backward()
    there = {(HERE, line_of(product, "product"))}
    assert lines(report, "forward", "aten.mm") == there
    assert lines(report, "backward", "aten.mm") == there
    twice = [row.calls for row in report.ops if row.op == "aten.tanh.default" and row.phase == "forward"]
    assert twice == [2]


def test_a_hook_of_the_users_is_at_its_own_line() -> None:
    def hook(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.5  # hook

    x = normal(4).bfloat16().requires_grad_()
    with precheck.watch() as report:
        y = x.exp()
        y.register_hook(hook)
        y.sum().backward()
    assert (HERE, line_of(hook, "hook")) in lines(report, "backward", "mul")


def test_an_optimizers_ops_are_at_the_call_of_step() -> None:
    model = nn.Linear(4, 4).bfloat16()
    trainer = torch.optim.SGD(model.parameters(), 0.1)
    with precheck.watch() as report:
        model(normal(2, 4).bfloat16()).sum().backward()
        trainer.step()  # step
    assert lines(report, "optimizer") == {(HERE, line_of(test_an_optimizers_ops_are_at_the_call_of_step, "step"))}


LIBRARY = """
import torch

def doubled(x):
    return x * 2

def exponential(x):
    return x.exp()

class Sixth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**6

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 6 * x**5 * gradient

class Exponential(torch.nn.Module):
    def forward(self, x):
        return exponential(x)
"""


@pytest.fixture
def library(tmp_path: Path) -> Any:
    """An installed package."""
    file = tmp_path / "site-packages" / "library.py"
    file.parent.mkdir()
    file.write_text(LIBRARY, encoding="utf8")
    spec = importlib.util.spec_from_file_location("library", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbered(text: str) -> str:
    """The line of the package, by its import path, that reads so."""
    return f"library.py:{LIBRARY.splitlines().index(text) + 1}"


def test_the_table_of_ops_has_a_librarys_line(library: Any) -> None:
    """The deepest frame outside torch and precheck, wherever it is installed: that is where the op is written."""
    with precheck.watch() as report:
        library.doubled(normal(4).bfloat16())
    assert lines(report, "forward", "mul") == {("library.py", int(numbered("    return x * 2").partition(":")[2]))}


def test_a_finding_is_at_the_users_line_and_names_the_librarys(library: Any) -> None:
    with precheck.watch() as report:
        library.exponential(normal(4).half() + 20)  # called
    (error,) = report.errors
    here = line_of(test_a_finding_is_at_the_users_line_and_names_the_librarys, "called")
    assert (error.rule, error.source.rpartition("/")[2], error.via) == ("overflow", f"{HERE}:{here}", numbered("    return x.exp()"))
    assert f"{HERE}:{here} (in {error.via})" in error.message


def test_a_package_whose_name_begins_with_torchs_is_not_torch() -> None:
    """As torchmetrics or torch_geometric, which lie beside it: their lines were passed over."""
    beside = Path(torch.__file__).parent
    assert _kind(torch.__file__) == "torch"
    assert _kind(str(beside.parent / f"{beside.name}metrics" / "functional.py")) == "installed"


def test_the_backward_pass_of_a_librarys_function_is_at_the_users_call_of_it(library: Any) -> None:
    """Autograd's engine runs it, from another line of the user's: what is called there is backward()."""
    x = torch.full((4,), 5.0).half().requires_grad_()
    with precheck.watch() as report:
        y = library.Sixth.apply(x)  # called
        (y.float() * 16).sum().backward()
    (error,) = [error for error in report.errors if error.phase == "backward"]
    here = line_of(test_the_backward_pass_of_a_librarys_function_is_at_the_users_call_of_it, "called")
    assert error.source.endswith(f"{HERE}:{here}")
    assert error.via == numbered("        return 6 * x**5 * gradient")


def test_users_code_that_a_library_calls_is_at_its_own_line() -> None:
    def hot(x: torch.Tensor) -> torch.Tensor:
        return (x + 20).exp()  # hot

    with precheck.watch() as report:
        functools.reduce(lambda x, _: hot(x), range(1), normal(4).half())
    (error,) = report.errors
    assert error.source.endswith(f"{HERE}:{line_of(test_users_code_that_a_library_calls_is_at_its_own_line, 'hot')}")
    assert error.via == ""


def test_a_librarys_model_that_is_measured_has_its_own_lines(library: Any) -> None:
    """No line of the user's is part of the run: what asked for it is not."""
    report = precheck.measure(library.Exponential(), torch.full((4,), 20.0), precision="16-true")
    assert {(Path(error.source.rpartition(":")[0]).name, error.via) for error in report.errors} == {("library.py", "")}


def test_wrappers_of_the_standard_library_and_compiled_strings_are_passed_over() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return functools.reduce(torch.add, [x, x])  # sum

    with precheck.watch() as report:
        doubled(normal(4).bfloat16())
        exec(compile("y.mul_(2)", "<string>", "exec"), {"y": normal(4).bfloat16()})  # exec
    assert lines(report, "forward", "add") == {(HERE, line_of(doubled, "sum"))}
    here = test_wrappers_of_the_standard_library_and_compiled_strings_are_passed_over
    assert lines(report, "forward", "mul_") == {(HERE, line_of(here, "exec"))}


def test_one_function_called_from_two_lines_is_at_the_line_of_each_op() -> None:
    """Also in the backward pass, where sequence numbers tell nodes of one line and of two apart."""
    x = normal(4).bfloat16().requires_grad_()

    def program() -> None:
        one = x * 1.5  # one
        two = x.exp()  # two
        (one * two).sum().backward()  # join

    with precheck.watch() as report:
        program()
    assert (HERE, line_of(program, "one")) in lines(report, "backward", "mul")
    assert (HERE, line_of(program, "two")) in lines(report, "backward", "mul")
    assert (HERE, line_of(program, "join")) in lines(report, "backward", "mul")


def test_a_forward_pass_before_the_block_has_no_line_and_no_error() -> None:
    x = normal(4).bfloat16().requires_grad_()
    y = x.exp().sum()
    with precheck.watch() as report:
        y.backward()  # backward
    here = test_a_forward_pass_before_the_block_has_no_line_and_no_error
    assert lines(report, "backward") == {(HERE, line_of(here, "backward"))}


def test_lines_are_named_as_people_name_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shortened(f"{tmp_path / 'models' / 'gpt.py'}:88") == "models/gpt.py:88"
    assert shortened(f"{sys.prefix}/gpt.py:88") == f"{sys.prefix}/gpt.py:88"
    assert shortened("") == ""
