"""Continues an optimizer alone, on samples of its weights and with the gradient of its last step, to see whether small updates ever arrive.

A short run cannot distinguish rounding that never lets a weight move from rounding that seldom does. So the optimizer continues until its
intended displacement is four spacings of the weights. What has not arrived by then never will. Once the intended displacement is constant from one
stretch of steps to the next, the rest is extrapolated. What arrives is extrapolated too, if the optimizer keeps no remainder and does not round
stochastically.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from precheck.observe import state
from precheck.observe.listeners import doing
from precheck.observe.shadow.comparing.statistics import norm, sampled
from precheck.observe.shadow.replaying.replay import LOW, local
from precheck.torch_internals import no_dispatch, version

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow

ELEMENTS = 256
"""Elements of each weight. With stochastic rounding, four standard deviations of the arrived share are 4 √(spacing / (256 · 4 spacings)) = 12 %."""
SPACINGS = 4
HORIZON = 2000
"""Most steps that are run, which takes some seconds. Updates below a five-hundredth of a spacing are not tested."""
STRETCH, STEADY = 16, 0.05
"""Steps of a stretch, and the relative difference between two stretches up to which the rest is extrapolated. A twentieth is fine, since
the question is whether half of the displacement is lost."""
UNKNOWN = 256
"""Steps to run if the length of a step is unknown."""
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks",
          "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")  # fmt: skip
_PLAIN = (int, float, str, bool, type(None), torch.Generator)


@dataclasses.dataclass(frozen=True, slots=True)
class Aged:
    """The share of a weight's intended displacement that arrived after so many steps, ⟨moved, meant⟩ / ⟨meant, meant⟩."""

    steps: int
    arrived: float


@dataclasses.dataclass(slots=True)
class _Copy:
    """A copy of an optimizer with one weight: the concatenated samples of several weights."""

    optimizer: Any
    weight: torch.nn.Parameter
    members: list[tuple[int, int]]  # id and number of elements of each weight
    gradient: torch.Tensor | None = None  # of each step, if a step overwrites it

    def step(self) -> None:
        """One step, without the hooks and schedules of the user's optimizer."""
        if self.gradient is not None and self.weight.grad is not None:
            self.weight.grad.copy_(self.gradient)
        inspect.unwrap(type(self.optimizer).step)(self.optimizer)

    def parts(self, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(whole, [count for _, count in self.members])


@dataclasses.dataclass(slots=True)
class _Wide:
    """The weight that a copy would have without rounding, 1-D: runs the same optimizer in float64."""

    copied: _Copy
    forgetful: bool = True  # whether a step's rounding error is lost, as in all of torch's own optimizers. Then the copy can be extrapolated too

    def steps(self, it: _Copy, count: int) -> None:
        for _ in range(count):
            it.step()
            self.copied.step()

    def weight(self) -> torch.Tensor:
        return self.copied.weight.detach().clone()


@dataclasses.dataclass(slots=True)
class _Shadowed:
    """The same for the user's own optimizers, which may treat float64 differently: runs a shadow beside the copy."""

    shadow: Shadow
    low: torch.Tensor
    forgetful: bool = False

    def steps(self, it: _Copy, count: int) -> None:
        with self.shadow:
            for _ in range(count):
                it.step()

    def weight(self) -> torch.Tensor:
        cell = self.shadow.memory.find(self.low)
        return (self.low.detach() if cell is None else self.shadow.memory.view(cell, self.low)).double().clone()


_Meant = _Wide | _Shadowed


@contextlib.contextmanager
def gradients_kept(weights: Iterable[torch.Tensor]) -> Iterator[None]:
    """Gives low weights their gradients back after a step that overwrites them, as Kahan summation may do to save memory."""
    with no_dispatch():
        held = [(each, each.grad.clone(), version(each.grad)) for each in weights if each.dtype in LOW and each.grad is not None]
    yield
    for each, gradient, before in held:
        if each.grad is not None and version(each.grad) != before:
            each.grad = gradient


def aged(optimizer: Any, wanted: set[int], another: Callable[[], Any], *, kept: bool = False) -> dict[int, Aged]:
    """How much arrives of the updates of the weights in `wanted`, by id. `another` makes a new shadow.

    Not tested are parameters without a gradient, with a state of another shape (Adafactor), or whose gradient a step overwrites, unless the last
    step's was `kept`. Also left out is an optimizer with attributes other than plain numbers, since a copy would share them with the user's.
    """
    if not _copyable(optimizer):
        return {}
    found: dict[int, Aged] = {}
    for group in optimizer.param_groups:
        for members in _alike(optimizer, [each for each in group["params"] if id(each) in wanted]):
            try:
                with doing("stepping the optimizer alone"), state.random_kept(), torch.no_grad():
                    found |= _shares_arrived(*_low_and_exact(optimizer, group, members, another, kept=kept))
            except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, NotImplementedError):
                continue  # it needs a closure, a matrix, or something else that samples cannot give
    return found


def _copyable(optimizer: Any) -> bool:
    """Whether a copy of the optimizer shares nothing with it that a step may change."""
    known = set(vars(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, device="cpu"))])))
    return all(name in known or name == "step" or isinstance(value, _PLAIN) for name, value in vars(optimizer).items())


