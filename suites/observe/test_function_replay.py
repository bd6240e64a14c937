"""The second shadow, which begins anew at each call of a user's function: what the function has made of its error itself."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.operations import Observation, Operation
from precheck.observe.shadow.places.module_tracker import ModuleTracker

LOW = torch.bfloat16


def observed(code: Callable[[], Any]) -> Observation:
    where = ModuleTracker()
    shadow = Shadow(where)
    with where.followed(), shadow:
        kept = code()
    seen = shadow.finish()
    del kept
    return seen


def last(seen: Observation, base: str) -> Operation:
    return [operation for operation in seen.operations if operation.base == base][-1]


def numbers() -> torch.Tensor:
    return torch.linspace(1.0, 3.0, 512)


def given() -> torch.Tensor:
    """Numbers that bfloat16 has rounded."""
    return (numbers() * 1.01).to(LOW)


def raised(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x.float())


def raised_low(x: torch.Tensor) -> torch.Tensor:
    scaled = x.float() * 5
    narrow = scaled.to(LOW)
    return torch.exp(narrow.float())


def expected() -> float:
    """What rounding the exponents to bfloat16 costs."""
    exact = torch.exp(given().double() * 5)
    return float((torch.exp((given().float() * 5).to(LOW).double()) - exact).norm() / exact.norm())


class Raised(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x.float() * 1.01
        return raised(scaled.to(LOW))


def test_what_comes_in_is_taken_as_it_is() -> None:
    seen = observed(lambda: Raised()(given()))
    result = last(seen, "exp").outputs[0]
    assert result.drift > 1e-3  # of the rounding before the call
    assert result.call_error == 0.0


def test_what_a_function_rounds_is_followed_to_its_end() -> None:
    seen = observed(lambda: raised_low(given()))
    result = last(seen, "exp").outputs[0]
    assert result.call_error == pytest.approx(expected(), rel=1e-4)


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return raised_low(x) + raised_low(x / 2)


def test_functions_that_a_module_calls_are_calls_of_their_own() -> None:
    seen = observed(lambda: Twice()(given() / 16))
    first, second = (operation.call for operation in seen.operations if operation.base == "exp")
    here = last(seen, "add").call
    assert len({first, second, here} - {0}) == 3
    assert last(seen, "add").outputs[0].call_error == 0.0  # what a function returns is given to the module


def test_each_call_of_one_function_begins_anew() -> None:
    seen = observed(lambda: [Raised()(given()) for _ in range(3)])
    assert len({operation.call for operation in seen.operations if operation.base == "exp"}) == 3


def test_what_is_called_outside_of_modules_is_one_call() -> None:
    seen = observed(lambda: [raised_low(given()), raised_low(given())])
    assert len({operation.call for operation in seen.operations if operation.base == "exp"}) == 1  # the lambda's


def test_what_is_written_in_place_is_followed() -> None:
    def filled(x: torch.Tensor) -> torch.Tensor:
        out, scaled = torch.zeros(2, 512), x.float() * 5
        narrow = scaled.to(LOW)
        out[0] = torch.exp(narrow.float())
        out[1].copy_(torch.exp(x.float()))
        return out[0] * 2

    seen = observed(lambda: filled(given()))
    result = last(seen, "mul").outputs[0]
    assert result.call_error == pytest.approx(expected(), rel=1e-4)


def test_data_that_a_function_stores_low_is_given() -> None:
    def made() -> torch.Tensor:
        x = numbers().to(LOW)
        return x.float() - 2.0

    assert last(observed(made), "sub").outputs[0].call_error == 0.0


def test_the_frames_of_a_debugged_function_keep_their_tracer() -> None:
    def traced(frame: Any, event: str, argument: Any) -> Any:
        return traced

    def code() -> torch.Tensor:
        sys._getframe().f_trace = traced
        result = raised_low(given())
        assert sys._getframe().f_trace is traced
        return result

    assert last(observed(code), "exp").outputs[0].call_error > 4 * 2**-8


def test_nothing_of_a_call_outlives_it() -> None:
    import gc
    import weakref

    kept: list[weakref.ref[torch.Tensor]] = []

    def code() -> torch.Tensor:
        x = (given().float() * 3).to(LOW)
        kept.append(weakref.ref(x))
        return torch.exp(x.float()).sum()

    seen = observed(code)
    gc.collect()
    assert seen.operations
    assert kept[0]() is None


class Centres(nn.Module):
    """Averages that are written row by row, and how far each has moved."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(8, 8), dtype
        self.register_buffer("centres", 1 + torch.rand(4, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.layer(x)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            moved = self.followed(seen.float())
        return seen, moved

    def followed(self, seen: torch.Tensor) -> torch.Tensor:
        new = self.centres.clone()
        for row in range(len(new)):
            new[row] = self.nearer(self.centres[row], seen[row::4].mean(0))
        return self.distance(self.centres, new)

    def nearer(self, old: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return (old.to(self.dtype) + 0.002 * (to - old).to(self.dtype)).float()

    @staticmethod
    def distance(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return (old - new).norm(dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_a_call_writes_keep_the_error_that_it_added_to_them(dtype: torch.dtype) -> None:
    """The function that reads the rows together has no error of its own: the line that rounded them is named."""
    torch.manual_seed(0)
    report = precheck.measure(Centres(dtype), torch.randn(32, 8), precision="bf16-mixed")
    assert bool(report.errors) == (dtype is torch.bfloat16), report.summary()
    for error in report.errors:
        assert error.source.endswith(f":{inspect.getsourcelines(Centres.nearer)[1] + 1}"), report.summary()


@pytest.mark.parametrize("by_hand", [False, True], ids=["optimizer", "by-hand"])
def test_a_call_reads_anew_what_an_optimizer_or_a_backward_pass_has_written(by_hand: bool) -> None:
    """The gradient was zero when the call held it, and the weight was an older one: neither is an error of what the call makes of them now."""

    def code() -> tuple[torch.Tensor, torch.Tensor]:
        weight = nn.Parameter(given())
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.grad = torch.zeros_like(weight)
        with torch.no_grad():
            weight.mul_(0.9)
            weight.grad.mul_(0.5)
        weight.square().sum().backward()
        with torch.no_grad():
            weight.sub_(0.1 * weight.grad) if by_hand else optimizer.step()
        return torch.cos(weight.detach()), torch.sin(weight.grad)

    seen = observed(code)
    eps = torch.finfo(LOW).eps
    assert 0 < last(seen, "cos").outputs[0].call_error < eps
    assert 0 < last(seen, "sin").outputs[0].call_error < eps
