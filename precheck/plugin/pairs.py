"""The objects of the fixtures `check_parity`, `check_invariance` and `check_kernel`.

Loaded when a test uses one, since they import torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from precheck.comparing import compare
from precheck.comparing_kernels import compare_kernels
from precheck.findings import Report
from precheck.measurement import job_of
from precheck.observe.job import InputError, Job
from precheck.pairs.callables import as_module
from precheck.plugin.arguments import taking
from precheck.plugin.naming import golden_of
from precheck.plugin.tracebacks import users_frames
from precheck.plugin.verdicts import Verdicts
from precheck.precisions import Precision, resolve
from precheck.selftests.kernels import kernel_selftested
from precheck.selftests.pairs import invariance_selftested, parity_selftested
from precheck.varying import vary
from precheck.words import printable

NO_SIDES: Mapping[str, Callable[[], Job]] = MappingProxyType({})


def asked(model: Any, inputs: Any, given: Mapping[str, Any]) -> Job:
    """What one side of a comparison was asked to run."""
    return job_of(as_module(model, "model"), inputs, **{name: given[name] for name in ("loss", "optimizer", "steps", "seed") if name in given})


class _Pair(Verdicts):
    """Judges the report of a comparison with the markers and known failures of the test.

    There is no golden: both sides also run under --golden-refresh.
    """

    def _judged(
        self, made: Callable[[], Report], precision: Any, tried: Callable[..., Any], sides: Mapping[str, Callable[[], Job]] = NO_SIDES
    ) -> Report:  # fmt: skip
        """Judges what `made` reports. `tried` makes the same comparison with planted faults, under --precheck-selftest. `sides` are the jobs of the
        models by name, of which one may not run in this precision."""
        __tracebackhide__ = True
        place = golden_of(self.item, self.number)
        message = ""
        try:
            with self.timed():
                report = made()
        except InputError as error:
            message = printable(str(error))
        except Exception as error:
            self._refused(place, resolve(precision), sides, error)
            self.note(place, watched=True, error=f"{type(error).__name__}: {error}")
            raise error.with_traceback(users_frames(error)) from error.__cause__
        if message:
            self.note(place, watched=True, error=message)
            pytest.fail(message, pytrace=False)
        self.judge(place, report, resolve(precision), tried)
        return report


    def _refused(self, place: Path, precision: Precision, sides: Mapping[str, Callable[[], Job]], error: Exception) -> None:
        """Fails the test with one line if a model runs in float32 but not in this precision."""
        __tracebackhide__ = True
        from precheck.shared_runs.refusals import refused

        for name, job in sides.items() if precision.is_low else ():
            told = refused(job(), precision)
            if told:
                self.refuse(place, f"{name}, {told}" if len(sides) > 1 else told, error, precision)


class CheckParity(_Pair):
    """The object of the `check_parity` fixture."""

    name = "check_parity"

    @taking(compare)
    def __call__(self, model: Any, other: Any, inputs: Any, **given: Any) -> Report:
        """Runs `precheck.compare` under the precision of the test, or a given one. Fails the test if there are errors."""
        __tracebackhide__ = True
        given = {"precision": self.precision, **given}
        tried = functools.partial(parity_selftested, model, other, inputs, **given)
        sides = {"model": functools.partial(asked, model, inputs, given)}
        if not isinstance(other, (str, Path)):  # a recording
            sides["other"] = functools.partial(asked, other, inputs, given)
        return self._judged(lambda: compare(model, other, inputs, **given), given["precision"], tried, sides)


class CheckInvariance(_Pair):
    """The object of the `check_invariance` fixture."""

    name = "check_invariance"

    @taking(vary)
    def __call__(self, model: Any, inputs: Any, over: Any = None, **given: Any) -> Report:
        """Runs `precheck.vary` under the precision of the test, or a given one. Fails the test if there are errors."""
        __tracebackhide__ = True
        given = {"precision": self.precision, **given}
        tried = functools.partial(invariance_selftested, model, inputs, over, **given)
        sides = {"model": functools.partial(asked, model, inputs, given)}
        return self._judged(lambda: vary(model, inputs, over, **given), given["precision"], tried, sides)


class CheckKernel(_Pair):
    """The object of the `check_kernel` fixture."""

    name = "check_kernel"

    @taking(compare_kernels)
    def __call__(self, candidate: Any, reference: Any, inputs: Any, **given: Any) -> Report:
        """Runs `precheck.compare_kernels` on the inputs as they are, or under a given precision. Fails the test if there are errors, and skips it
        if nothing could be judged here."""
        __tracebackhide__ = True
        tried = functools.partial(kernel_selftested, candidate, reference, inputs, **given)
        report = self._judged(lambda: compare_kernels(candidate, reference, inputs, **given), given.get("precision") or "32-true", tried)
        if report.verdict == "not judged":
            pytest.skip(next(finding.message for finding in report.findings if finding.message.startswith("not judged")))
        return report
