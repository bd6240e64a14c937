"""Measures how much of each optimizer step arrives in low-format weights. The shadow's displacement is the intended one.

It covers any optimizer, also foreach and fused ones, and loops that write weights by hand, since it depends on the values.
A step lies between an optimizer's two hooks. For a weight without an optimizer it lies between two of its gradients. Where the program then puts
back what the weight was before such a step, it takes the step back, and the step does not count.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch

from precheck import formats, ops
from precheck.observe.shadow.comparing import fetching
from precheck.observe.shadow.comparing.statistics import norm, ratio, sampled, share
from precheck.observe.shadow.memory.cells import Memory
from precheck.observe.shadow.memory.stable_ids import Identities, WeakReference
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.replaying.replay import addressable, local
from precheck.observe.shadow.training import optimizer_rollout
from precheck.observe.shadow.training.optimizers import decays, group_of, parameters, rate, states
from precheck.observe.shadow.training.step_records import Before, OptimizerState, Update
from precheck.torch_internals import storage_key

Samples = tuple[torch.Tensor, torch.Tensor]
HELD = 0.5
"""A state tensor holds the lost remainder if it explains at least half of the loss. Kahan's remainder explains all but its own rounding."""
SAMPLE = 1 << 14
"""Elements of a sample. An arrived share is then known to 1 % if half of the elements move by chance."""
CERTAIN = 0.9
"""From this share of arrived displacement on, no further test is made."""
_WALK = 4096  # most values on the way back from a weight


@dataclasses.dataclass(slots=True)
class _Seen:
    """A parameter's `Update` so far, with the displacement of its sample since the first step."""

    update: Update
    parameter: WeakReference
    optimizer: weakref.ref[Any] | None = None
    group: int = -1  # the parameter's, in its optimizer
    rate: float = 0.0  # learning rate of the last step
    displaced: Samples | None = None  # how far all steps moved the parameter, and its shadow
    states: dict[str, tuple[torch.Tensor, torch.Tensor, int]] = dataclasses.field(default_factory=dict)  # at the first step, and steps since
    wrote: dict[str, str] = dataclasses.field(default_factory=dict)  # the line that writes each state
    last: Before | None = None  # the parameter before its last step
    earlier: tuple[Update, Samples | None] | None = None  # what was known before the last step

    def stepped(self, gradient: Value | None, names: tuple[str, ...], back: bool, *samples: torch.Tensor) -> None:
        """Adds a step. Takes samples of the parameter and its shadow before and after the step, then of each state tensor and its shadow.
        `names`: those of the state tensors, "" for one in a wide format. `back`: this step is instead of the last one."""
        if back and self.earlier is not None:
            self.update, self.displaced = self.earlier
        self.earlier = dataclasses.replace(self.update, states=dict(self.update.states)), self.displaced
        wide = samples[3].dtype
        was, was_shadow, now, shadow, *states = (sample.to(wide) for sample in samples)
        moved, meant = now - was, shadow - was_shadow
        if not bool((shadow != was_shadow).any()) and not bool(moved.any()):
            return
        self.update.size, self.update.sampled = norm(now), now.numel()
        missing = self._moved(moved, meant, shadow != was_shadow, gradient.drift if gradient is not None else 0.0)
        pairs = list(zip(states[::2], states[1::2], strict=True))
        self.update.held = self._held(missing, pairs)
        for name, (own, other) in zip(names, pairs, strict=True):
            if name:
                self.kept(name, own, other)

    def _moved(self, moved: torch.Tensor, meant: torch.Tensor, wanted: torch.Tensor, drift: float) -> torch.Tensor:
        """Adds a step, and returns what all steps are short of. `wanted`: the elements that it should have moved. `drift`: that of its gradient."""
        update, before = self.update, self.displaced
        far, aim = self.displaced = (moved, meant) if before is None else (before[0] + moved, before[1] + meant)
        update.steps, update.rated = update.steps + 1, update.rated + self.rate**2
        update.first_drift, update.gradient_drift = update.first_drift if before else drift, max(update.gradient_drift, drift)
        common, square = _products(moved, meant)
        update.common, update.wanted = update.common + common, update.wanted + square
        update.moved = int(torch.count_nonzero(far))
        common, square = _products(far, aim)
        update.arrived = common / max(square, torch.finfo(torch.float32).tiny)
        stuck, sizes = wanted & (moved == 0), meant.abs()
        absorbed, mass = ratio(share(stuck), share(wanted)), ratio(float(torch.where(stuck, sizes, 0.0).sum()), float(sizes.sum()))
        update.absorbed += (absorbed - update.absorbed) / update.steps
        update.mass += (mass - update.mass) / update.steps
        return aim - far

    def _held(self, missing: torch.Tensor, states: list[Samples]) -> bool:
        """Whether a state tensor, of either sign, holds what is `missing`. Each comes with its shadow."""
        unit = torch.finfo(getattr(torch, self.update.dtype)).eps * self.update.size
        excesses = (own - other for own, other in states if norm(own) <= unit)
        return any(min(norm(missing - excess), norm(missing + excess)) < HELD * norm(missing) for excess in excesses)

    def kept(self, name: str, own: torch.Tensor, other: torch.Tensor) -> None:
        """Measures how much of a state tensor's displacement since the first step arrived. `other` is its shadow."""
        start, start_shadow, steps = self.states.setdefault(name, (own, other, 0))
        self.states[name] = start, start_shadow, steps + 1
        moved, meant = own - start, other - start_shadow
        wanted = norm(meant)
        arrived = _products(moved, meant)[0] / wanted**2 if wanted else 1.0
        vanished, wrote = self._vanished(own, other), self.wrote.get(name, "")
        self.update.states[name] = OptimizerState(steps, arrived, ratio(wanted, norm(start)), share(moved != 0), vanished, wrote)

    def _vanished(self, own: torch.Tensor, other: torch.Tensor) -> float:
        """Share of a state tensor's elements that are below its format's smallest number and have become zero. Those below float32's smallest
        normal number do not count: many devices flush them in float32 too."""
        if int(torch.count_nonzero(own)) == own.numel():
            return 0.0
        there = other.abs() >= torch.finfo(torch.float32).tiny
        small = other.abs() <= formats.of_dtype(self.update.dtype).min_subnormal
        return ratio(share((own == 0) & there & small), share(there))


