"""Clocks: what the CPU's counts exactly, and in which order CUDA's asks its device for what (no device is needed to see that)."""

from __future__ import annotations

import gc
import time
from types import SimpleNamespace

import pytest
import torch

from precheck.measurement import job_of
from precheck.observe.job import InputError
from precheck.observe.timing.clocks import LEAST_FLUSHED, CpuClock, CudaClock, clock_for, device_of

MEGABYTE = 2**20


class TestCpu:
    def test_the_peak_is_what_is_held_at_a_time_and_not_what_is_asked_for_in_all(self) -> None:
        def call() -> None:
            first = torch.empty(3 * MEGABYTE, dtype=torch.uint8)
            del first
            for _ in range(5):
                torch.empty(2 * MEGABYTE, dtype=torch.uint8)
            kept = torch.empty(MEGABYTE, dtype=torch.uint8)
            torch.empty(MEGABYTE, dtype=torch.uint8)
            del kept

        assert CpuClock().peak(call) == 3 * MEGABYTE

    def test_scratch_that_an_op_takes_for_itself_counts(self) -> None:
        values = torch.rand(MEGABYTE)
        assert CpuClock().peak(lambda: values.sort()) >= 12 * MEGABYTE, "4 bytes a value and 8 an index come back"

    def test_what_was_held_before_does_not_count(self) -> None:
        before = [torch.empty(5 * MEGABYTE, dtype=torch.uint8)]
        assert CpuClock().peak(lambda: torch.empty(MEGABYTE, dtype=torch.uint8)) == MEGABYTE
        assert CpuClock().peak(before.clear) == 0

    def test_a_call_that_raises_leaves_counting_off(self) -> None:
        with pytest.raises(ZeroDivisionError):
            CpuClock().peak(lambda: 1 // 0)
        assert CpuClock().peak(lambda: torch.empty(8)) == 32

    def test_inside_a_profiler_it_says_what_is_in_the_way(self) -> None:
        def inner() -> None:
            with pytest.raises(InputError, match="memory is counted by torch's profiler, which is in use around this call"):
                CpuClock().peak(lambda: None)

        assert CpuClock().peak(inner) == 0

    def test_a_call_takes_as_long_as_it_sleeps_and_nobody_elses_garbage_is_collected_meanwhile(self) -> None:
        seen: list[bool] = []

        def call() -> None:
            seen.append(gc.isenabled())
            time.sleep(0.01)

        assert CpuClock().seconds(call) >= 0.01
        assert seen == [False]
        assert gc.isenabled()


def test_a_device_that_nobody_can_time_is_named() -> None:
    with pytest.raises(InputError, match=r"the model lies on meta; CPUs and CUDA devices can be timed here, so move it"):
        clock_for(torch.device("meta"))
    assert isinstance(clock_for(device_of(job_of(torch.relu, torch.ones(2)))), CpuClock)


class Device:
    """Stands in for torch.cuda: writes down what it is asked, and counts milliseconds and bytes as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, l2: int = 50 * MEGABYTE) -> None:
        self.log: list[str] = []
        self.bytes = 1000
        properties = SimpleNamespace(L2_cache_size=l2, name="Toy", major=9, minor=0, total_memory=80 * 2**30, multi_processor_count=132)
        device = self

        class Event:
            made = 0

            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                Event.made += 1
                self.name = "begin" if Event.made % 2 else "end"

            def record(self) -> None:
                device.log.append(self.name)

            def synchronize(self) -> None:
                device.log.append(f"wait for {self.name}")

            def elapsed_time(self, other: Event) -> float:
                assert (self.name, other.name) == ("begin", "end")
                return 12.5

        class Cache:
            def zero_(self) -> None:
                device.log.append("flush")

        def empty(count: int, dtype: torch.dtype, device: torch.device) -> Cache:
            self.flushed = count * dtype.itemsize
            assert device.index == 1, "on the model's device, whichever is current"
            return Cache()

        monkeypatch.setattr(torch, "empty", empty)
        fakes = {
            "Event": Event,
            "device": lambda device: torch.autograd.profiler.record_function("device"),
            "get_device_properties": lambda device: properties,
            "synchronize": lambda: self.log.append("wait"),
            "reset_peak_memory_stats": lambda: self.log.append("reset"),
            "memory_allocated": lambda: self.bytes,
            "max_memory_allocated": lambda: 1700,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)


class TestCuda:
    def test_a_call_stands_between_two_events_behind_a_flush_and_milliseconds_become_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = Device(monkeypatch)
        seconds = CudaClock(torch.device("cuda", 1)).seconds(lambda: device.log.append("call"))
        assert device.log == ["wait", "flush", "begin", "call", "end", "wait for end"]
        assert seconds == 0.0125

    @pytest.mark.parametrize(("l2", "flushed"), [(50 * MEGABYTE, LEAST_FLUSHED), (300 * MEGABYTE, 600 * MEGABYTE)])
    def test_the_flush_is_larger_than_the_cache(self, monkeypatch: pytest.MonkeyPatch, l2: int, flushed: int) -> None:
        device = Device(monkeypatch, l2=l2)
        CudaClock(torch.device("cuda", 1)).seconds(lambda: None)
        assert device.flushed == flushed

    def test_the_peak_is_the_allocators_beyond_what_was_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = Device(monkeypatch)
        assert CudaClock(torch.device("cuda", 1)).peak(lambda: device.log.append("call")) == 700
        assert device.log == ["wait", "reset", "call", "wait"]

    def test_facts_are_the_devices_name_driver_and_capability(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from torch.utils import collect_env

        Device(monkeypatch)
        monkeypatch.setattr(collect_env, "get_nvidia_driver_version", lambda run: "570.86.10")
        facts = CudaClock(torch.device("cuda", 1)).facts()
        assert (facts["device"], facts["driver"], facts["capability"]) == ("Toy", "570.86.10", "9.0")


@pytest.mark.gpu
def test_on_a_device_a_matrix_product_takes_time_and_memory() -> None:
    clock = clock_for(torch.device("cuda"))
    factor = torch.randn(2048, 2048, device="cuda")
    assert clock.seconds(lambda: factor @ factor) > 2 * 2048**3 / 5e15, "no device does five petaflops"
    assert clock.peak(lambda: factor @ factor) >= factor.nbytes
    assert clock.facts()["driver"] != "unknown"
