"""Records calls of gradient scalers, optimizers and learning rate schedules while a block is watched, by wrappers of their methods.

The methods are wrapped on torch's classes, so subclasses and any loop are seen. Each wrapper calls the method unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck.observe.shadow.places.module_tracker import ModuleTracker
from precheck.observe.shadow.replaying.replay import addressable, local
from precheck.observe.shadow.training.loss_scales import LossScales
from precheck.observe.shadow.training.losses import Backwards
from precheck.observe.shadow.training.optimizers import highest_rates, parameters, rates, stateless
from precheck.observe.shadow.training.step_records import ScalerStep, ScalingEvent
from precheck.torch_internals import found_inf, made_scale, scale_of, storage_key, version, without_modes

__tracebackhide__ = True  # pytest leaves out this module's frames, which lie between the user's line and torch's error
Describe = Callable[[str], Any]
"""Makes an operation of that name at the program's current line."""


class Scalers:
    """The wrappers, and what they remember of each scaler, optimizer and schedule."""

    def __init__(self, tracker: ModuleTracker, scales: LossScales, backwards: Backwards, describe: Describe) -> None:
        self.tracker, self.scales, self.backwards, self.describe = tracker, scales, backwards, describe
        self.taken: list[ScalerStep] = []  # steps, taken or skipped
        self.made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # where each scaler was made
        self.restored: weakref.WeakSet[Any] = weakref.WeakSet()  # scalers with a loaded state
        self.resumed: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers with a loaded state
        self.skipped: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()  # whether an optimizer's last step was skipped
        self.ahead: weakref.WeakKeyDictionary[Any, tuple[int, float]] = weakref.WeakKeyDictionary()  # a schedule's steps without an optimizer step
        self.steps: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # where each scaler last stepped
        self.backs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # each scaler's last backward pass
        self.stepping = 0
        self.last: weakref.WeakKeyDictionary[Any, tuple[bool, Gradients]] = weakref.WeakKeyDictionary()  # of each optimizer

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, the methods are wrapped."""
        scaler, optimizer, schedule = torch.amp.GradScaler, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
        with contextlib.ExitStack() as stack:
            for owner, name, around in (
                (scaler, "__init__", self._init), (scaler, "scale", self._scale), (scaler, "unscale_", self._unscale), (scaler, "step", self._step),
                (scaler, "update", self._update), (scaler, "load_state_dict", self._restore), (optimizer, "load_state_dict", self._resume),
                (scaler, "get_scale", self._ask), (schedule, "step", self._schedule),
            ):  # fmt: skip
                stack.callback(_wrap(owner, name, functools.partial(self._here, around)))
            self.tracker.on_step += [self._repeated, self._applied]
            self.tracker.after_step.append(self._took)
            yield

    def _here(self, around: Callable[..., Any], call: Callable[[], Any], *given: Any) -> Any:
        """Runs `around` only in the watched thread, since methods of a class are called in all threads."""
        return around(call, *given) if self.tracker.belongs() else call()

    def _init(self, call: Callable[[], Any], scaler: Any, *given: Any) -> Any:
        result = call()
        self.made[scaler] = self.describe("GradScaler")
        return result

    def _scale(self, call: Callable[[], Any], scaler: Any, outputs: Any, *given: Any) -> Any:
        """Around `scale`: gives the scale its factor, and notes the backward pass that follows."""
        if scaler.is_enabled():
            first = next(iter([outputs] if isinstance(outputs, torch.Tensor) else outputs), None)
            with without_modes():
                if isinstance(first, torch.Tensor):
                    made_scale(scaler, first.device)
                self._carry(scaler)
            self.backs[scaler] = self.backwards.now
        return call()

    def _ask(self, call: Callable[[], Any], scaler: Any, *given: Any) -> Any:
        """Around `get_scale`: remembers the number that the program has read."""
        value = call()
        if scaler.is_enabled() and value > 1:
            self.scales.asked.add(value)
            self.scales.newest = value
        return value

    def _carry(self, scaler: Any) -> None:
        """Gives the scale its own value as its factor, so that a product with it is scaled."""
        scale = scale_of(scaler)
        if scale is not None:
            value = self.tracker.scale = float(scale)
            self.scales.known.add(value)
            self.scales.own.add(storage_key(scale))
            self.scales.give(scale, value)

    def _unscale(self, call: Callable[[], Any], scaler: Any, optimizer: Any, *given: Any) -> Any:
        if scaler.is_enabled():
            self._half(optimizer)
        return self._explained(call)

    def _step(self, call: Callable[[], Any], scaler: Any, optimizer: Any, *given: Any) -> Any:
        """Around `step`: records it, with its scale and whether it was skipped."""
        if not scaler.is_enabled():
            return self._within(call)
        self._half(optimizer)
        if optimizer in self.resumed and scaler in self.made and scaler not in self.restored and scaler not in self.steps:
            self._event("fresh", operation=self.made[scaler])
        place = self.steps[scaler] = self.describe("step")
        result = self._within(lambda: self._explained(call))
        with without_modes():
            skipped = self.skipped[optimizer] = found_inf(scaler, optimizer)
            scale, interval = float(scale_of(scaler)), scaler.get_growth_interval()
        if skipped:
            self.last.pop(optimizer, None)  # a fused optimizer ran and did nothing
            self._mixed(optimizer)  # a lower scale would have applied these sums
        back, number, stepped = self.backs.get(scaler, self.backwards.now), self.tracker.identity(scaler), self.tracker.identity(optimizer)
        step = ScalerStep(number, place, scale, interval, skipped, back, stepped, self.made.get(scaler))
        both = self.taken[-2].with_next(self.taken[-1]) if len(self.taken) > 1 else None
        if both is not None:  # the newest step stays apart, since its backward pass may still change until the update
            self.taken[-2:] = [both]
        self.taken.append(step)
        return result

    def _within(self, call: Callable[[], Any]) -> Any:
        """Runs what a scaler calls. Optimizer steps in it come through the scaler."""
        self.stepping += 1
        try:
            return call()
        finally:
            self.stepping -= 1

    def _update(self, call: Callable[[], Any], scaler: Any, *given: Any) -> Any:
        """Around `update`: notes a scale that collapses."""
        with without_modes():
            tensor = scale_of(scaler)
            before = float(tensor) if tensor is not None else math.inf
        result = self._explained(call)
        if scaler.is_enabled() and scale_of(scaler) is not None:
            with without_modes():
                self._carry(scaler)
                self.backwards.done()
                if self.tracker.scale < min(1.0, before) or self.tracker.scale == 0:
                    self._event("collapsed", operation=self.steps.get(scaler), factor=self.tracker.scale)
        return result

    def _restore(self, call: Callable[[], Any], scaler: Any, *given: Any) -> Any:
        self.restored.add(scaler)
        return call()

    def _resume(self, call: Callable[[], Any], optimizer: Any, state: Any = None, *given: Any) -> Any:
        if not isinstance(state, dict) or state.get("state") or (state.get("param_groups") and stateless(optimizer)):
            self.resumed.add(optimizer)  # an empty state that a step would fill does not count: cross-validation may reset an optimizer so
        return call()

    def _schedule(self, call: Callable[[], Any], schedule: Any, *given: Any) -> Any:
        """Around a schedule's step: notes one that goes on although the optimizer's step was skipped."""
        optimizer = getattr(schedule, "optimizer", None)
        if optimizer is None or not self.skipped.get(optimizer):
            return call()
        before, highest = rates(optimizer), highest_rates(optimizer)
        result = call()
        after = zip(before, rates(optimizer), highest, strict=False)
        moved = max((abs(now - was) / max(now, top) for was, now, top in after if max(now, top) > 0), default=0.0)
        times, lost = self.ahead.get(schedule, (0, 0.0))
        times, lost = self.ahead[schedule] = times + 1, lost + moved
        self._event("scheduled", factor=float(times), other=lost)
        return result

    def _half(self, optimizer: Any) -> None:
        """Notes float16 gradients, which a scaler does not unscale."""
        half = sum(p.grad is not None and p.grad.dtype == torch.float16 for group in optimizer.param_groups for p in group["params"])
        if half:
            self._event("half", factor=float(half))

    def _explained(self, call: Callable[[], Any]) -> Any:
        """Runs a call. Notes an error that the scaler itself raises."""
        try:
            return call()
        except (RuntimeError, AssertionError, ValueError) as error:
            if raised_by_scaler(error):
                self._event("refused", text=str(error).splitlines()[0])
            raise

    def _took(self, optimizer: Any) -> None:
        self.last[optimizer] = (self.stepping > 0, _gradients(optimizer))
        for parameter in parameters(optimizer) if self.scales.factors else ():
            if math.isnan(self.scales.of(parameter)):
                self.scales.give(parameter, 1.0)  # a weight is never scaled, even if its gradient's factor is unknown

    def _repeated(self, optimizer: Any) -> None:
        """Before an optimizer's step: notes if the same step was taken already, once through a scaler and once directly.

        Gradients are the same by storage and version: a backward pass, clipping or zero_grad between two steps changes these. Code that
        steps twice on purpose (closures, restarts, look-ahead) makes both calls in the same way. A wrapper counts as another optimizer.
        """
        through, before = self.last.get(optimizer, (None, {}))
        if through is not None and through != (self.stepping > 0) and before and before == _gradients(optimizer):
            self._event("repeated")

    def _applied(self, optimizer: Any) -> None:
        """Before an optimizer's step: notes gradients that still carry a scale. A fused optimizer unscales in its kernel, if a scaler called it."""
        if self.stepping and getattr(optimizer, "_step_supports_amp_scaling", False):
            return
        if self._mixed(optimizer):
            return
        factors = (self.scales.of(parameter.grad) for parameter in parameters(optimizer) if parameter.grad is not None)
        factor = next((each for each in factors if each != 1 and not math.isnan(each)), 1.0)
        if factor != 1:
            self._event("applied", factor=factor, text="divided" if factor and 1 / factor in self.scales.known else "")

    def _mixed(self, optimizer: Any) -> bool:
        """Whether a gradient that an optimizer takes is a sum of terms under different scales. Notes the first such sum."""
        mixtures = (self.scales.mixture(parameter.grad) for parameter in parameters(optimizer) if parameter.grad is not None)
        mixture = next((each for each in mixtures if each is not None), None)
        if mixture is None:
            return False
        if not any(each.kind == "mixed" and each.operation.step == mixture.operation.step for each in self.scales.events):
            self.scales.add(mixture)  # else it follows from a sum that is recorded already
        return True

    def _event(self, kind: str, *, operation: Any = None, factor: float = 1.0, other: float = 1.0, text: str = "") -> None:
        self.scales.add(ScalingEvent(kind, operation or self.describe("step"), factor, other, text))