class Updates:
    """Follows low-format parameters through their steps."""

    def __init__(self, memory: Memory, low: frozenset[torch.dtype], identity: Identities, another: Callable[[], Any]) -> None:
        self.memory, self.low = memory, low
        self.identity, self.another = identity, another  # the latter makes a new shadow
        self.seen: dict[int, _Seen] = {}
        self.idle: dict[int, _Seen] = {}  # steps under a gradient of zero, made by weight decay alone
        self.before: dict[int, Before] = {}  # parameters of an optimizer, during its step
        self.by_hand: dict[int, Before] = {}  # parameters without a known optimizer, since their last gradient
        self.optimized: set[int] = set()
        self.doubtful: set[int] = set()  # parameters whose first step may come from a master copy

    def begin(self, optimizer: Any, seen: int) -> None:
        """Before a step: takes samples of each low parameter and of its shadow."""
        for parameter in parameters(optimizer):
            number = self.identity(parameter)
            self.optimized.add(number)
            self.by_hand.pop(number, None)
            if self._follows(parameter):
                self.before[number] = self._looked_at(parameter, seen)

    def end(self, optimizer: Any, names: dict[int, str], operation: Operation) -> None:
        """After a step: compares the intended and the actual displacement."""
        for parameter in parameters(optimizer):
            number = self.identity(parameter)
            was = self.before.pop(number, None)
            if was is not None:
                self._stepped(parameter, was, names.get(number, ""), operation, states(optimizer, parameter), weakref.ref(optimizer))

    def gradient(self, parameter: torch.Tensor, name: str, seen: int) -> None:
        """A parameter's gradient has been accumulated. If no optimizer holds it, changes since its last gradient were a step by hand."""
        number = self.identity(parameter)
        if number in self.optimized or not self._follows(parameter):
            return
        was = self.by_hand.get(number)
        if was is not None:
            self._by_hand(parameter, was, name)
        self.by_hand[number] = self._looked_at(parameter, seen)

    def finish(self, observation: Observation, names: dict[int, str]) -> None:
        """Puts all updates into the observation. Where there were too few steps to tell, the optimizer is continued alone."""
        for number, was in self.by_hand.items():
            parameter, seen = was.parameter(), self.seen.get(number)
            if parameter is not None and not (seen and seen.update.held):  # the remainder of the last step may be gone with its function
                self._by_hand(parameter, was, names.get(number, ""))
        every = [each for each in self.seen.values() if each.update.steps]
        self._aged([each for each in every if _unsure(each.update)])
        observation.updates, observation.optimized = [each.update for each in every], self.optimized
        observation.decays = [each.update for each in self.idle.values() if each.update.steps]

    def _aged(self, unsure: list[_Seen]) -> None:
        for optimizer in {id(made): made for each in unsure if each.optimizer and (made := each.optimizer()) is not None}.values():
            own = {id(made): each for each in unsure if each.optimizer and each.optimizer() is optimizer and (made := each.parameter()) is not None}
            for number, aged in optimizer_rollout.aged(optimizer, set(own), self.another).items():
                own[number].update.aged, own[number].update.horizon = aged.arrived, aged.steps

    def _by_hand(self, parameter: torch.Tensor, was: Before, name: str) -> None:
        cell = self.memory.find(local(parameter))
        if cell is not None and cell.value is not was.content and cell.value.maker is not None:
            self._stepped(parameter, was, name, dataclasses.replace(cell.value.maker, phase="optimizer", inputs=(), outputs=()), {}, None)

    def _stepped(
        self, parameter: torch.Tensor, was: Before, name: str, operation: Operation, states: dict[str, torch.Tensor], optimizer: Any
    ) -> None:
        mine = local(parameter)
        cell = self.memory.find(mine)
        between = _made_of(cell.value, was.content, was.seen) if cell is not None else set()
        number = self.identity(parameter)
        last = self.seen[number].last if number in self.seen and optimizer is None else None
        back = False
        if cell is not None and not between and last is not None:  # an older content, kept by the program, may have been put back
            back, was, between = True, last, _made_of(cell.value, last.content, last.seen)
        if cell is None or not between:
            return
        owner = optimizer() if optimizer else None
        idle = was.unused and self._unused(parameter)
        if idle and not decays(owner, parameter):
            return
        every = self.idle if idle else self.seen
        seen = every.get(number)
        if seen is None and number not in self.doubtful and number not in self.seen and self._mastered(between - {cell.value}, was):
            self.doubtful.add(number)
            return
        if seen is None:
            update = Update(name, tuple(mine.shape), cell.value.dtype, operation)
            update.wrote = cell.value.maker.blamed if cell.value.maker is not None else ""
            seen = every[number] = _Seen(update, self.identity.refer(parameter), optimizer, group_of(owner, parameter))
        seen.last, seen.rate, gradient = was, rate(owner, seen.group), was.gradient
        if gradient is None and parameter.grad is not None:  # a closure made it during the step
            gradient = self._value(parameter.grad)
        written = ((name, self._value(state)) for name, state in states.items())
        seen.wrote = {name: held.maker.blamed for name, held in written if held is not None and held.maker is not None}
        elsewhere = self._elsewhere(mine, was, list(states.values()))
        low = [name if state.dtype in self.low else "" for name, state in states.items()] + [""] * len(elsewhere)
        samples = [each for state in (*states.values(), *elsewhere) for each in self._sample(state)]
        seen.stepped(gradient, tuple(low), back, *fetching.fetched([was.values, was.shadow, *self._sample(mine, whole=True), *samples]))

    def _elsewhere(self, mine: torch.Tensor, was: Before, known: list[torch.Tensor]) -> list[torch.Tensor]:
        """Other tensors of the weight's size that were written during the step. If the weight mostly did not move, they may hold the remainder."""
        if share(sampled(mine.detach(), fetching.SAMPLE if fetching.elsewhere(mine) else SAMPLE) == was.values) <= 0.5:
            return []
        seen = {storage_key(tensor) for tensor in (mine, *known)}
        return [each for each in self.memory.made_since(was.seen, mine.numel()) if storage_key(each) not in seen]

    def _mastered(self, between: set[Value], was: Before) -> bool:
        """Whether a wide tensor that is still alive was computed from the weight, as a master copy is at the first step.
        From the second step on, a master copy is computed from itself and not from the weight."""
        wide = (value for value in self.memory.holding(between) if not value.low and math.prod(value.shape) >= was.values.numel())
        return any(_made_of(value, was.content, was.seen) for value in wide)

    def _follows(self, parameter: torch.Tensor) -> bool:
        return parameter.dtype in self.low and addressable(local(parameter)) and local(parameter).numel() > 0

    def _looked_at(self, parameter: torch.Tensor, seen: int) -> Before:
        """What is kept of a parameter before a step."""
        mine = local(parameter)
        values, shadow = self._sample(mine, whole=True)
        gradient = self._value(parameter.grad) if parameter.grad is not None else None
        if mine.numel() <= values.numel():  # a sample of a larger tensor is a copy already
            values, shadow = values.clone(), shadow.clone()
        return Before(values, shadow, self._value(mine), seen, gradient, self._unused(parameter), self.identity.refer(parameter))

    def _unused(self, parameter: torch.Tensor) -> bool:
        """Whether its gradient is zero, so that only weight decay moves it. Checked before and after a step, since a closure may make a gradient
        and a loop may clear it. On an accelerator this waits for the device."""
        gradient = None if parameter.grad is None else local(parameter.grad)
        if gradient is None or not addressable(gradient):
            return False
        return not bool(sampled(gradient, SAMPLE).any())

    def _value(self, tensor: torch.Tensor) -> Value | None:
        cell = self.memory.find(local(tensor)) if tensor.layout is torch.strided else None
        return cell.value if cell is not None else None

    def _sample(self, tensor: torch.Tensor, *, whole: bool = False) -> Samples:
        """Samples of a tensor and its shadow. Without one, a `whole` tensor is its own shadow. Any other may be a remainder: its shadow is zero."""
        limit = fetching.SAMPLE if fetching.elsewhere(tensor) else SAMPLE
        values, cell = sampled(tensor.detach(), limit), self.memory.find(tensor)
        if cell is not None:
            return values, sampled(self.memory.view(cell, tensor), limit)
        return values, values if whole else torch.zeros_like(values)


