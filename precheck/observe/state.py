"""Runs work on the user's own model. This module gives it new storage for a run and restores it bit for bit.

The user's own module objects run, and not copies: a loss that reads `model.aux_loss`, or an optimizer over
`model.parameters()`, refers to that model. Each run puts new storage under the user's parameters and buffers, so
their original storage is never written.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from precheck import interrupts
from precheck.observe.models import functions
from precheck.torch_internals import no_class_code
from precheck.torch_support.dense_parts import cast, held, hold, holds_numbers, parts

Change = Callable[[torch.Tensor], torch.Tensor]

_CONTAINERS = (dict, OrderedDict, list, set, deque)
_ATOMS = {type(None), bool, int, float, str}
_CHANGEABLE, _NESTING = (*_CONTAINERS, torch.Tensor, torch.Generator), (*_CONTAINERS, tuple)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_REGISTERED = ("_parameters", "_buffers", "_modules")


@contextlib.contextmanager
def preserved(model: torch.nn.Module, loss: Callable[..., Any] | None = None) -> Iterator[None]:
    """After the block, parameters, gradients, buffers, attributes, modes, random states and global settings are restored. So are modules and weights
    that the loss uses."""
    with interrupts.held(), contextlib.ExitStack() as stack:
        stack.callback(_restore_model(model, loss))
        stack.callback(_restore_random())
        stack.callback(_restore_globals())
        yield


def checkpoint(model: torch.nn.Module, loss: Callable[..., Any] | None = None, *, frozen: bool = False) -> Callable[[], None]:
    """Returns a function that restores the present random states, buffers and other attributes of modules, but not parameters and gradients.

    `frozen`: also the parameters without a gradient. A forward pass may change them, as that of a momentum encoder does.
    """
    still = [each for each in _unique_parameters(model) if type(each) is torch.nn.Parameter and not each.requires_grad] if frozen else []
    storage = [(parameter, parameter.data) for parameter in still]
    buffers = [(buffer, buffer.detach().clone()) for buffer in (*model.buffers(), *still)]
    restore_held, restore_random = _restore_held(model, loss, own=_unique_parameters(model)), _restore_random()

    def restore() -> None:
        restore_held()
        restore_random()
        for parameter, data in storage:
            parameter.data = data
        for buffer, values in buffers:
            buffer.data.copy_(values)

    return restore


def _restore_model(model: torch.nn.Module, loss: Callable[..., Any] | None) -> Callable[[], None]:
    unique = _unique_parameters(model)
    parameters = [(p, p.data, held(p), p.grad, p.requires_grad) for p in unique]
    restore_held = _restore_held(model, loss, own=unique)

    def restore() -> None:
        restore_held()
        with no_class_code():  # a parameter's class may refuse it
            for parameter, data, attributes, grad, requires_grad in parameters:
                parameter.grad = None
                parameter.data = data
                hold(parameter, attributes)
                parameter.requires_grad_(requires_grad)
                parameter.grad = grad

    return restore


def _restore_held(model: torch.nn.Module, loss: Callable[..., Any] | None, *, own: Sequence[torch.nn.Parameter]) -> Callable[[], None]:
    registered = list(model.modules())
    attributes = [(module.__dict__, dict(module.__dict__)) for module in registered]
    containers: list[tuple[Any, Any]] = []
    plain: list[tuple[torch.Tensor, torch.Tensor]] = []
    gradients: list[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]] = []  # of leaves that no module has registered
    generators: list[tuple[torch.Generator, torch.Tensor]] = []
    used = {"loss": functions.trained(loss)} if loss is not None else {}
    for value in _held([*(saved for _, saved in attributes), used], own={*map(id, own), *map(id, registered)}):
        if isinstance(value, _CONTAINERS):
            containers.append((value, _copied(value)))
        elif isinstance(value, torch.Tensor):
            plain.append((value, value.detach().clone()))
            if value.requires_grad and value.is_leaf:
                gradients.append((value, value.grad, None if value.grad is None else value.grad.detach().clone()))
        else:
            generators.append((value, value.get_state()))

    def restore() -> None:
        for target, saved in (*attributes, *containers):
            _refill(target, saved)
        for tensor, values in plain:
            with torch.inference_mode(tensor.is_inference()):
                tensor.data.copy_(values)
        for tensor, gradient, sums in gradients:
            tensor.grad = gradient
            if gradient is not None and sums is not None:
                gradient.data.copy_(sums)
        for generator, state in generators:
            generator.set_state(state)

    return restore


def _copied(container: Any) -> Any:
    """What a container holds. `()` stands for an empty one, since most are the empty hooks of modules.

    A container of the user's own class is not copied as such: making one may need arguments.
    """
    if type(container) not in _CONTAINERS:
        return dict(zip(container, container.values(), strict=False)) if isinstance(container, dict) else list(container)
    return container.copy() if container else ()


def _held(attributes: Sequence[dict[str, Any]], *, own: Collection[int]) -> Iterator[Any]:
    """Objects in modules that a run may change: containers, plain tensors and generators, also inside other containers, and the attributes of other
    objects (a counter, a cache). Objects that these refer to are not included. Modules that torch has not registered (in a list, used by a function)
    are included with their weights.

    `own` has the ids of parameters and registered modules. For the registries of these (parameters, buffers, children) only the dictionaries are
    yielded, since `refresh` replaces the contents.
    """
    waiting = [value for saved in attributes for value in saved.values()]
    registered = {id(saved[name]) for saved in attributes for name in _REGISTERED if name in saved}
    seen = set(own)
    while waiting:
        value = waiting.pop()
        if type(value) in _ATOMS or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _CHANGEABLE):
            yield value
        elif isinstance(value, torch.nn.Module):
            yield vars(value)
            waiting += vars(value).values()
        elif isinstance(value, _FUNCTIONS):
            waiting += functions.trained(value)
        elif _stateful(value):
            yield vars(value)
        if isinstance(value, _NESTING) and id(value) not in registered:
            for each in value.values() if isinstance(value, dict) else value:  # `extend` would call __len__ of a tuple's subclass
                waiting.append(each)


def _stateful(value: Any) -> bool:
    """Whether an object has attributes of its own and is not a class or a file of Python."""
    return isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, (type, types.ModuleType))


def _refill(target: Any, saved: Any) -> None:
    """Restores a container in place, since other objects refer to it (an RNN's flat weights, hooks). Does nothing if nothing has changed: a frozen
    configuration cannot be written."""
    if _same_items(target, saved):
        return
    target.clear()
    target.extend(saved) if isinstance(target, (list, deque)) else target.update(saved)


def _same_items(target: Any, saved: Any) -> bool:
    """Whether both hold the same objects in the same order."""
    if len(target) == 0 == len(saved):
        return True
    if len(target) != len(saved) or not all(map(operator.is_, target, saved)):
        return False
    return not isinstance(target, dict) or all(map(operator.is_, target.values(), saved.values()))


def _restore_random() -> Callable[[], None]:
    states: list[tuple[Callable[[Any], Any], Any]] = [(torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate())]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states.append((numpy.random.set_state, numpy.random.get_state()))

    def restore() -> None:
        for put_back, state in states:
            put_back(state)

    return restore


def seed(number: int) -> None:
    """Seeds torch's generators. Devices that are not in use are left out: a user's seed for them could not be restored."""
    device = torch.accelerator.current_accelerator()
    waits = device is None or (device.type in ("cuda", "xpu") and not getattr(torch, device.type).is_initialized())
    (torch.default_generator.manual_seed if waits else torch.manual_seed)(int(number))


@contextlib.contextmanager
def random_kept() -> Iterator[None]:
    """Restores the random states after the block."""
    with interrupts.held():
        restore = _restore_random()
        try:
            yield
        finally:
            restore()


def _restore_globals() -> Callable[[], None]:
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    before = _deterministic()

    def restore() -> None:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        if _deterministic() != before:  # to set it, torch imports its compiler, which takes two seconds
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])

    return restore


def _deterministic() -> tuple[bool, bool]:
    """Whether deterministic algorithms are required, and whether torch only warns if there is none."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _unique_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return list(dict.fromkeys(model.parameters()))


def refresh(model: torch.nn.Module, *, parameter: Change, buffer: Change) -> None:
    """Gives every parameter and buffer new storage: `parameter(value)` and `buffer(value)`. Codes are copied as they are.
    A tied tensor, registered under two names, is changed once and stays tied. Call it inside `preserved`.
    """
    for param in _unique_parameters(model):
        param.grad = None
        fresh = param.data = _changed(param.data, parameter)
        hold(param, held(fresh))
    seen: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, value in module._buffers.items():
            if value is not None:
                if id(value) not in seen:
                    seen[id(value)] = _changed(value, buffer)
                module._buffers[name] = seen[id(value)]


def _changed(value: torch.Tensor, change: Change) -> torch.Tensor:
    codes = value.is_floating_point() and not holds_numbers(value)
    return value.detach().view(torch.uint8).clone().view(value.dtype) if codes else change(value)  # torch copies float4 by bytes alone


def floats_to(dtype: torch.dtype, *, model: torch.nn.Module | None = None) -> Change:
    """A change that casts floating tensors to `dtype` and copies all others. The result never shares storage with the original.
    If `model` has float64 weights, what is float64 stays so in a float32 run: its code may hold float64 numbers that are no weights.
    """
    double = dtype is torch.float32 and model is not None and any(weight.dtype is torch.float64 for weight in model.parameters())
    kept = (torch.float64,) if double else ()

    def change(value: torch.Tensor) -> torch.Tensor:
        return cast(value, dtype) if value.is_floating_point() and value.dtype not in kept else value.detach().clone()

    return change


def rounded_to(dtype: torch.dtype) -> Change:
    """A change that casts floating tensors to `dtype` unless that makes finite values infinite."""

    def change(value: torch.Tensor) -> torch.Tensor:
        low = value.detach().to(dtype) if value.is_floating_point() else value
        held = zip(parts(low).values(), parts(value).values(), strict=True)
        return value if any(bool((after.isinf() & ~before.isinf()).any()) for after, before in held) else low

    return change


def copied(value: torch.Tensor, dtype: torch.dtype | None, *, model: torch.nn.Module) -> torch.Tensor:
    """An input for one run: a copy with the same `requires_grad`, cast if it is floating and a dtype is given.
    If the input is a parameter of the model, it stays that parameter.
    """
    if isinstance(value, torch.nn.Parameter) and any(value is own for own in model.parameters()):
        return value
    fresh = floats_to(dtype, model=model)(value) if dtype is not None else value.detach().clone()
    return fresh.requires_grad_(value.requires_grad)