def raised_by_scaler(error: BaseException) -> bool:
    """Whether a scaler's own code raised an error. The optimizer that it calls, or the loss that it multiplies, may raise others."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__", "")).endswith("grad_scaler")


Gradients = dict[int, tuple[StorageWeakRef, int]]
"""Each gradient's storage and version, by the parameter's id. The weak reference keeps the storage's address from being reused."""


def _gradients(optimizer: Any) -> Gradients:
    given = ((id(parameter), local(parameter.grad)) for parameter in parameters(optimizer) if parameter.grad is not None)
    return {number: (StorageWeakRef(grad.untyped_storage()), version(grad))
            for number, grad in given if addressable(grad) and not grad.is_inference()}  # fmt: skip


_MARK = "_precheck_watches"
_lock = threading.Lock()
_around: dict[tuple[Any, str], list[Callable[..., Any]]] = {}  # the wrappers of each method; blocks in several threads may end in any order


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Wraps a method with `around(call, self, ...)`, where `call()` calls the method. Returns a function that removes the wrapper."""
    with _lock:
        if (owner, name) not in _around:
            _install(owner, name)
        _around[owner, name].append(around)
    return lambda: _unwrap(owner, name, around)


def _install(owner: Any, name: str) -> None:
    original, arounds = owner.__dict__[name], _around.setdefault((owner, name), [])

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, *args, **kwargs)
        for around in tuple(arounds):
            call = functools.partial(around, call, self, *args, *kwargs.values())
        return call()

    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)


def _unwrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    with _lock:
        _around[owner, name].remove(around)
        if not _around[owner, name]:
            del _around[owner, name]
            if hasattr(owner.__dict__[name], _MARK):  # else other code has wrapped the wrapper, which now only calls the method
                setattr(owner, name, owner.__dict__[name].__wrapped__)
