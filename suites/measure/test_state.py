"""Whatever `measure` runs, and wherever it breaks off, the user's model and process come back bit for bit as they were."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

import precheck


class Net(nn.Module):
    """Everything that a run changes: weights with gradients, running statistics, a counter, a cache, dropout, a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, 4)
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.plain = torch.ones(3)  # no buffer, all the same part of the model
        self.calls = 0
        self.cache: dict[str, Any] = {}
        self.seen: list[int] = []
        self.failing: Callable[[int], bool] = lambda call: False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.plain += 1
        hidden = self.drop(self.norm(self.first(x)).relu()) * self.frozen
        self.cache["hidden"] = hidden
        self.hidden = hidden
        if self.failing(self.calls):
            raise ZeroDivisionError("the model's own")
        return self.last(hidden + random.random() + float(numpy.random.random()))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    model = Net()
    model.drop.eval()  # a mode of its own
    model(torch.randn(4, 8)).sum().backward()
    return model


def facts(model: Net) -> dict[str, Any]:
    """All that must come back, by value, and where it lies."""
    tensors = dict(model.state_dict(keep_vars=True)) | {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {
        "values": {name: value.detach().clone() for name, value in tensors.items()} | {"plain": model.plain.clone()},
        "places": {name: (id(value), value.data_ptr(), value.dtype, value.requires_grad) for name, value in tensors.items()},
        "attributes": {name: id(value) for name, value in vars(model).items() if name != "calls"},
        "plain state": (model.calls, list(model.seen), list(model.cache), id(model.cache["hidden"])),
        "modes": [module.training for module in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()],
    }


def process() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": [part.tolist() if isinstance(part, numpy.ndarray) else part for part in numpy.random.get_state()],
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "mkldnn": torch.backends.mkldnn.enabled,
        "autocast": torch.is_autocast_enabled("cpu"),
        "mode": _get_current_dispatch_mode(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in before:
        if name == "values":
            assert before[name].keys() == after[name].keys()
            for key, value in before[name].items():
                assert torch.equal(value, after[name][key]), key
        else:
            assert before[name] == after[name], name


def sgd(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def mean(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("precision", precheck.PRECISIONS)
def test_everything_comes_back(net: Net, precision: str, training: bool) -> None:
    net.train(training)
    x = torch.randn(4, 8)
    original = x.clone()
    before, outside = facts(net), process()
    precheck.measure(net, x, precision=precision, loss=mean, optimizer=sgd, steps=2)
    unchanged(before, facts(net))
    unchanged(outside, process())
    assert torch.equal(x, original)



@pytest.mark.parametrize("place", ["first forward", "second forward", "loss", "backward", "optimizer", "optimizer step"])
def test_everything_comes_back_from_an_exception(net: Net, place: str) -> None:
    class Boom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("the backward's own")

    def loss(out: torch.Tensor) -> torch.Tensor:
        if place == "loss":
            raise ZeroDivisionError("the loss's own")
        return Boom.apply(mean(out)) if place == "backward" else mean(out)

    def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        if place == "optimizer":
            raise ZeroDivisionError("the optimizer's own")
        made = sgd(params)
        if place == "optimizer step":
            made.step = lambda closure=None: 1 / 0  # type: ignore[method-assign]
        return made

    calls = net.calls
    net.failing = {"first forward": lambda call: True, "second forward": lambda call: call == calls + 2}.get(place, net.failing)
    before, outside = facts(net), process()
    with pytest.raises(ZeroDivisionError):
        precheck.measure(net, torch.randn(4, 8), precision="bf16-mixed", loss=loss, optimizer=optimizer, steps=3)
    unchanged(before, facts(net))
    unchanged({k: v for k, v in outside.items() if k != "torch"}, process())  # torch.randn above drew from it


def test_globals_that_the_model_changes_are_put_back() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(7)
        torch.set_grad_enabled(False)
        return x * 2

    before = process()
    precheck.measure(forward, torch.ones(3))
    unchanged(before, process())


def test_it_runs_with_gradients_disabled_around_it(net: Net) -> None:
    with torch.no_grad():
        report = precheck.measure(net, torch.randn(4, 8), loss=mean)
        assert not torch.is_grad_enabled()
    assert any(row.kind == "parameter-gradient" for row in report.boundaries)


def test_the_callers_own_optimizer_is_not_stepped(net: Net) -> None:
    own = sgd(list(net.parameters()))
    own.step()
    state, values = copy.deepcopy(own.state_dict()), [p.detach().clone() for p in net.parameters()]
    precheck.measure(net, torch.randn(4, 8), loss=mean, optimizer=sgd, steps=2)
    after = own.state_dict()
    assert after["param_groups"] == state["param_groups"]
    buffers = {i: kept["momentum_buffer"] for i, kept in state["state"].items() if kept["momentum_buffer"] is not None}
    assert buffers
    assert all(torch.equal(after["state"][i]["momentum_buffer"], buffer) for i, buffer in buffers.items())
    assert all(torch.equal(p, value) for p, value in zip(net.parameters(), values, strict=True))


def test_a_graph_built_before_can_still_be_walked_back(net: Net) -> None:
    net.drop.eval()
    x = torch.randn(4, 8)
    loss = net.last(x).square().mean()
    expected = torch.autograd.grad(loss, net.last.weight, retain_graph=True)[0]
    precheck.measure(net, x, loss=mean, optimizer=sgd)
    assert torch.equal(torch.autograd.grad(loss, net.last.weight)[0], expected)


def test_inputs_with_gradients_come_back_untouched(net: Net) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    precheck.measure(net, x, loss=mean)
    assert x.grad is None
    assert x.is_leaf


def test_a_report_keeps_nothing_of_the_model_alive() -> None:
    model = Net()
    model(torch.randn(4, 8))
    x = torch.randn(4, 8)
    report = precheck.measure(model, x, loss=mean, optimizer=sgd, steps=2)
    watched = [weakref.ref(thing) for thing in (model, x, *model.parameters(), *model.buffers(), model.hidden)]
    del model, x
    gc.collect()
    assert [ref() for ref in watched if ref() is not None] == []
    assert report.boundaries


def test_the_tensors_of_the_runs_themselves_are_let_go(net: Net) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def loss(out: torch.Tensor) -> torch.Tensor:
        made.append(weakref.ref(out))
        return mean(out)

    report = precheck.measure(net, torch.randn(4, 8), loss=loss, optimizer=sgd, steps=2)
    gc.collect()
    assert len(made) >= 3  # the run, its reference, and noise
    assert [ref for ref in made if ref() is not None] == []
    assert report.boundaries


def test_two_measurements_are_equal_and_the_seed_is_what_differs(net: Net) -> None:
    net.train()
    x = torch.randn(4, 8)
    first, again, other = (precheck.measure(net, x, loss=mean, optimizer=sgd, seed=seed) for seed in (3, 3, 4))
    assert first.to_json() == again.to_json()
    assert first.to_json() != other.to_json()


class Unregistered(nn.Module):
    """Trains a layer in a list, in which torch does not find it, and uses a teacher that it hides on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8)]
        self.hidden = {"teacher": nn.BatchNorm1d(8)}
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers[0](x) + self.hidden["teacher"](x.float()))


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_modules_that_are_not_registered_or_that_the_loss_uses_come_back(precision: str) -> None:
    torch.manual_seed(0)
    model, critic, scale = Unregistered(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.ones(4, requires_grad=True)
    elsewhere = (model.layers[0], model.hidden["teacher"], critic)
    before = [{name: value.clone() for name, value in module.state_dict().items()} for module in elsewhere]
    report = precheck.measure(model, torch.randn(16, 8), precision=precision, loss=lambda out: (critic(out) * scale).square().mean())
    assert not report.errors  # a gradient that one run left would be added to that of the next, which has another loss scale
    assert scale.grad is None
    assert all(parameter.grad is None for module in elsewhere for parameter in module.parameters())
    assert all(torch.equal(value, kept[name]) for module, kept in zip(elsewhere, before, strict=True) for name, value in module.state_dict().items())


def test_the_weights_that_a_function_uses_are_checked_and_come_back() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(8, 8), nn.Linear(8, 1)
    report = precheck.measure(lambda x: last(first(x).relu()), torch.randn(4, 8), precision="bf16-true", loss=lambda out: out.square().mean())
    assert {"first.weight", "last.weight"} <= {row.tensor for row in report.boundaries if row.kind == "parameter-gradient"}
    assert first.weight.dtype is torch.float32
    assert first.weight.grad is None
