"""Planting: a fault does what it says, to what it says, and is gone afterwards, exceptions included."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from precheck.observe.job import Job
from precheck.observe.models import faults
from precheck.observe.models.faults import Effect
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.precisions import PRECISIONS


class Twice(nn.Module):
    """Calls one layer twice; its result is the second call's own tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-1)


def job(model: nn.Module | None = None, *, optimizer: Any = adamw, steps: int = 2) -> Job:
    torch.manual_seed(0)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    return Job(model or Twice(), x, lambda out: out.float().square().mean(), optimizer, steps)


def everything(model: nn.Module) -> list[Any]:
    """What the user can see of a model, hooks included."""
    found: list[Any] = [(name, value.detach().clone(), value.grad) for name, value in model.state_dict(keep_vars=True).items()]
    for module in model.modules():
        found += [len(module.__dict__[name]) for name in ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called", "_backward_hooks")]
        found.append(sorted(module.__dict__))
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    return all(
        torch.equal(a[1], b[1]) and a[2] is b[2] if isinstance(a, tuple) else a == b for a, b in zip(one, other, strict=True)
    )


def test_only_the_call_that_is_named_is_spoiled_and_the_run_keeps_its_tensors() -> None:
    it, effect = job(), Effect()
    plain = run(it, reference(torch.float32))
    with faults.spoiled(it, "output:layer#2@1", faults.zeroed, effect) as spoiled:
        trace = run(spoiled, reference(torch.float32))
    assert list(trace.records) == list(plain.records), "a fault is a value, not another tensor"
    assert trace.records["output:layer#2@1"].norm == 0
    assert trace.records["output:layer@1"].norm == plain.records["output:layer@1"].norm
    assert effect.size == 1


def test_a_result_of_the_models_own_code_is_spoiled_too() -> None:
    it = job(nn.Sequential(nn.Linear(8, 8)))
    it.model = Own(it.model)
    with faults.spoiled(it, "output:output@1", faults.drifted(0.5), effect := Effect()):
        trace = run(it, reference(torch.float32))
    assert effect.size == pytest.approx(0.5)
    assert trace.results == {"": "output:output@1"}


class Expanded(Twice):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean(0).expand(4, -1)


@pytest.mark.parametrize("change", [faults.zeroed, faults.shuffled, faults.infinite, faults.drifted(0.5), faults.replaced(torch.ones(4, 8))])
def test_an_expanded_result_can_be_spoiled(change: faults.Change) -> None:
    it = job(Expanded(), optimizer=None, steps=1)
    plain = run(it, reference(torch.float32))
    with faults.spoiled(it, "output:output@1", change, effect := Effect()):
        trace = run(it, reference(torch.float32))
    assert effect.size is not None
    unlike = (trace.records["output:output@1"].sketch != plain.records["output:output@1"].sketch).any()
    assert bool(unlike) is (effect.size > 0)


class Own(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


def test_a_gradient_that_is_spoiled_leaves_the_forward_alone() -> None:
    it = job(optimizer=None, steps=1)
    plain = run(it, reference(torch.float32))
    with faults.gradient_spoiled(it, "output:layer#2@1", faults.infinite, effect := Effect()):
        trace = run(it, reference(torch.float32))
    assert effect.size == float("inf")
    assert trace.records["loss:loss@1"].norm == plain.records["loss:loss@1"].norm
    assert trace.records["gradient:layer#2@1"].posinf == 1
    assert trace.records["parameter-gradient:layer.weight@1"].nonfinite


def test_a_lost_update_is_lost_in_one_parameter_and_no_other() -> None:
    with faults.update_lost(job(), "layer.bias", Effect()) as spoiled:
        trace = run(spoiled, reference(torch.float32))
    assert trace.records["update:layer.bias@2"].norm == 0
    assert trace.records["update:layer.weight@2"].norm > 0
    assert trace.optimizer.startswith("AdamW "), "a golden tells optimizers by their names"


@pytest.mark.parametrize("precision", ["bf16-true", "16-mixed"])
def test_a_copy_of_the_optimizer_that_grows_old_has_the_fault_too(precision: str) -> None:
    model = nn.Linear(8, 8)
    with faults.update_lost(job(model), "bias", Effect()) as spoiled:
        trace = run(spoiled, low(PRECISIONS[precision]))
    assert trace.records["update:bias@2"].norm == 0
    assert all(arrived == 0 for arrived, _ in trace.aged.values())


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not bool(self.layer(x).isfinite().all()):
            raise ValueError("not finite")
        return self.layer(x)


def test_all_of_it_is_gone_afterwards_whatever_the_model_raises() -> None:
    it = job(Fails())
    before = everything(it.model)
    with pytest.raises(ValueError, match="not finite"), faults.spoiled(it, "output:layer@1", faults.infinite, Effect()):
        run(it, low(PRECISIONS["bf16-true"]))
    assert same(before, everything(it.model))
    with faults.gradient_spoiled(it, "output:layer@1", faults.infinite, Effect()):
        run(it, low(PRECISIONS["16-mixed"]))
    assert same(before, everything(it.model))


def test_an_optimizer_that_the_user_keeps_gets_its_class_and_its_step_back() -> None:
    it = job()
    own = torch.optim.SGD(it.model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(own, 1)  # puts a step of its own on the instance
    step = own.__dict__["step"]
    it.optimizer = lambda parameters: own
    with faults.update_lost(it, "layer.bias", effect := Effect()) as spoiled:
        trace = run(spoiled, reference(torch.float32))
        assert type(own) is not torch.optim.SGD
    assert trace.records["update:layer.bias@2"].norm == 0
    assert trace.records["update:layer.weight@2"].norm > 0
    assert effect.size
    assert type(own) is torch.optim.SGD
    assert own.__dict__["step"] is step


def test_one_finite_element_becomes_infinite() -> None:
    values = torch.tensor([[-float("inf"), float("nan")], [1.0, 2.0]])
    faults.infinite(values)
    assert values.isinf().tolist() == [[True, False], [True, False]]
    assert values[1, 1] == 2
    scalar = torch.tensor(1.0)
    faults.infinite(scalar)
    assert scalar == float("inf")


@pytest.mark.parametrize(("shape", "moved"), [((3, 2), True), ((1, 3), True), ((1, 1), False), ((), False)])
def test_rows_are_shuffled_along_the_first_dimension_that_has_several(shape: tuple[int, ...], moved: bool) -> None:
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    before = values.clone()
    faults.shuffled(values)
    assert bool((values != before).all()) is moved
    assert sorted(values.flatten().tolist()) == sorted(before.flatten().tolist())


def test_another_input_has_values_that_occur_in_the_one_given() -> None:
    inputs = {"ids": torch.tensor([[5, 6], [7, 8]]), "mask": torch.tensor([[1, 1], [1, 0]]), "flags": torch.tensor([True, False]), "k": 3}
    kept = copy.deepcopy(inputs)
    other = faults.other(inputs)
    assert other["ids"].tolist() == [[8, 7], [6, 5]]
    assert other["mask"] is inputs["mask"]
    assert other["flags"] is inputs["flags"]
    assert other["k"] == 3
    assert torch.equal(inputs["ids"], kept["ids"])


def test_where_nothing_can_be_permuted_another_input_is_half_of_it_or_none() -> None:
    assert torch.equal(faults.other(torch.ones(2, 2)), torch.full((2, 2), 0.5))
    assert faults.other(torch.tensor([0, 1, 1])).tolist() == [1, 1, 0]
    assert faults.other(torch.zeros(2, 2)) is None
    assert faults.other({"n": 3}) is None


def test_what_a_fault_changes_is_a_share_of_the_norm() -> None:
    effect = Effect()
    effect.note(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
    effect.note(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 0.0]))
    assert effect.size == pytest.approx(0.1), "the first time counts"