def _alike(optimizer: Any, parameters: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Groups of parameters whose states have the same names and formats."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is None or parameter.grad.layout is not torch.strided or not bool(local(parameter.grad).isfinite().all()):
            continue
        held = optimizer.state.get(parameter, {})
        kinds = tuple((name, value.dtype if isinstance(value, torch.Tensor) else None) for name, value in held.items())
        groups.setdefault((parameter.dtype, parameter.device, kinds), []).append(parameter)
    yield from groups.values()


def _low_and_exact(
    optimizer: Any, group: dict[str, Any], members: list[torch.Tensor], another: Callable[[], Any], *, kept: bool
) -> tuple[_Copy, _Meant]:
    """A copy to continue, and its counterpart without rounding: a float64 copy for torch's own optimizers, a shadow for others."""
    low = _copied(optimizer, group, members)
    low.gradient = low.weight.grad.clone() if kept and low.weight.grad is not None else None
    if type(optimizer).__module__.partition(".")[0] == "torch":
        return low, _Wide(_copied(optimizer, {**group, "foreach": False, "fused": False}, members, torch.float64))
    return low, _Shadowed(another(), low.weight)


def _copied(optimizer: Any, group: dict[str, Any], members: list[torch.Tensor], dtype: torch.dtype | None = None) -> _Copy:
    """A copy of an optimizer, with samples of several weights as its one weight."""
    weight = torch.nn.Parameter(torch.cat([_sampled_weight(each) for each in members]).to(dtype))
    weight.grad = torch.cat([_sampled_weight(each.grad) for each in members if each.grad is not None]).to(dtype)
    copied = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if name != "step":  # schedules replace it on the instance
            copied.__dict__[name] = value.clone_state() if isinstance(value, torch.Generator) else value
    copied.__dict__ |= {name: collections.OrderedDict() for name in _HOOKS}
    copied.param_groups = [{**group, "params": [weight]}]
    held = {name: _in_format(value, weight, dtype) for name, value in _joined_states(optimizer, members).items()}
    copied.state = collections.defaultdict(dict, {weight: held})
    return _Copy(copied, weight, [(id(each), _sampled_weight(each).numel()) for each in members])


def _in_format(value: Any, weight: torch.Tensor, dtype: torch.dtype | None) -> Any:
    """A state in the format of the weights, if it has their shape."""
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.shape == weight.shape and value.is_floating_point() else value


def _joined_states(optimizer: Any, members: list[torch.Tensor]) -> dict[str, Any]:
    """The members' states, concatenated like the members. A state of one number is the first member's."""
    states = [optimizer.state.get(each, {}) for each in members]
    made = {}
    for name, value in states[0].items():
        if not isinstance(value, torch.Tensor):
            made[name] = copy.copy(value)
        elif value.shape == members[0].shape:
            made[name] = torch.cat([_sampled_weight(each[name]) for each in states])
        elif value.numel() == 1:
            made[name] = value.clone()
        else:
            raise ValueError(f"{name} has a shape of its own")
    return made


def _sampled_weight(tensor: torch.Tensor) -> torch.Tensor:
    return sampled(local(tensor).detach(), ELEMENTS).clone()


def _shares_arrived(it: _Copy, meant: _Meant) -> dict[int, Aged]:
    """How much arrives of the updates of a copy's members. Continues the copy, and its counterpart without rounding."""
    start, given = it.weight.detach().clone().double(), None if it.weight.grad is None else it.weight.grad.clone()
    meant.steps(it, 1)
    if given is None or it.weight.grad is None or (it.gradient is None and not torch.equal(it.weight.grad, given)):
        return {}  # the step overwrites the gradient, and what the last one has left there is none
    first, epsilon = meant.weight() - start, torch.finfo(it.weight.dtype).eps
    needed = [_needed(was, step, epsilon) for was, step in zip(it.parts(start), it.parts(first), strict=True)]
    steps = max((each for each in needed if each <= HORIZON), default=0)
    moved, wanted = (end - start for end in _weights_after(it, meant, steps - 1))
    found = {}
    for (number, _), own, whole, enough in zip(it.members, it.parts(moved), it.parts(wanted), needed, strict=True):
        if norm(whole) > 0 and enough <= steps:
            found[number] = Aged(steps, float((own * whole).sum()) / norm(whole) ** 2)
    return found


def _weights_after(it: _Copy, meant: _Meant, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The copy's weight after so many more steps, and the weight without rounding."""
    before = None
    while steps >= STRETCH:
        low, aim = it.weight.detach().double(), meant.weight()
        meant.steps(it, STRETCH)
        steps -= STRETCH
        move = meant.weight() - aim
        if before is not None and norm(move - before) <= STEADY * norm(move):
            return _copy_after(it, low, steps, forgetful=meant.forgetful), meant.weight() + move * (steps / STRETCH)
        before = move
    meant.steps(it, steps)
    return it.weight.detach().double(), meant.weight()


def _copy_after(it: _Copy, before: torch.Tensor, steps: int, *, forgetful: bool) -> torch.Tensor:
    """The copy's weight after so many more steps, without a shadow. `before` is its weight one stretch ago."""
    if forgetful:
        now = it.weight.detach().double()
        return now + (now - before) * (steps / STRETCH)
    for _ in range(steps):
        it.step()
    return it.weight.detach().double()


def _needed(start: torch.Tensor, step: torch.Tensor, epsilon: float) -> int:
    """How many steps of this size make four spacings, by the medians of both.

    If the shadow did not move either, it follows stochastic rounding, and only more steps can show that it moves.
    """
    length, spacing = float(step.abs().median()), float(start.abs().median()) * epsilon
    return int(SPACINGS * spacing / length) + 1 if length else UNKNOWN
