"""Clocks, one for each kind of device. They measure the time and the memory of a call."""

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
    """Measures calls on one device."""

    def seconds(self, call: Call) -> float:
        """The time that `call` takes, including its work on the device."""

    def peak(self, call: Call) -> int:
        """The peak memory of `call` in bytes, beyond the memory that was in use before it."""

    def facts(self) -> dict[str, Any]:
        """A description of the device for JSON. Its name is under "device"."""


def clock_for(device: torch.device) -> Clock:
    """The clock of a device. Raises InputError if there is none for it."""
    if device.type == "cpu":
        return CpuClock()
    if device.type == "cuda":

        return CudaClock(device)
    raise InputError(f"the model lies on {device}; CPUs and CUDA devices can be timed here, so move it: model.to('cpu')")


def device_of(job: Job) -> torch.device:
    """The device that a job runs on. Tensors on the CPU beside another device do not count. Raises InputError if there are two such devices."""
    held = (*job.model.parameters(), *job.model.buffers(), *(tensor for _, tensor in tensors(job.inputs)))
    found = list(dict.fromkeys(tensor.device for tensor in held if tensor.device.type != "cpu"))
    if len(found) > 1:
        raise InputError(f"the model and its inputs lie on {' and '.join(map(str, found))}; one device is timed, so move all to one of them")
    return found[0] if found else torch.device("cpu")


class CpuClock:
    """Uses Python's performance counter, and the allocations that torch's CPU allocator reports."""

    def seconds(self, call: Call) -> float:
        with collected():
            start = time.perf_counter()
            call()
            return time.perf_counter() - start

    def peak(self, call: Call) -> int:
        """Counts all memory from torch's allocator, including temporary memory of ops. oneDNN allocates elsewhere and is not counted."""
        with _profiled() as records:
            call()
        return highest(records)

    def facts(self) -> dict[str, Any]:
        capability, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
        return {"device": "cpu", "capability": capability, "threads": threads, "torch": torch.__version__}


@contextlib.contextmanager
def _profiled() -> Iterator[list[Any]]:
    """Yields a list that holds torch's profiler records after the block. It uses the legacy profiler, since the new one writes to stderr."""
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
    """The peak of allocated minus freed bytes over time, over the records of all threads."""
    start = next(record for record in records if record.name() == "__start_profile")
    moves = sorted((record for record in records if str(record.kind()) == "memory_alloc"), key=start.cpu_elapsed_us)
    return int(max(itertools.accumulate((record.cpu_memory_usage() for record in moves), initial=0)))


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Inside, garbage collection is off, as in timeit, so that no call is charged for the garbage of another."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


LEAST_FLUSHED = 256 * 2**20
"""Bytes that are written before a call to clear the cache, as in triton.testing.do_bench: five times the L2 cache of an H100."""


class CudaClock:
    """Times calls on one CUDA device by events on the current stream. Clears the L2 cache before each call, and reads the allocator's peak."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        properties = torch.cuda.get_device_properties(self.device)
        self._size = max(LEAST_FLUSHED, 2 * properties.L2_cache_size)

    def seconds(self, call: Call) -> float:
        """The time between two events, without the flush before and the wait after. Time in which the device waits for the host counts."""
        with torch.cuda.device(self.device), collected():
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            cache = torch.empty(self._size // 4, dtype=torch.int32, device=self.device)  # int32: zeroed at full bandwidth (triton#840)
            torch.cuda.synchronize()
            cache.zero_()
            begun.record()
            call()
            ended.record()
            ended.synchronize()
            return float(begun.elapsed_time(ended)) / 1e3  # elapsed_time is in milliseconds

    def peak(self, call: Call) -> int:
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - before

    def facts(self) -> dict[str, Any]:
        from torch.utils import collect_env

        properties = torch.cuda.get_device_properties(self.device)
        return {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory": properties.total_memory,
            "l2_cache": properties.L2_cache_size,
            "multiprocessors": properties.multi_processor_count,
            "driver": collect_env.get_nvidia_driver_version(collect_env.run) or "unknown",
            "cuda": torch.version.cuda or f"hip {torch.version.hip}",
            "cudnn": torch.backends.cudnn.version(),
            "torch": torch.__version__,
        }
