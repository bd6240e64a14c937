"""Hooks on module boundaries: one record a tensor, under the innermost module and the number of its call, and no trace afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from precheck.observe.recording.module_hooks import Boundaries, Position
from precheck.observe.recording.reduce import reduced
from precheck.observe.records import Trace


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, forward: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.body = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def observed(model: nn.Module, x: torch.Tensor, *, backward: bool = False) -> Trace:
    trace = Trace()
    boundaries = Boundaries(model, trace)
    with boundaries.attached():
        result = model(x)
        boundaries.forward_done(result)
        if backward:
            result.sum().backward()
    return trace


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


@pytest.mark.parametrize(
    ("forward", "outputs", "results"),
    [
        (lambda net, x: net.b(net.a(x)), ["a", "b.0", "b.1"], ["b.1"]),
        (lambda net, x: net.a(net.a(net.a(x))), ["a", "a#2", "a#3"], ["a#3"]),
        (lambda net, x: net.b(x) + net.b(x), ["b.0", "b.1", "b.0#2", "b.1#2", "output"], ["output"]),
        (lambda net, x: (net.a(x), {"h": net.b(x), "i": 3}), ["a", "b.0", "b.1"], ["a", "b.1"]),
        (lambda net, x: [net.a(x) * 2, None], ["a", "[0]"], ["[0]"]),
        (lambda net, x: net.a(x).argmax(-1), ["a"], []),
        (lambda net, x: net.a(x).relu_(), ["a", "output"], ["output"]),
        (lambda net, x: net.b[1](net.b[0](x)), ["b.0", "b.1"], ["b.1"]),
    ],
)
def test_each_tensor_is_recorded_once(forward: Any, outputs: list[str], results: list[str]) -> None:
    trace = observed(Net(forward), normal(2, 4))
    assert [record.name for record in trace.records.values()] == outputs
    assert [record.name for record in trace.records.values() if record.is_result] == results


def test_calls_are_counted_anew_in_each_forward() -> None:
    model, trace = Net(lambda net, x: net.a(net.a(x))), Trace()
    boundaries = Boundaries(model, trace)
    with boundaries.attached():
        for step in (1, 2):
            boundaries.step = step
            boundaries.forward_done(model(normal(2, 4)))
    assert list(trace.records) == ["output:a@1", "output:a#2@1", "output:a@2", "output:a#2@2"]


def test_gradients_are_those_of_the_loss_by_each_output() -> None:
    model = Net(lambda net, x: (net.a(x).tanh() * 3).sum(-1))
    trace = observed(model, normal(2, 4), backward=True)
    out = model.a(normal(2, 4)).detach().requires_grad_()
    (out.tanh() * 3).sum().backward()
    assert out.grad is not None
    record = trace.records["gradient:a@1"]
    assert record.norm == pytest.approx(float(out.grad.norm()), rel=1e-6)
    assert trace.records["gradient:output@1"].norm == pytest.approx(math.sqrt(2))


def test_observing_changes_no_bit() -> None:
    model, x = Net(lambda net, x: net.b(net.a(x)).relu()), normal(2, 4)
    model(x).sum().backward()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    observed(model, x, backward=True)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), before, strict=True) if p.grad is not None)


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_are_gone_afterwards_and_the_users_stay(fails: bool) -> None:
    model = Net(lambda net, x: net.b(net.a(x)) if not fails else net.b(net.a(x[:, :3])))
    model.a.register_forward_hook(lambda module, args, output: output * 2)
    before = hooks(model)
    if fails:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            observed(model, normal(2, 4))
    else:
        observed(model, normal(2, 4))
    assert hooks(model) == before == 1


def test_what_a_users_hook_returns_is_what_is_recorded() -> None:
    model = Net(lambda net, x: net.a(x))
    model.a.register_forward_hook(lambda module, args, output: output * 2)
    expected = model(normal(2, 4))
    record = observed(model, normal(2, 4)).records["output:a@1"]
    assert record.norm == pytest.approx(float(expected.detach().norm()), rel=1e-6)


def test_a_position_survives_calls_that_end_out_of_turn() -> None:
    position = Position()
    assert position.leave("stray") == ("stray", 0)
    position.enter("a")
    position.count(2)
    position.enter("a.b")
    position.count()
    assert position.call == "a.b"
    assert position.leave("a.b") == ("a.b", 1)
    assert position.leave("a") == ("a", 2)
    assert position.call == ""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_record_tells_size_and_counts(dtype: torch.dtype) -> None:
    facts = reduced(torch.tensor([[3.0, -4.0, 0.0], [math.nan, math.inf, -math.inf]], dtype=dtype))
    assert (facts["shape"], facts["dtype"]) == ((2, 3), str(dtype).removeprefix("torch."))
    assert (facts["norm"], facts["amax"]) == (5.0, 4.0)
    assert (facts["nan"], facts["posinf"], facts["neginf"]) == (1, 1, 1)
    assert facts["zeros"] == 1


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e20, 1e38])
def test_norms_neither_overflow_nor_vanish(scale: float) -> None:
    facts = reduced(torch.tensor([3.0, 4.0]) * (scale / 4))
    assert facts["norm"] == pytest.approx(1.25 * scale, rel=1e-6, abs=0)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_norms_of_complex_numbers_are_those_of_their_parts(scale: float) -> None:
    facts = reduced(torch.complex(torch.tensor([3.0]), torch.tensor([4.0])).conj() * scale)
    assert facts["norm"] == pytest.approx(5 * scale, rel=1e-6, abs=0)
    assert facts["shape"] == (1,)


def test_empty_and_integer_tensors_have_records() -> None:
    assert reduced(torch.zeros(0, 3))["norm"] == 0.0
    assert reduced(torch.tensor([2**53, 1], dtype=torch.int64))["amax"] == 2.0**53
    assert reduced(torch.tensor([True, False]))["zeros"] == 1


@pytest.mark.parametrize("part", [lambda y: y.chunk(2, -1), lambda y: y.unbind(1), lambda y: y.split(4, -1)], ids=["chunk", "unbind", "split"])
def test_results_that_the_loss_does_not_depend_on_have_no_gradient(part: Any) -> None:
    """Autograd calls their hooks with None."""

    class Parts(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return part(x)

    model = nn.Sequential(nn.Linear(8, 8), Parts())
    trace = Trace()
    with Boundaries(model, trace).attached():
        model(normal(4, 3, 8))[0].sum().backward()
    assert "gradient:1[0]@1" in trace.records
    assert "gradient:1[1]@1" not in trace.records
