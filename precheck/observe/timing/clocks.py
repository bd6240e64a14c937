"""Clocks that time a call and count the memory that it takes: one for each kind of device."""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from precheck.observe.containers import tensors
from precheck.observe.job import InputError, Job
from precheck.torch_internals import start_memory_profile, stop_memory_profile

Call = Callable[[], object]


class Clock(Protocol):
    """Times and weighs calls on one device."""

    def seconds(self, call: Call) -> float:
        """How long `call` takes, its work on the device included."""

    def peak(self, call: Call) -> int:
        """The most bytes that `call` holds at a time, beyond what was held before it."""

    def facts(self) -> dict[str, Any]:
        """The device, in words and numbers that JSON can hold; its name is under "device"."""


def clock_for(device: torch.device) -> Clock:
    """The clock of a device. Raises InputError for one that nobody has taught to be timed here."""
    if device.type == "cpu":
        return CpuClock()
    if device.type == "cuda":
        from precheck.observe.timing.cuda import CudaClock

        return CudaClock(device)
    raise InputError(f"the model lies on {device}; CPUs and CUDA devices can be timed here, so move it: model.to('cpu')")


def device_of(job: Job) -> torch.device:
    """The one device that a job runs on; a few numbers on the CPU beside it do not count. Raises InputError where there are two."""
    held = (*job.model.parameters(), *job.model.buffers(), *(tensor for _, tensor in tensors(job.inputs)))
    found = list(dict.fromkeys(tensor.device for tensor in held if tensor.device.type != "cpu"))
    if len(found) > 1:
        raise InputError(f"the model and its inputs lie on {' and '.join(map(str, found))}; one device is timed, so move all to one of them")
    return found[0] if found else torch.device("cpu")


class CpuClock:
    """The monotonic clock, and torch's own account of what its CPU allocator hands out."""

    def seconds(self, call: Call) -> float:
        with collected():
            start = time.perf_counter()
            call()
            return time.perf_counter() - start

    def peak(self, call: Call) -> int:
        """Of every block that torch's allocator gives, those of ops' own scratch included; oneDNN's, which it takes elsewhere, are not."""
        with _profiled() as records:
            call()
        return highest(records)

    def facts(self) -> dict[str, Any]:
        capability, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
        return {"device": "cpu", "capability": capability, "threads": threads, "torch": torch.__version__}


@contextlib.contextmanager
def _profiled() -> Iterator[list[Any]]:
    """Gives a list that holds, after the block, the records of torch's profiler in their older form: the newer writes lines of its own to stderr."""
    records: list[Any] = []
    try:
        start_memory_profile()
    except RuntimeError as error:
        raise InputError(f"memory is counted by torch's profiler, which is in use around this call ({error}); leave that profiler out") from error
    try:
        yield records
    finally:
        records += stop_memory_profile()


def highest(records: Sequence[Any]) -> int:
    """The highest sum of bytes given and taken back, in order of time, over the records of all threads."""
    start = next(record for record in records if record.name() == "__start_profile")
    moves = sorted((record for record in records if str(record.kind()) == "memory_alloc"), key=start.cpu_elapsed_us)
    return int(max(itertools.accumulate((record.cpu_memory_usage() for record in moves), initial=0)))


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """No garbage is collected inside the block, as timeit has it, so that nobody pays for another's."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
