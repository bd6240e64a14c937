"""The fixture `gpu_benchmark`: runs precheck.benchmark and adds its rows to pytest-benchmark's table. Imports torch when it is used.

Registered only if pytest-benchmark is loaded. Otherwise the fixture in `precheck.plugin.fixtures` fails with a message.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from precheck.plugin.settings import KEY
from precheck.plugin.tracebacks import users_frames
from precheck.precisions import Precision, PrecisionError, resolve

if TYPE_CHECKING:
    import torch

    from precheck.benchmarking import Benchmark

NAME = "accelerator"
"""The key of the device in pytest-benchmark's machine_info."""
TWICE = "gpu_benchmark, like benchmark, is for one call a test, and this is the second; make another test, or parametrize this one"
DEFAULT = ("bf16-mixed", "bf16-true", "16-mixed")


class Benchmarks:
    """The benchmarks of a session, and the hooks that report them."""

    def __init__(self, storage: str = "") -> None:
        self.missing = _missing(storage)
        self.told: dict[str, Benchmark] = {}  # by node id
        self.compared: dict[str, Any] = {}  # the device of each saved run with which this one is compared

    def pytest_unconfigure(self) -> None:
        """Deletes empty folders that pytest-benchmark made. It makes the folder for saved runs at every start of pytest, also if nothing is saved."""
        with contextlib.suppress(OSError):  # raised for a folder that is not empty
            for folder in self.missing:
                folder.rmdir()

    @pytest.fixture
    def gpu_benchmark(self, request: pytest.FixtureRequest, benchmark: Any) -> GpuBenchmark:
        """gpu_benchmark(model, inputs, *, loss=None, optimizer=None, precisions=None, seed=0) -> Benchmark.

        Measures speed, memory and error of a model or function under each precision, beside float32. `precisions` defaults to those of
        --precision. Each precision is a row in pytest-benchmark's table and JSON. --benchmark-min-rounds holds for each row, and
        --benchmark-max-time for all rows together. On CUDA, events measure a step, and the second-level cache is flushed before it. On a
        CPU, the monotonic clock measures it.
        """
        return GpuBenchmark(request.node, benchmark, self.told)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        for benchmark in self.told.values():
            machine_info[NAME] = benchmark.facts

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_benchmark_compare_machine_info(self, compared_benchmark: dict[str, Any]) -> Generator[None, Any, Any]:
        """Leaves the device out of this comparison. It is not known yet without starting the device, and is compared at the end."""
        before = compared_benchmark["machine_info"]
        self.compared[str(compared_benchmark.get("datetime", "an earlier run"))] = before.get(NAME)
        compared_benchmark["machine_info"] = {name: value for name, value in before.items() if name != NAME}
        try:
            return (yield)
        finally:
            compared_benchmark["machine_info"] = before

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if not self.told or config.get_verbosity() < 0:
            return
        terminalreporter.write_sep("=", "precheck: speed, memory and error")
        for nodeid, benchmark in self.told.items():
            terminalreporter.write_line(f"{nodeid}, {benchmark.summary()}")
        for line in self._otherwise():
            terminalreporter.write_line(line, yellow=True)

    def _otherwise(self) -> list[str]:
        own: dict[str, Any] = next(iter(self.told.values())).facts
        lines = []
        for when, theirs in self.compared.items():
            if theirs is not None:
                differ = [name for name in sorted({*own, *theirs}) if own.get(name) != theirs.get(name)]
                parts = [f"{name} {theirs.get(name)} there, {own.get(name)} here" for name in differ]
                lines += [f"compared with {when}, which was not on the same device: {'; '.join(parts)}"] if parts else []
        return lines


def _missing(storage: str) -> list[Path]:
    """The folders of pytest-benchmark's storage that do not exist yet, the innermost first."""
    kind, _, path = storage.rpartition("://")
    folder = Path(path).absolute()
    return [each for each in (folder, *folder.parents) if not each.exists()] if path and kind in ("", "file") else []


class GpuBenchmark:
    """The object of the `gpu_benchmark` fixture. It can be called once in a test, as that of pytest-benchmark."""

    def __init__(self, item: pytest.Item, fixture: Any, told: dict[str, Benchmark]) -> None:
        self.item, self.fixture, self.told = item, fixture, told

    def __call__(
        self,
        model: torch.nn.Module | Callable[..., Any],
        inputs: Any,
        *,
        loss: Callable[[Any], torch.Tensor] | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] | None = None,
        precisions: Sequence[str | Precision] | None = None,
        seed: int = 0,
    ) -> Benchmark:
        __tracebackhide__ = True
        from precheck.benchmarking import benchmark
        from precheck.observe.job import InputError

        if self.fixture._mode:
            pytest.fail(TWICE, pytrace=False)
        self.fixture._mode = "gpu_benchmark(...)"
        given: dict[str, Any] = {"loss": loss, "optimizer": optimizer, "seed": seed, **self._rounds()}
        try:
            found = benchmark(model, inputs, precisions=self._precisions(precisions), **given)
        except (InputError, PrecisionError) as error:
            message = f"gpu_benchmark: {error}"
        except Exception as error:  # raised by the model itself
            raise error.with_traceback(users_frames(error)) from error.__cause__
        else:
            if self.fixture.enabled:
                self._tell(found)
            return found
        pytest.fail(message, pytrace=False)

    def _precisions(self, given: Sequence[str | Precision] | None) -> Any:
        settings = self.item.config.stash[KEY]
        if given is None:
            given = [precision for precision in settings.precisions if precision.name != "32-true"] or DEFAULT
        return given if isinstance(given, str) else [resolve(precision, policy=settings.policy) for precision in given]

    def _rounds(self) -> dict[str, Any]:
        """pytest-benchmark's options. Those of its marker precede the command line. One round if it is disabled, as under xdist."""
        if not self.fixture.enabled:
            return {"min_rounds": 1, "max_time": 0.0}
        mark = self.item.get_closest_marker("benchmark")
        options = {"min_rounds": self.item.config.getoption("benchmark_min_rounds"), "max_time": self.item.config.getoption("benchmark_max_time")}
        options |= {name: value for name, value in (mark.kwargs if mark else {}).items() if name in options}
        return {"min_rounds": int(options["min_rounds"]), "max_time": float(options["max_time"])}

    def _tell(self, found: Benchmark) -> None:
        """Reports the result to pytest-benchmark, to junit and in the summary of the session."""
        for row in (found.baseline, *found.rows):
            content = dataclasses.asdict(row)
            rounds = content.pop("rounds")
            self.item.user_properties.append(("precheck_benchmark", str(row)))
            if rounds:
                self._row(row.precision, rounds, {**content, "line": str(row)})
        self.told[self.item.nodeid] = found

    def _row(self, precision: str, rounds: Sequence[float], content: dict[str, Any]) -> None:
        """Adds a row to pytest-benchmark's table, by a copy of its fixture that is named after the precision."""
        row = copy.copy(self.fixture)
        row.param = "-".join(word for word in (self.fixture.param, precision) if word)
        row.params = {**(self.fixture.params or {}), "precision": precision}
        row.name = f"{self.fixture.name.partition('[')[0]}[{row.param}]"
        row.fullname = self.fixture.fullname.removesuffix(self.fixture.name) + row.name
        row.group = self.fixture.group or self.fixture.name
        row.extra_info = {**self.fixture.extra_info, "precheck": content}
        stats = row._make_stats(iterations=1)
        for seconds in rounds:
            stats.update(seconds)
