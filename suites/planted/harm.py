"""What a bug does, in figures: the error of the part that has it, and of what arrives in the result, over those of the healthy code.

Errors are relative, in the L2 norm, against the healthy network in float64 with the same weights and inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from networks import Network
from planted_bug import Planted
from training_steps import LARGEST_SCALE, Steps

import precheck

LEAST = 4.0
"""Times the healthy code's error: what the figure of a bug's part must reach for it to be called one."""


@dataclasses.dataclass(frozen=True)
class Harm:
    part: float
    result: float


Parts = dict[str, torch.Tensor]
RESULTS = ("result", "loss", "gradients", "weights")
"""What a user gets of a training step: the output, the loss, all gradients of the first step, all that the weights have moved."""


def harm(network: Network, bug: Planted, precision: str) -> Harm:
    """How many times the error of the healthy code, in the bug's part and in the worst of the results. The healthy error counts as one
    rounding of the format at least. Inf and NaN are infinite errors."""
    exact, healthy = reference(network, precision, bug.part), parts(network.code(), precision, bug.part)
    planted = parts(network.code(bug), precision, bug.part)
    least = precheck.PRECISIONS[precision].roundoff

    def figure(name: str) -> float:
        if name not in exact:
            return 0.0
        without, error = off(healthy[name], exact[name]), off(planted.get(name), exact[name])
        if not math.isfinite(without):
            raise ValueError(f"{network.name} is not healthy under {precision}: its {name} is off by {without} without a bug")
        return error / max(without, least)

    if bug.part not in exact:
        raise ValueError(f"{bug.name}: the healthy network has no part {bug.part!r}; it has {', '.join(exact)}")
    return Harm(figure(bug.part), max(figure(name) for name in RESULTS))


@functools.lru_cache(maxsize=8)
def reference(network: Network, precision: str, part: str) -> Parts:
    return parts(network.code(), precision, part, exact=True)


def parts(code: ModuleType, precision: str, part: str, *, exact: bool = False) -> Parts:
    """The parts of a run, as float64 vectors. Where float16 gradients overflow, the loss scale is halved and all begins again, as users see it."""
    scale = LARGEST_SCALE
    while True:
        with _followed(code, part) as seen:
            steps = Steps(code, precision, exact=exact, scale=scale)
            with _hooked(steps.model, part, seen):
                steps.run()
        if not steps.overflowed or scale <= 1:
            return _collected(steps, part, seen)
        scale /= 2


def off(value: torch.Tensor | None, exact: torch.Tensor) -> float:
    """The relative error; infinite where there is nothing, another size, or Inf or NaN that the reference has not."""
    if value is None or value.shape != exact.shape:
        return math.inf
    same = (value == exact) | (value.isnan() & exact.isnan())
    value, exact = value[~same], exact.masked_fill(~exact.isfinite(), 0.0)
    error = float((value - exact[~same]).norm() / exact.norm().clamp_min(1e-300)) if len(value) else 0.0
    return error if math.isfinite(error) else math.inf


def vector(value: Any) -> torch.Tensor:
    """All numbers in it, one after another; those of each tensor are taken as they are."""
    found = [each.detach().double().reshape(-1) for each in _tensors(value)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (int, float)):
        yield torch.tensor(float(value))
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif dataclasses.is_dataclass(value):
        yield from _tensors([getattr(value, field.name) for field in dataclasses.fields(value)])


def _collected(steps: Steps, part: str, seen: list[torch.Tensor]) -> Parts:
    found: Parts = {}
    if steps.output is not None:
        found["result"] = vector(steps.output)
    if steps.loss is not None:
        found["loss"] = vector(steps.loss)
    if steps.gradients:
        found["gradients"] = vector(steps.gradients)
    moves = {name: value.detach().double() - steps.start[name].double() for name, value in steps.model.named_parameters()}
    if steps.optimizer is not None:
        found["weights"] = vector(moves)
    kind, _, name = part.partition(":")
    if kind == "gradient" and name in steps.gradients:
        found[part] = vector(steps.gradients[name])
    elif kind == "parameter":
        found[part] = vector(moves[name])
    elif kind == "buffer":
        found[part] = vector(dict(steps.model.named_buffers())[name])
    elif kind == "state" and steps.optimizer is not None:
        found[part] = vector([state[name] for state in steps.optimizer.state.values()])
    elif part not in found and seen:
        found[part] = torch.cat(seen)
    return found


@contextlib.contextmanager
def _hooked(model: torch.nn.Module, part: str, seen: list[torch.Tensor]) -> Iterator[None]:
    """Notes what the module of that name returns."""
    module = dict(model.named_modules()).get(part)
    if module is None or not part:
        yield
        return
    handle = module.register_forward_hook(lambda _module, _inputs, output: seen.append(vector(output)))
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _followed(code: ModuleType, part: str) -> Iterator[list[torch.Tensor]]:
    """Notes what a function of the network returns, a method or a static method of a class of it among them."""
    seen: list[torch.Tensor] = []
    kind, _, name = part.partition(":")
    if kind != "function":
        yield seen
        return
    name, index = (name.rsplit(".", 1)[0], int(name.rsplit(".", 1)[1])) if name.rsplit(".", 1)[-1].isdigit() else (name, None)
    *owners, last = name.split(".")
    owner: Any = functools.reduce(getattr, owners, code)
    before = owner.__dict__[last]
    function: Callable[..., Any] = before.__func__ if isinstance(before, staticmethod) else before

    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        seen.append(vector(result if index is None else result[index]))
        return result

    setattr(owner, last, staticmethod(noting) if isinstance(before, staticmethod) else noting)
    try:
        yield seen
    finally:
        setattr(owner, last, before)
