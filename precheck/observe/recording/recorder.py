"""Writes records of tensors into a trace. On an accelerator the numbers of many tensors are fetched in one transfer.

Reading a number from a GPU waits for all work queued before it, so no number is read until `learn` is called.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Protocol

import numpy
import torch

from precheck.observe.recording import reduce
from precheck.observe.recording.reduce import SAMPLE, Sample, facts, real, thinned
from precheck.observe.recording.sketch import BLOCK, WIDTH
from precheck.observe.records import Kind, Record, Trace
from precheck.observe.setting import Setting
from precheck.observe.shadow.comparing import fetching
from precheck.observe.shadow.comparing.statistics import sampled
from precheck.torch_internals import foreach_norm, foreach_sub, no_dispatch, set_grad_enabled

_TOGETHER = 16 * SAMPLE  # elements that are reduced together: 1 to 4 MB
_WAITING = 256  # most tensors that wait for it: 16 to 64 MB if all are samples of large tensors
_LENGTHS = (16 * WIDTH, BLOCK, SAMPLE)  # tensors are padded to the next of these lengths
FILL = 2.0**-8
"""How far a fill of float16 may be from its greatest number, relative to that, once scores have been added to it: eight of its spacings."""
_UNKNOWN: dict[str, Any] = {"sketch": numpy.zeros(WIDTH), "norm": math.nan, "amax": math.nan}


class Waiting:
    """Calls that wait for tensors of an accelerator, in the order in which they were made. All come at the end of a run, by one transfer for each
    dtype."""

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[torch.Tensor], Callable[..., None]]] = []

    def add(self, tensors: Sequence[torch.Tensor], then: Callable[..., None]) -> None:
        """`then` is called with the tensors on the host. Nothing may write into them before that."""
        self.calls.append((tensors, then))

    def flush(self) -> None:
        """Fetches all tensors, and makes the calls."""
        calls, self.calls = self.calls, []
        held = iter(fetching.fetched([tensor for tensors, _ in calls for tensor in tensors]))
        for tensors, then in calls:
            then(*(next(held) for _ in tensors))


@dataclasses.dataclass(slots=True, eq=False)
class Moved:
    """A parameter, with its elements now and before the first step, or with the same sample of both."""

    name: str
    parameter: torch.Tensor
    now: torch.Tensor
    start: torch.Tensor


@dataclasses.dataclass(slots=True, eq=False)
class _Part:
    """The part of a tensor that waits on a CPU to be reduced: all of it if it is short, else a sample. `known` has figures of the whole."""

    values: torch.Tensor  # 1-D, real, of SAMPLE elements at most
    elements: int  # of the whole
    known: dict[str, Any] = dataclasses.field(default_factory=dict)


class Witness(Protocol):
    """Another observer of each recorded tensor, and of the model's result (kind "result")."""

    def boundary(self, kind: str, name: str, step: int, tensor: torch.Tensor) -> None: ...

    def moves(self, step: int, moved: Sequence[Moved]) -> None:
        """Called with parameters that have moved. Each displacement is also a boundary of kind "update"."""


