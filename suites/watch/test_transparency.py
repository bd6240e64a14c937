"""Watching changes nothing: not a bit of what is computed, and nothing of torch's state once the block has ended, however it ends."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import precheck

LOWS = (torch.bfloat16, torch.float16)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.fails = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.dropout(torch.relu(self.norm(self.first(x))), 0.3, self.training).mean(-1)
        if self.fails == "forward":
            raise ValueError("in the forward pass")
        if self.fails == "backward":
            hidden = Broken.apply(hidden)
        return self.last(hidden)


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("in the backward pass")


class Failing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError("in the optimizer's step")


def made() -> Model:
    torch.manual_seed(0)
    return Model()


def trained(model: Model, *, low: torch.dtype, mixed: bool, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW, steps: int = 3) -> list[Any]:
    """A training loop as people write it; returns all that it leaves."""
    trainer = optimizer(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=2, enabled=mixed and low == torch.float16)
    if not mixed:
        model.to(low)
    losses = []
    for step in range(steps):
        x = normal(4, 4, 6, seed=step).to(torch.float32 if mixed else low)
        trainer.zero_grad()
        with torch.autocast("cpu", dtype=low, enabled=mixed):
            loss = model(x).float().pow(2).mean()
        if model.fails == "loss":
            raise ValueError("in the loss")
        scaler.scale(loss).backward()
        scaler.unscale_(trainer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(trainer)
        scaler.update()
        losses.append(loss.detach())
    state = [value for slots in trainer.state.values() for value in slots.values()]
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*losses, *state, *gradients, *model.state_dict().values(), torch.tensor(scaler.get_scale()), torch.get_rng_state()]


@pytest.mark.parametrize("low", LOWS, ids=str)
@pytest.mark.parametrize("mixed", [True, False], ids=["autocast", "cast"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_a_training_loop_computes_the_same_bits(low: torch.dtype, mixed: bool, named: bool) -> None:
    plain = trained(made(), low=low, mixed=mixed)
    model = made()
    with precheck.watch(model if named else None) as report:
        watched = trained(model, low=low, mixed=mixed)
    assert report.facts["shadowed"] > 50
    assert len(plain) == len(watched)
    assert all(same(one, other) for one, other in zip(plain, watched, strict=True))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and bool(((one == other) | (one != one) & (other != other)).all())


def state_of_torch() -> list[Any]:
    """All that a watch takes hold of, or could leave behind."""
    watched = [
        (torch.amp.GradScaler, ("__init__", "scale", "unscale_", "step", "update", "load_state_dict")), (torch.optim.Optimizer, ("load_state_dict",)),
        (torch.optim.lr_scheduler.LRScheduler, ("step",)), (torch.Tensor, ("backward", "__torch_function__")),
    ]  # fmt: skip
    return [
        [owner.__dict__[name] for owner, names in watched for name in names],
        [dict(hooks) for hooks in (modules._global_forward_hooks, modules._global_forward_pre_hooks, modules._global_backward_hooks,
                                   modules._global_forward_hooks_always_called, optimizers._global_optimizer_pre_hooks,
                                   optimizers._global_optimizer_post_hooks)],
        _get_current_dispatch_mode_stack(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(),
        torch.backends.mkldnn.enabled, torch.is_anomaly_enabled(), torch.get_num_threads(), random.getstate(),
    ]  # fmt: skip


def hooks_of(model: nn.Module) -> list[Any]:
    own = [(each._forward_hooks, each._forward_pre_hooks, each._backward_hooks, each._backward_pre_hooks) for each in model.modules()]
    on_parameters = [(each._backward_hooks or {}, each._post_accumulate_grad_hooks or {}) for each in model.parameters()]
    return [[dict(hooks) for hooks in (*here,)] for here in (*own, *on_parameters)]


@pytest.mark.parametrize("fails", ["", "forward", "backward", "loss", "step"])
def test_nothing_stays_behind_however_the_block_ends(fails: str) -> None:
    model = made()
    model.fails = fails
    model.first.register_forward_hook(lambda *given: None)
    before, hooks = state_of_torch(), hooks_of(model)
    ends = pytest.raises(ValueError, match=f"in the .*{fails}") if fails else contextlib.nullcontext()
    with ends, precheck.watch(model) as report:
        trained(model, low=torch.bfloat16 if fails else torch.float16, mixed=True, optimizer=Failing if fails == "step" else torch.optim.SGD)
    assert state_of_torch() == before
    assert hooks_of(model) == hooks
    assert report.facts["shadowed"] >= 5
    assert report.ops
    assert "ops" in report.to_json()
    assert report.summary()


def test_a_gradient_stays_the_tensor_that_it_was() -> None:
    model = made().bfloat16()
    x = normal(4, 4, 6).bfloat16()
    model(x).float().sum().backward()
    before = [parameter.grad for parameter in model.parameters()]
    with precheck.watch():
        model(x).float().sum().backward()
        model.zero_grad(set_to_none=False)
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), before, strict=True))


def test_a_report_keeps_no_tensor_alive() -> None:
    model = made()
    with precheck.watch(model) as report:
        trained(model, low=torch.bfloat16, mixed=True)
        x = normal(4, 4, 6).bfloat16()
        y = x.exp()
    held = [weakref.ref(each) for each in (model, x, y, *model.parameters(), *model.buffers(), model.last.weight.grad)]
    del model, x, y
    gc.collect()
    assert report.ops
    assert [each() for each in held if each() is not None] == []


@pytest.mark.parametrize("inside", [torch.no_grad, torch.inference_mode, torch.enable_grad], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode, torch.enable_grad], ids=lambda mode: mode.__name__)
def test_grad_modes_are_the_users_own(outside: Callable[[], Any], inside: Callable[[], Any]) -> None:
    model, x = made().bfloat16().eval(), normal(4, 4, 6).bfloat16()
    with outside():
        with inside():
            plain = model(x)
        with precheck.watch(model) as report, inside():
            watched = model(x)
        assert torch.is_grad_enabled() == (outside is torch.enable_grad)
    assert torch.equal(plain, watched)
    assert (plain.requires_grad, plain.is_inference()) == (watched.requires_grad, watched.is_inference())
    assert report.facts["shadowed"] >= 5
    assert report.facts["opaque"] == {}


def test_watches_in_two_threads_end_in_any_order() -> None:
    before = state_of_torch()
    begun, ended = threading.Event(), threading.Event()
    reports: dict[str, precheck.Report] = {}

    def first() -> None:
        with precheck.watch() as reports["first"]:
            normal(4).bfloat16().mul(3)
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(60)
    model = made()
    with precheck.watch(model) as reports["second"]:
        trained(model, low=torch.float16, mixed=True)
        ended.set()
        thread.join()
        trained(model, low=torch.float16, mixed=True)
    assert state_of_torch() == before
    assert [row.op for row in reports["first"].ops] == ["aten._to_copy.default", "aten.mul.Tensor"]
    assert {row.module for row in reports["second"].ops} >= {"first", "norm", "last"}


def test_what_other_threads_compute_is_not_watched() -> None:
    other, mine = made().bfloat16(), made().bfloat16()
    x = normal(4, 4, 6).bfloat16()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            other(x).float().sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with precheck.watch(mine) as report:
            for _ in range(20):
                mine(x).float().sum().backward()
    finally:
        stop.set()
        thread.join()
    assert {row.module for row in report.ops} <= {"", "first", "norm", "last"}
    assert {row.calls for row in report.ops if row.op == "aten.native_batch_norm.default"} <= {20}


def test_nested_watches_both_report_and_neither_sees_the_others_arithmetic() -> None:
    x = normal(8).bfloat16()

    def program() -> torch.Tensor:
        return (x * 1.1 + x).exp()

    with precheck.watch() as alone:
        program()
    with precheck.watch() as outer:
        program()
        with precheck.watch() as inner:
            program()
    calls = {row.op: row.calls for row in alone.ops}
    assert {row.op: row.calls for row in inner.ops} == calls
    counted = {op: sum(row.calls for row in outer.ops if row.op == op) for op in calls}
    assert counted == {op: 2 * number for op, number in calls.items()}
    assert outer.facts["ops"] == 2 * alone.facts["ops"]


def test_storages_of_what_was_watched_can_be_resized() -> None:
    """As FSDP2 resizes its weights' between uses. What numpy has seen can not be resized any more."""
    with precheck.watch():
        weight = torch.ones(8)
        low = weight.to(torch.bfloat16)
        wide = low.float() * weight
        total = wide + weight
    for tensor in (weight, low, wide, total):
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0
