"""Training as people write it: the shadow of every result, gradient, state and weight is the float32 training, bit for bit."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from beside import Program, check, normal, same, seen
from torch import nn
from torch.utils.checkpoint import checkpoint

import precheck

LOWS = (torch.bfloat16, torch.float16)


def mlp() -> nn.Sequential:
    """Without ReLU: no decision can flip."""
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def left(model: nn.Module) -> list[torch.Tensor]:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*gradients, *model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]


Make = Callable[[Any], torch.optim.Optimizer]


def trained(dtype: torch.dtype, *, optimizer: Make, make: Callable[[], nn.Module] = mlp, shape: Any = (5, 8)) -> list[torch.Tensor]:
    model = make().to(dtype)
    trainer = optimizer(model.parameters())
    for step in range(3):
        trainer.zero_grad()
        model(normal(*shape, seed=step).to(dtype)).float().pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        trainer.step()
    state = [value for slots in trainer.state.values() for value in slots.values() if isinstance(value, torch.Tensor) and value.dim()]
    return [*state, *left(model)]


OPTIMIZERS: dict[str, Make] = {
    **{f"AdamW {name}": functools.partial(torch.optim.AdamW, lr=1e-2, **{name: True}) for name in ("foreach", "fused", "amsgrad", "maximize")},
    **{f"SGD {name}": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, **{name: True}) for name in ("foreach", "nesterov", "maximize")},
    "SGD fused": functools.partial(torch.optim.SGD, lr=0.1, fused=True),  # with momentum torch 2.13's own bfloat16 differs from run to run
    "AdamW single": functools.partial(torch.optim.AdamW, lr=1e-2, foreach=False),
    "AdamW, rate a tensor": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(1e-2)),
    "Adam fused": functools.partial(torch.optim.Adam, lr=1e-2, fused=True, weight_decay=0.1),
    "RMSprop foreach": functools.partial(torch.optim.RMSprop, foreach=True),
    "Adagrad": torch.optim.Adagrad,
    "NAdam foreach": functools.partial(torch.optim.NAdam, foreach=True),
    "Adamax": torch.optim.Adamax,
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimizers(name: str) -> None:
    check(functools.partial(trained, optimizer=OPTIMIZERS[name]))


def convolutional() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(144, 2))


@pytest.mark.parametrize("low", LOWS, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
def test_batch_norms_running_statistics_move_once(low: torch.dtype, last: bool) -> None:
    """The kernel writes them although its schema does not say so: a careless replay writes them twice."""
    layout = torch.channels_last if last else torch.contiguous_format
    make = lambda: convolutional().to(memory_format=layout)  # noqa: E731
    check(functools.partial(trained, optimizer=functools.partial(torch.optim.SGD, lr=0.1), make=make, shape=(4, 3, 8, 8)), low)


def averaged(dtype: torch.dtype) -> list[torch.Tensor]:
    """Moving averages by hand, three ways."""
    model = mlp().to(dtype)
    one, two, three = ([parameter.detach().clone() for parameter in model.parameters()] for _ in range(3))
    for step in range(4):
        with torch.no_grad():
            for place, parameter in enumerate(model.parameters()):
                parameter.add_(normal(*parameter.shape, seed=step).to(dtype), alpha=0.1)
                one[place].mul_(0.9).add_(parameter, alpha=0.1)
                two[place].lerp_(parameter, 0.1)
            torch._foreach_lerp_(three, list(model.parameters()), 0.1)
    return [*one, *two, *three]


def by_hand(dtype: torch.dtype) -> list[torch.Tensor]:
    model = mlp().to(dtype)
    for _ in range(3):
        model(normal(5, 8).to(dtype)).float().pow(2).mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad.data, alpha=-0.1)
            parameter.data = parameter.data * 0.99
            parameter.grad = None
    return list(model.parameters())


def accumulated(dtype: torch.dtype) -> list[torch.Tensor]:
    model = mlp().to(dtype)
    for step in range(3):
        (model(normal(5, 8, seed=step).to(dtype)).float().pow(2).mean() / 3).backward()
    return left(model)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * x * y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return 2 * x * y * gradient, x * x * gradient


def own_function(dtype: torch.dtype) -> list[torch.Tensor]:
    model, x = mlp().to(dtype), normal(5, 8).to(dtype).requires_grad_()
    result = Square.apply(model(x), model(x) + 1)
    result.float().sum().backward()
    assert x.grad is not None
    return [result, x.grad, *left(model)]


def differentiated_twice(dtype: torch.dtype) -> list[torch.Tensor]:
    model, x = mlp().to(dtype), normal(5, 8).to(dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (gradient.float().norm() - 1).pow(2).backward()
    return [gradient, *left(model)]


def checkpointed(dtype: torch.dtype, reentrant: bool) -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 8)).to(dtype)
    x = normal(5, 8).to(dtype).requires_grad_()
    result = checkpoint(model, x, use_reentrant=reentrant)
    result.float().pow(2).sum().backward()
    assert x.grad is not None
    return [result, x.grad, *left(model)]


def offloaded(dtype: torch.dtype) -> list[torch.Tensor]:
    model = mlp().to(dtype)
    with torch.autograd.graph.save_on_cpu():
        result = model(normal(5, 8).to(dtype))
    result.float().pow(2).sum().backward()
    return left(model)


def parametrized(dtype: torch.dtype) -> list[torch.Tensor]:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)).to(dtype)
    result = model(normal(3, 8).to(dtype))
    result.float().sum().backward()
    return [result, *left(model)]


def restored(dtype: torch.dtype) -> list[torch.Tensor]:
    """A copy of the model, and a state saved, changed and loaded, inside the block."""
    model = mlp().to(dtype)
    other = copy.deepcopy(model)
    other.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()})
    return [other(normal(3, 8).to(dtype)), *other.parameters(), *copy.deepcopy(other).parameters()]


def functional(dtype: torch.dtype) -> list[torch.Tensor]:
    model = mlp().to(dtype)
    changed = {name: value * 1.1 for name, value in model.named_parameters()}
    return [torch.func.functional_call(model, changed, (normal(5, 8).to(dtype),))]


def in_inference(dtype: torch.dtype) -> list[torch.Tensor]:
    """Weights that inference mode reads first are trained on afterwards; composite ops come whole there."""
    model, x = mlp().to(dtype), normal(5, 8)
    with torch.inference_mode():
        low = x.to(dtype)
        first = model(low).reshape(-1) @ low.flatten()[:20]
    model(x.to(dtype)).float().sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    return [first, low, *left(model)]


def test_weights_that_inference_mode_reads_first_can_be_trained() -> None:
    """Given in the format, so that their shadows are made there; torch refuses in-place ops on what inference mode made."""
    model = mlp().bfloat16()
    wide = copy.deepcopy(model).float()
    trainers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, wide)]
    with precheck.watch() as report:
        with torch.inference_mode():
            model(normal(5, 8).bfloat16())
        model(normal(5, 8).bfloat16()).float().sum().backward()
        trainers[0].step()
        shadows = [seen(parameter) for parameter in model.parameters()]
    wide(normal(5, 8)).sum().backward()
    trainers[1].step()
    assert report.facts["opaque"] == {}
    assert all(same(shadow, parameter) for shadow, parameter in zip(shadows, wide.parameters(), strict=True))


PROGRAMS: tuple[Program, ...] = (
    averaged, by_hand, accumulated, own_function, differentiated_twice, offloaded, parametrized, restored, functional, in_inference,
)  # fmt: skip


@pytest.mark.parametrize("low", LOWS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_loops_and_functions(program: Program, low: torch.dtype) -> None:
    check(program, low)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool) -> None:
    check(functools.partial(checkpointed, reentrant=reentrant))


@pytest.mark.parametrize("low", LOWS, ids=str)
def test_autocast_with_a_scaler(low: torch.dtype) -> None:
    """The float32 twin has neither: what the scaler multiplies by is a power of two, and takes out again."""

    def program(dtype: torch.dtype) -> list[torch.Tensor]:
        model, mixed = mlp(), dtype != torch.float32
        trainer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=mixed)
        for step in range(3):
            trainer.zero_grad()
            with torch.autocast("cpu", dtype=dtype) if mixed else contextlib.nullcontext():
                result = model(normal(5, 8, seed=step))
            scaler.scale(result.float().pow(2).mean()).backward()
            scaler.unscale_(trainer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(trainer)
            scaler.update()
        return [result.float(), *left(model)]

    check(program, low, within=1e-6)