def _products(moved: torch.Tensor, meant: torch.Tensor) -> tuple[float, float]:
    """<moved, meant> and <meant, meant>."""
    return float(torch.dot(moved, meant)), float(torch.dot(meant, meant))


def _unsure(update: Update) -> bool:
    """Whether the steps were too few to tell: not all arrived, or a remainder holds them, and in total they amount to few spacings.

    Under stochastic rounding the arrived share is 1 ± √(spacing / (step · elements · steps)). If it is more than four such deviations below 1,
    the loss is not chance.
    """
    share = max(update.edq, update.arrived)
    if not update.wanted or (not update.held and share > CERTAIN):
        return False
    spacing, length = torch.finfo(getattr(torch, update.dtype)).eps * update.size, math.sqrt(update.wanted * update.steps)
    long_enough = length >= optimizer_rollout.SPACINGS * spacing
    return not (long_enough or (not update.held and share + 4 * math.sqrt(spacing / (length * update.sampled)) < 1))


def _made_of(new: Value, old: Value | None, seen: int) -> set[Value]:
    """The values that were made since, on the way from a weight's old content to its new one. Empty if the new one is not computed from the old.
    A gradient was made before the step, so a path through it does not count. Neither does content that a copy overwrites."""
    ahead, known = [new], {new}
    found = old is None or old is new
    while ahead and len(known) < _WALK:
        value = ahead.pop()
        if value.maker is None or value.maker.number <= seen:
            continue
        inputs = value.maker.inputs if value.maker.base not in ops.FRESH else ()
        if value.maker.base == "copy":
            inputs = inputs[len(inputs) // 2 :]
        elif value.maker.base == "split_with_sizes_copy":  # FSDP's copy into gathered weights
            inputs = inputs[:1]
        found |= old in inputs
        fresh = [each for each in inputs if each not in known]
        known.update(fresh)
        ahead += fresh
    return known if found or ahead else set()
