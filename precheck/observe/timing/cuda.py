"""The clock for CUDA. It uses events on the stream, clears the L2 cache before each call, and reads the allocator's peak."""

from __future__ import annotations

from typing import Any

import torch

from precheck.observe.timing.clocks import Call, collected

LEAST_FLUSHED = 256 * 2**20
"""Bytes that are written before a call to clear the cache, as in triton.testing.do_bench: five times the L2 cache of an H100."""


class CudaClock:
    """Times calls on one CUDA device, on the stream that is current there."""

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