class Recorder:
    """Records tensors of a run as its setting says. A sample is enough for the records in `sampled`."""

    def __init__(self, trace: Trace, setting: Setting | None = None, *, sampled: Container[str] = ()) -> None:
        setting = setting or Setting(None)
        self.trace, self.sampled, self.fast_path, self.witness = trace, sampled, setting.fast_path, setting.watching
        self.finds_sample_sizes, self.unmeasured = setting.finds_sample_sizes, setting.unmeasured
        self.later = Waiting()
        self.parts: dict[str, _Part] = {}  # by record, to be reduced together

    def add(self, kind: Kind, name: str, step: int, tensor: torch.Tensor, roundings: int = 0, *, alone: bool = False) -> None:
        """Records a tensor, or a sample of it if the job says that this is enough. `alone`: the magnitude is taken from the sample too.
        Tensors between modules are recorded so, except in float16, where single elements may leave the range. Inf and NaN that matter
        reach the result, the loss or a parameter's gradient, which are examined whole.
        """
        key = f"{kind}:{name}@{step}"
        alone = alone or (kind in ("output", "gradient", "handed") and tensor.dtype is not torch.float16)
        sample: Sample = "" if key not in self.sampled else "alone" if alone else "folded"
        with no_dispatch():
            seen = tensor if kind != "returned" else without_fill(tensor, tensor)
            self._put(Record(kind=kind, name=name, step=step, roundings=roundings, **facts(seen, sample), **_UNKNOWN), seen, sample)
            self._weigh(key, tensor)
        if self.witness is not None:
            self.witness.boundary(kind, name, step, tensor)

    def result(self, key: str, tensor: torch.Tensor) -> None:
        """Marks the record with that key as one of the model's own results."""
        record = self.trace.records[key]
        record.is_result = True
        if record.sampled and record.kind == "output":
            self.parts.pop(key, None)
            with no_dispatch():
                self._put(record, tensor, "folded")

    def moves(self, step: int, moved: Sequence[Moved], *, broken: bool) -> None:
        """Records the displacements of parameters. `broken`: some parameter is not finite any more, and its non-finite elements count as moved."""
        for few in _batches(moved):
            self._moves(step, few, broken=broken)
        if self.witness is not None:
            self.witness.moves(step, moved)

    def _moves(self, step: int, moved: Sequence[Moved], *, broken: bool) -> None:
        with _Undisturbed(moved[0].parameter):
            elements = [each.parameter.numel() for each in moved]
            now, start = [each.now for each in moved], [each.start for each in moved]
            moves = foreach_sub(now, start)  # exact, unless a weight has doubled or halved (Sterbenz)
            sizes = _sizes(now, elements, waits=any(map(fetching.elsewhere, now)))
            for each, move, size, count in zip(moved, moves, sizes, elements, strict=True):
                part = move.numel() != count
                whole = facts(each.parameter, "folded" if part else "")
                counts = reduce.nonfinite_counts(real(each.parameter.detach())) if broken and part else {}
                record = Record(kind="update", name=each.name, step=step, **whole, **_UNKNOWN)
                self._put(record, move, "", elements=count, known=counts, weight=size)
                self._weigh(record.key, move)
                if self.witness is not None:
                    self.witness.boundary("update", each.name, step, move)

    def learn(self) -> None:
        """Fetches all numbers that are still missing from the records."""
        self.later.flush()
        self._reduce_parts()

    def unscale(self, scale: float) -> None:
        """Divides the gradients of the loss by its scale. Those that the model asked for itself, before there was a loss, do not have it."""
        self.learn()
        records = list(self.trace.records.values())
        lost = next((place for place, record in enumerate(records) if record.kind == "loss"), 0)
        for record in records[lost:]:
            if record.kind in ("gradient", "parameter-gradient"):
                record.learn({"sketch": record.sketch / scale, "norm": record.norm / scale, "amax": record.amax / scale})

    def _put(
        self, record: Record, tensor: torch.Tensor, sample: Sample, *, elements: int = 0, known: dict[str, Any] | None = None,
        weight: torch.Tensor | float | None = None,
    ) -> None:  # fmt: skip
        """Adds a record, and its numbers now or later from `tensor`. `elements` is given if `tensor` is a sample of so many.
        The figures in `known`, and the norm of a `weight`, take precedence."""
        self.trace.add(record)
        known = known or {}
        if self.unmeasured:
            record.learn({} if weight is None else _weighing(weight))
            return
        if fetching.elsewhere(tensor):
            with _Undisturbed(tensor):
                found = [reduce.numbers(tensor, sample), *([weight] if isinstance(weight, torch.Tensor) else [])]
                self.later.add(found, functools.partial(self._fill, record.key, elements / max(1, tensor.numel()), known))
            return
        if weight is not None:
            known |= _weighing(weight)
        values = real(tensor.detach()).reshape(-1)
        elements = elements or values.numel()
        if values.numel() <= SAMPLE:
            self.parts[record.key] = _Part(values.clone() if record.kind != "update" else values, elements, known)  # displacements are new tensors
        elif sample == "alone":
            self.parts[record.key] = _Part(thinned(values), elements, known)
        elif sample == "folded" and math.isfinite((extent := self._extent(values))["amax"]):
            self.parts[record.key] = _Part(thinned(values), elements, known | extent)
        else:
            with _Undisturbed(tensor):
                self._set(record.key, reduce.reduced(tensor, sample) | known)
        if len(self.parts) >= _WAITING:
            self._reduce_parts()

    def _extent(self, values: torch.Tensor) -> dict[str, Any]:
        """Figures of the whole tensor that a sample does not give."""
        if self.fast_path:
            return {"amax": reduce.peak(values)}
        amax, zeros = reduce.extent(values)
        return {"amax": amax, "zeros": zeros}

    def _reduce_parts(self) -> None:
        parts, self.parts = self.parts, {}
        groups: dict[Any, list[str]] = {}
        for key, part in parts.items():
            length = len(part.values)
            groups.setdefault((part.values.dtype, bisect.bisect_left(_LENGTHS, length)), []).append(key)
        for (_, size), keys in groups.items():
            together = max(1, _TOGETHER // _LENGTHS[size])
            for start in range(0, len(keys), together):
                few = [parts[key] for key in keys[start : start + together]]
                with _Undisturbed(few[0].values):
                    told_of = reduce.reduced_together([each.values for each in few], [each.elements for each in few], rough=self.fast_path)
                for key, part, found in zip(keys[start:], few, told_of, strict=False):
                    self._set(key, found | part.known)

    def _fill(self, key: str, times: float, known: dict[str, Any], found: torch.Tensor, *more: torch.Tensor) -> None:
        told_of = reduce.as_reduced(found)
        if times:
            told_of |= reduce.enlarged(told_of, times)
        self._set(key, told_of | known | (_weighing(*more) if more else {}))

    def _set(self, key: str, found: dict[str, Any]) -> None:
        self.trace.records[key].learn(found)

    def _weigh(self, key: str, tensor: torch.Tensor) -> None:
        if self.finds_sample_sizes:
            with _Undisturbed(tensor):
                if reduce.even(tensor):
                    self.trace.even.add(key)


def without_fill(tensor: torch.Tensor, run: torch.Tensor) -> torch.Tensor:
    """The tensor with Inf where `run` has the fill of a mask. That is the least number of a format, which differs between runs. For elements that are
    not finite, only their places are compared.

    Numbers near the end of the run's own format are fills. A fill of float16 in a wider tensor was widened with the scores, and no other number is
    within a factor of four.
    """
    run = run.detach()
    most, half = torch.finfo(run.dtype).max / 4, torch.finfo(torch.float16).max
    if run.is_cpu and run.dtype in (torch.bfloat16, torch.float16, torch.float32) and run.numel():  # a comparison takes several times as long
        least, greatest = run.aminmax()
        if max(-float(least), float(greatest)) <= min(most, half / 4):
            return tensor
    sizes = run.abs()
    large, beyond = sizes > min(most, half / 4), sizes > most
    if not bool(large.any()):
        return tensor
    widened = (sizes - half).abs() <= FILL * half
    if bool((widened | beyond)[large].all()):
        beyond |= widened
    return torch.where(beyond, math.inf, tensor.detach())


def _batches(moved: Sequence[Moved]) -> Iterator[Sequence[Moved]]:
    """Batches of parameters, so that their displacements need little memory."""
    start, elements = 0, 0
    for place, each in enumerate(moved):
        if place > start and elements + each.now.numel() > _TOGETHER:
            yield moved[start:place]
            start, elements = place, 0
        elements += each.now.numel()
    if moved:
        yield moved[start:]


def _sizes(weights: Sequence[torch.Tensor], elements: Sequence[int], *, waits: bool) -> Sequence[torch.Tensor | float]:
    """The norms of weights of so many elements, estimated from samples, which suffices here. Tensors instead of numbers if `waits`."""
    few = [sampled(weight) for weight in weights]
    values = [real(each) for each in few]
    norms = foreach_norm(values, 2, dtype=torch.float64 if any(each.dtype is torch.float64 for each in values) else torch.float32)
    times = [math.sqrt(count / max(1, each.numel())) for each, count in zip(few, elements, strict=True)]
    if not waits:
        return [norm * by for norm, by in zip(torch.stack(norms).tolist(), times, strict=True)]
    if norms[0].device.type != "mps":  # MPS has no float64, in which the other numbers are fetched
        norms = tuple(norm.double() for norm in norms)
    return [norm.mul_(by) for norm, by in zip(norms, times, strict=True)]


def _weighing(size: torch.Tensor | float) -> dict[str, float]:
    return {"weight_norm": float(size) if math.isfinite(size) else 0.0}


class _Undisturbed:
    """Inside, ops are seen by no mode, not by autograd and not by autocast. It is a class because a generator is too slow for so many tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device.type

    def __enter__(self) -> None:
        self.gradients, self.cast = torch.is_grad_enabled(), torch.is_autocast_enabled(self.device)
        self.dispatch = no_dispatch()
        self.dispatch.__enter__()
        set_grad_enabled(False)
        if self.cast:
            torch.set_autocast_enabled(self.device, False)

    def __exit__(self, *raised: object) -> None:
        if self.cast:
            torch.set_autocast_enabled(self.device, True)
        set_grad_enabled(self.gradients)
        self.dispatch.__exit__(*raised)
