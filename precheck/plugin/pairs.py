"""The objects of the fixtures `check_parity`, `check_invariance` and `check_kernel`.

Loaded when a test uses one, since they import torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from precheck.comparing import compare
from precheck.comparing_kernels import compare_kernels
from precheck.findings import Report
from precheck.observe.job import InputError
from precheck.plugin.arguments import taking
from precheck.plugin.naming import golden_of
from precheck.plugin.tracebacks import users_frames
from precheck.plugin.verdicts import Verdicts
from precheck.precisions import resolve
from precheck.selftests.kernels import kernel_selftested
from precheck.selftests.pairs import invariance_selftested, parity_selftested
from precheck.varying import vary
from precheck.words import printable


class _Pair(Verdicts):
    """Judges the report of a comparison with the markers and known failures of the test.

    There is no golden: both sides also run under --golden-refresh.
    """

    def _judged(self, made: Callable[[], Report], precision: Any, tried: Callable[..., Any]) -> Report:
        """Judges what `made` reports. `tried` makes the same comparison with planted faults, under --precheck-selftest."""
        __tracebackhide__ = True
        place = golden_of(self.item, self.number)
        message = ""
        try:
            with self.timed():
                report = made()
        except InputError as error:
            message = printable(str(error))
        except Exception as error:
            self.note(place, watched=True, error=f"{type(error).__name__}: {error}")
            raise error.with_traceback(users_frames(error)) from error.__cause__
        if message:
            self.note(place, watched=True, error=message)
            pytest.fail(message, pytrace=False)
        self.judge(place, report, resolve(precision), tried)
        return report


class CheckParity(_Pair):
    """The object of the `check_parity` fixture."""

    name = "check_parity"

    @taking(compare)
    def __call__(self, model: Any, other: Any, inputs: Any, **given: Any) -> Report:
        """Runs `precheck.compare` under the precision of the test, or a given one. Fails the test if there are errors."""
        __tracebackhide__ = True
        given = {"precision": self.precision, **given}
        tried = functools.partial(parity_selftested, model, other, inputs, **given)
        return self._judged(lambda: compare(model, other, inputs, **given), given["precision"], tried)


class CheckInvariance(_Pair):
    """The object of the `check_invariance` fixture."""

    name = "check_invariance"

    @taking(vary)
    def __call__(self, model: Any, inputs: Any, over: Any = None, **given: Any) -> Report:
        """Runs `precheck.vary` under the precision of the test, or a given one. Fails the test if there are errors."""
        __tracebackhide__ = True
        given = {"precision": self.precision, **given}
        tried = functools.partial(invariance_selftested, model, inputs, over, **given)
        return self._judged(lambda: vary(model, inputs, over, **given), given["precision"], tried)


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
