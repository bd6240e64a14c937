"""Writes into a trace what passes: on a CPU at once; on an accelerator what was learnt of many tensors is fetched in one go.

A program that asks a GPU for a number waits for all that the GPU was given before, so nothing is asked until `learn` is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Container, Iterator
from typing import Any, Protocol

import numpy
import torch

from precheck.observe.records import Kind, Record, Trace
from precheck.observe.reduce import SAMPLE, Sample, even, facts, nonfinite_counts, numbers, real, reduced, reduced_samples, thinned, told
from precheck.observe.shadow.later import Later
from precheck.observe.shadow.statistics import sampled
from precheck.observe.sketch import WIDTH

_TOGETHER = 16  # samples reduced in one go: 1 to 4 MB
_WAITING = 64  # samples that wait for it at most: 4 to 16 MB
_UNKNOWN: dict[str, Any] = {"sketch": numpy.zeros(WIDTH), "norm": math.nan, "amax": math.nan}


class Witness(Protocol):
    """Who else looks at what is recorded."""

    def boundary(self, kind: str, name: str, step: int, tensor: torch.Tensor) -> None: ...


class Recorder:
    """`sampled` are the records of which a sample is enough; `weighs` finds out which these could be."""

    def __init__(self, trace: Trace, *, sampled: Container[str] = (), weighs: bool = False, witness: Witness | None = None) -> None:
        self.trace, self.sampled, self.weighs, self.witness = trace, sampled, weighs, witness
        self.later = Later(fetched=sys.maxsize)
        self.samples: dict[str, tuple[torch.Tensor, int]] = {}  # of what passes on a CPU: to be reduced together

    def add(self, kind: Kind, name: str, step: int, tensor: torch.Tensor, roundings: int = 0) -> None:
        """Records a tensor: all of it, or a sample where the job says that one is enough.

        What passes between modules is looked at nowhere else then, but for float16, whose range is a question of single elements:
        Inf and NaN that matter reach the result, the loss or a parameter's gradient, which are looked at whole.
        """
        key = f"{kind}:{name}@{step}"
        passing = kind in ("output", "gradient", "handed") and tensor.dtype is not torch.float16
        self._write(kind, name, step, tensor, roundings, "" if key not in self.sampled else "alone" if passing else "folded")
        self._weigh(key, tensor)
        if self.witness is not None:
            self.witness.boundary(kind, name, step, tensor)

    def result(self, key: str, tensor: torch.Tensor) -> None:
        """The tensor of that record is one of the model's own results."""
        record = self.trace.records[key]
        if record.sampled and record.kind == "output":
            self.samples.pop(key, None)
            self._write(record.kind, record.name, record.step, tensor, record.roundings, "folded")
        self.trace.records[key] = dataclasses.replace(self.trace.records[key], is_result=True)

    def move(self, name: str, step: int, now: torch.Tensor, start: torch.Tensor, parameter: torch.Tensor, *, broken: bool) -> None:
        """Records what a parameter has moved by: `now` and `start` are its elements, or the same sample of them.

        `broken`: some parameter is not finite any more; elements of this one that are not have moved to there.
        """
        key, part = f"update:{name}@{step}", parameter.numel() / max(1, now.numel())
        with _undisturbed(parameter):
            few = sampled(now)
            weight = torch.linalg.vector_norm(few, dtype=torch.complex128 if few.is_complex() else torch.float64)  # it is only told, and weighs luck
            move = now - start  # exact, unless a weight has doubled or halved (Sterbenz)
            self._write("update", name, step, move, 0, "")
            counts: dict[str, Any] = nonfinite_counts(parameter.detach()) if broken and part != 1 else {}
        self.trace.records[key] = dataclasses.replace(self.trace.records[key], shape=tuple(parameter.shape), sampled=part != 1)
        enlarge = functools.partial(self._enlarge, key, part, math.sqrt(parameter.numel() / max(1, few.numel())), counts)
        self.later([weight], enlarge)
        self._weigh(key, move)

    def learn(self) -> None:
        """Fetches what is not known yet: the records are whole then."""
        self.later.flush()
        self._reduce_samples()

    def _reduce_samples(self) -> None:
        samples, self.samples = self.samples, {}
        groups: dict[torch.dtype, list[str]] = {}
        for key, (sample, _) in samples.items():
            groups.setdefault(sample.dtype, []).append(key)
        for keys in groups.values():
            for start in range(0, len(keys), _TOGETHER):
                few = keys[start : start + _TOGETHER]
                with _undisturbed(samples[few[0]][0]):
                    told_of = reduced_samples(*zip(*(samples[key] for key in few), strict=True))
                for key, found in zip(few, told_of, strict=True):
                    self.trace.records[key] = dataclasses.replace(self.trace.records[key], **found)

    def unscale(self, scale: float) -> None:
        """Takes a loss scale off all gradients."""
        self.learn()
        for key, record in self.trace.records.items():
            if record.kind in ("gradient", "parameter-gradient"):
                smaller: dict[str, Any] = {"sketch": record.sketch / scale, "norm": record.norm / scale, "amax": record.amax / scale}
                self.trace.records[key] = dataclasses.replace(record, **smaller)

    def _write(self, kind: Kind, name: str, step: int, tensor: torch.Tensor, roundings: int, sample: Sample) -> None:
        with _undisturbed(tensor):
            here = not self.later.defers(tensor)
            values = real(tensor.detach()) if here and sample == "alone" else None
            if here and (values is None or values.numel() < SAMPLE):
                self.trace.add(Record(kind=kind, name=name, step=step, roundings=roundings, **reduced(tensor, sample)))
                return
            record = Record(kind=kind, name=name, step=step, roundings=roundings, **facts(tensor, sample), **_UNKNOWN)
            self.trace.add(record)
            if values is not None:
                self.samples[record.key] = thinned(values), values.numel()
                if len(self.samples) >= _WAITING:
                    self._reduce_samples()
            else:
                self.later([numbers(tensor, sample)], functools.partial(self._fill, record.key))

    def _fill(self, key: str, found: torch.Tensor) -> None:
        self.trace.records[key] = dataclasses.replace(self.trace.records[key], **told(found))

    def _enlarge(self, key: str, part: float, few: float, counts: dict[str, Any], weight: torch.Tensor) -> None:
        """A move of a sample's elements becomes one of all, `part` times as many; `few` is by how much the weight's norm is larger."""
        record, norm = self.trace.records[key], float(weight.real) * few
        root = math.sqrt(part)
        grown: dict[str, Any] = {"sketch": record.sketch * root, "norm": record.norm * root, "zeros": round(record.zeros * part)}
        self.trace.records[key] = dataclasses.replace(record, weight_norm=norm if math.isfinite(norm) else 0.0, **grown, **counts)

    def _weigh(self, key: str, tensor: torch.Tensor) -> None:
        if self.weighs:
            with _undisturbed(tensor):
                if even(tensor):
                    self.trace.even.add(key)


@contextlib.contextmanager
def _undisturbed(tensor: torch.Tensor) -> Iterator[None]:
    """Nothing that is done to a tensor here is the run's own."""
    device = tensor.device.type
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        if not torch.is_autocast_enabled(device):
            yield
            return
        with torch.autocast(device, enabled=False):
            yield
