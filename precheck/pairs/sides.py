"""One of the two models of a comparison, with its job and its runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precheck.analysis.noise_floor.noise_sites import noise_for
from precheck.formats import FP64
from precheck.observe.containers import tensors
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Job
from precheck.observe.profiling import UncompiledMode
from precheck.observe.recording.module_hooks import Disturbance
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import Setting, low, reference
from precheck.pairs.callables import is_compiled, keeps_formats
from precheck.pairs.capture import Capture, Captured
from precheck.pairs.steps import Steps
from precheck.precisions import Precision

Planted = Callable[[torch.nn.Module], contextlib.AbstractContextManager[None]]
"""Puts a fault into a model for the duration of a block."""
FLOAT64_ROUNDOFF = 2.0**-49
"""Roundoff for float64 when float64 itself is compared: sixteen times that of the format, as for float32 (`analysis.noise.REASSOCIATED`)."""


@dataclasses.dataclass(slots=True)
class ObservedRun:
    """The trace and the captured tensors of one run."""

    trace: Trace
    captured: Captured


class _Everywhere(set[Any]):
    """A set that contains every op, so that every result is treated as rounded."""

    def __contains__(self, key: object) -> bool:
        return True


class Side:
    """One model under one precision. A `compiled` model runs as compiled, and its exact runs use the original code.

    `around` is a context for every run. `keeps`: keep the noise runs, for a side that is compared with several others.
    """

    def __init__(
        self, job: Job, precision: Precision, *, around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        keeps: bool = False,
    ) -> None:  # fmt: skip
        self.job, self.precision, self.around, self.keeps = job, precision, around, keeps
        self._noises: dict[tuple[torch.dtype, int, bool], ObservedRun] = {}
        self.compiled = is_compiled(job.model)
        self.log = DecisionLog()
        self.steps = Steps(job)  # the optimizer's steps of the run under the precision
        self._low: ObservedRun | None = None
        self._once: ObservedRun | None = None
        self._exact: dict[tuple[torch.dtype, bool], ObservedRun] = {}

    def low(self) -> ObservedRun:
        """The run under the precision. The exact runs follow its decisions and random draws."""
        if self._low is None:
            setting = low(self.precision, records=None if self.compiled else self.log)
            with _torch_draws() if self.compiled else contextlib.nullcontext():
                self._low = self._run(dataclasses.replace(setting, compiled=self.compiled), job=self.steps.followed())
            self.log.meant.clear()  # an exact run does not round, not even where it is intended
        return self._low

    def exact(self, dtype: torch.dtype, *, free: bool = False) -> ObservedRun:
        """The run in `dtype` along the decisions of the run under the precision, or with `free` along its own. Random draws are always the same.

        Raises the model's own error if it does not run in `dtype`.
        """
        self.low()
        free = free and any(key not in self.log.drawn for key in self.log.entries)
        if self.precision.name == "64-true" and not free:
            return self.low()
        key = dtype, free
        if key not in self._exact:
            log = self.log.draws() if key[1] else self.log
            self._exact[key] = self._run(dataclasses.replace(reference(dtype, follows=log), buffers=None))
        return self._exact[key]

    def ran(self, dtype: torch.dtype) -> bool:
        """Whether the exact run in `dtype` was made."""
        return (dtype, False) in self._exact or self.precision.name == "64-true"

    def once(self, dtype: torch.dtype, *, following: bool = False) -> ObservedRun:
        """The first step only, in `dtype`, along its own decisions or `following` those of the run under the precision. Made anew, so that hooks see
        it."""
        log = self.log if following else self.log.draws()
        self._once = self._run(reference(dtype, follows=log), job=dataclasses.replace(self.job, optimizer=None, steps=1))
        return self._once

    def forward(self, dtype: torch.dtype) -> ObservedRun:
        """As `once`, up to the loss."""
        setting = dataclasses.replace(reference(dtype, follows=self.log.draws()), early=True)
        return self._run(setting, job=dataclasses.replace(self.job, optimizer=None, steps=1))

    def once_low(self) -> ObservedRun:
        """The first step only, under the precision."""
        return self._run(low(self.precision, records=DecisionLog()), job=dataclasses.replace(self.job, optimizer=None, steps=1))

    def once_captured(self) -> Captured:
        """The tensors of the last run that `once` made."""
        assert self._once is not None
        return self._once.captured

    def noise(self, dtype: torch.dtype, number: int, *, everywhere: bool = False) -> ObservedRun:
        """The exact run with the noise of correct rounding at the results of modules. At every op if there are no modules, or with `everywhere`."""
        key = dtype, number, everywhere
        if key not in self._noises:
            seen = self._noise(dtype, number, everywhere=everywhere)
            if not self.keeps:
                return seen
            self._noises[key] = seen
        return self._noises[key]

    def _noise(self, dtype: torch.dtype, number: int, *, everywhere: bool) -> ObservedRun:
        seen = self.low()
        disturbance = noise_for(self.job.model, seen.trace, self.log, self.precision, seed=number + 1)
        if self.precision.compute is FP64:
            disturbance.roundoff = FLOAT64_ROUNDOFF
            disturbance.rounded = {record.key: max(1, record.roundings) for record in seen.trace.records.values() if record.kind == "output"}
        log = self.log
        if everywhere or not any(True for _ in self.job.model.children()):
            disturbance.everywhere = True
            if not self.precision.is_low:
                log = dataclasses.replace(log, rounded=_Everywhere())
        setting = reference(dtype, follows=log, disturbance=disturbance)
        with self._disturbed_buffers(disturbance):
            return self._run(setting)

    def _run(self, setting: Setting, *, job: Job | None = None) -> ObservedRun:
        if setting.precision is None and setting.dtype is torch.float64 and keeps_formats(self.job.model):
            raise TypeError("an ONNX graph computes in its own formats")
        capture = Capture(self.job.model)
        handle = self.job.model.register_forward_pre_hook(capture.entering, with_kwargs=True)
        try:
            with self.around(), contextlib.nullcontext() if setting.precision is not None else _default(setting.dtype):
                trace = run(job or self.job, dataclasses.replace(setting, witness=capture, unmeasured=True))
        finally:
            handle.remove()
        captured = capture.finish(trace.scale)
        return ObservedRun(trace, captured)

    @contextlib.contextmanager
    def _disturbed_buffers(self, disturbance: Disturbance) -> Iterator[None]:
        """Adds the noise of one rounding to buffers (frequencies, statistics), which are as rounded as what the model computes. Uses new storage."""
        done: list[bool] = []

        def hook(module: torch.nn.Module, args: Any) -> None:
            if not done:
                done.append(True)
                for buffer in module.buffers():
                    if buffer.is_floating_point() and buffer.layout is torch.strided and not bool((buffer % 1 == 0).all()):
                        buffer.data.copy_(disturbance.parameter("", buffer.data))

        everything = dataclasses.replace(disturbance, parameters=None)  # type: ignore[type-var]
        disturbance, handle = everything, self.job.model.register_forward_pre_hook(hook)
        try:
            yield
        finally:
            handle.remove()


@contextlib.contextmanager
def _default(dtype: torch.dtype | None) -> Iterator[None]:
    """Inside, an exact run makes its own numbers in its own format too: `torch.ones(3)`, `torch.arange(3) * 0.1`, `torch.tensor([0.1])`. Torch makes
    these in its default format, from nothing or from whole numbers, so that no tensor shows what the format should be."""
    before = torch.get_default_dtype()
    if dtype is not None and torch.finfo(dtype).eps < torch.finfo(before).eps:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Floats(UncompiledMode):
    """Notes whether any op has a floating-point operand or result."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        numbers = (each for _, each in tensors((args, kwargs or {}, result)))
        self.seen = self.seen or any(each.is_floating_point() or each.is_complex() for each in numbers)
        return result


def without_floats(side: Side) -> bool:
    """Whether it computes with integers only, which are never rounded."""
    with _Floats() as floats:  # type: ignore[no-untyped-call]
        side.once_low()
    return not floats.seen


@contextlib.contextmanager
def _torch_draws() -> Iterator[None]:
    """Makes compiled code draw torch's own random numbers in torch's order, so that dropout is the same on both sides."""
    import torch._inductor.config as inductor

    with inductor.patch(fallback_random=True):
        yield
