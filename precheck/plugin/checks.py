"""The object of the fixture `check_precision`: checks a model against the test's golden, or records the golden. Loaded when a test uses it.

It imports no torch until a check runs, since tests of the plugin fake its checks.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from precheck.observe.listeners import collecting, judging
from precheck.plugin.arguments import taking
from precheck.plugin.naming import command, golden_of, plain_id
from precheck.plugin.remembered import remembered
from precheck.plugin.settings import KEY, Depth
from precheck.plugin.tracebacks import users_frames
from precheck.plugin.verdicts import Verdicts
from precheck.precisions import Precision

if TYPE_CHECKING:
    import torch

    from precheck.findings import Report
    from precheck.measurement import Measurement
    from precheck.observe.job import Job
    from precheck.selftests.checks import Outcome


class CheckPrecision(Verdicts):
    """The object of the `check_precision` fixture. A call checks a model."""

    def __init__(self, item: pytest.Item, precision: Precision) -> None:
        super().__init__(item, precision)
        self.depth: Depth = "ops"
        self.needs_golden = True  # False: without a golden the model is compared with float32 in the same process only

    @taking()
    def __call__(
        self,
        model: torch.nn.Module | Callable[..., Any],
        inputs: Any,
        *more: Any,
        loss: Callable[[Any], torch.Tensor] | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] | None = None,
        steps: int = 1,
        seed: int = 0,
        depth: Depth | None = None,
        allow: Mapping[str, str] | None = None,
    ) -> Report:
        """Runs `precheck.check` with the golden of this test. `depth` is as there; None means that of --precision-depth."""
        __tracebackhide__ = True
        self.calls += 1
        golden = golden_of(self.item, self.calls)
        given: dict[str, Any] = {"model": model, "inputs": inputs, "loss": loss, "optimizer": optimizer, "steps": steps, "seed": seed}
        self.depth = depth or self.item.config.stash[KEY].depth
        act = self._refreshed if self.item.config.stash[KEY].refresh else self._checked
        from precheck.goldens.file import GoldenError
        from precheck.judge.allowances import checked
        from precheck.observe.job import InputError

        try:
            if more:
                raise InputError(f"{1 + len(more)} inputs were passed one by one; pass them as a tuple: check_precision(model, (first, second), ...)")
            checked(allow)
            with self.timed():
                return act(golden, given, allow)
        except (GoldenError, InputError) as error:
            message = self._explained(golden, error)
        except Exception as error:
            self._refused(golden, given, error)
            self.note(golden, error=f"{type(error).__name__}: {error}")
            raise error.with_traceback(users_frames(error)) from error.__cause__
        self.note(golden, error=message)
        pytest.fail(message, pytrace=False)

    def _refreshed(self, golden: Path, given: dict[str, Any], allow: Mapping[str, str] | None) -> Report:
        """Records the golden if it is missing or has changed. The report is empty, and says what was done."""
        from precheck.goldens.lifecycle import refresh
        from precheck.measurement import job_of
        from precheck.observe.job import InputError

        if not golden.exists() and _draws(self.item):
            raise InputError(_DRAWN)
        which = self.item.config.stash[KEY].refresh or "changed"
        done = refresh(golden, job_of(**given), which)
        self.note(golden, refreshed=done.status, changes=list(done.lines))
        from precheck.findings import Report

        return Report(precision=self.precision.name, facts={"golden": self.shown(golden), "refreshed": done.status})

    def _checked(self, golden: Path, given: dict[str, Any], allow: Mapping[str, str] | None) -> Report:
        """Checks the model, stores the check, and fails the test if errors are left. Then plants faults for the self-test, if asked."""
        __tracebackhide__ = True
        with collecting() as measured:
            report = self._report(golden, given, allow)
        verdict = self.verdict(report)
        if verdict.failed:
            failed = measured[-1] if measured else None
            allowed = {**verdict.tolerated, **(allow or {})}
            verdict.left.cure = report.cure = self._cure(verdict.left, given, allowed, failed)
        self.keep(golden, verdict, alone=plain_id(self.item) if not self.needs_golden and not golden.exists() else "")

        def tried(tolerated: Collection[str]) -> list[Outcome]:
            from precheck.selftests.checks import selftested

            held = golden if golden.exists() else None
            return selftested(golden=held, precision=self.precision, tolerated={*tolerated, *(allow or {})}, **given)

        self.end(self.calls, verdict, self.precision, tried)
        return report

    def _report(self, golden: Path, given: dict[str, Any], allow: Mapping[str, str] | None) -> Report:
        """The report of `check` beside the golden, or of `measure` if the test has and needs none; of an earlier run if nothing has changed."""

        def asked() -> Job:
            from precheck.measurement import job_of

            return job_of(**given)

        begun = self.stopwatch.seconds
        importlib.import_module("precheck.checking")  # which the first check of a session waits for
        self.stopwatch.add("loading precheck", self.stopwatch.seconds - begun)
        held = golden if self.needs_golden or golden.exists() else None
        wished = {"allow": dict(allow or {}), "golden": self.shown(golden) if held else ""}
        judge = functools.partial(self._judged, golden, given, allow)
        again = self.depth == "boundaries"  # which costs no more than finding out that nothing has changed
        return judge() if again else remembered(self.item, self.calls, self.precision, asked, held, wished, judge)

    def _judged(self, golden: Path, given: dict[str, Any], allow: Mapping[str, str] | None) -> Report:
        ops = self.item.config.stash[KEY].ops
        if self.needs_golden or golden.exists():
            from precheck.checking import check

            with judging(None):  # the self-test of this check runs below, with the markers of the test
                report = check(golden=golden, precision=self.precision, ops=ops, depth=self.depth, allow=allow, **given)
            report.facts["golden"] = self.shown(golden)
            return report
        from precheck.measurement import job_of, measure
        from precheck.shared_runs.evidence import diagnose

        report = measure(precision=self.precision, depth=self.depth, allow=allow, **given)
        if ops and not report.ops:
            diagnose(job_of(**given), self.precision, report)
        return report

    def _cure(self, report: Report, given: dict[str, Any], allow: Mapping[str, str], failed: Measurement | None) -> str:
        """Code with which the check passes, or "". The search makes at most `remedy_trials` trials, and uses the runs of the `failed` measurement."""
        asked = self.item.config.stash[KEY]
        from precheck.measurement import job_of
        from precheck.remedies import curable, searched

        if not asked.trials or not curable(report):
            return ""
        found = searched(
            job_of(**given), self.precision, report, most=asked.trials, patient=asked.patient, depth=self.depth, allow=allow,
            failed=failed, parts_only=True,
        )  # fmt: skip
        return found.call if found else ""

    def _refused(self, golden: Path, given: dict[str, Any], error: Exception) -> None:
        """Fails the test with one line if the model runs in float32 but not in this precision. With --full-trace pytest shows the traceback."""
        __tracebackhide__ = True
        from precheck.measurement import job_of
        from precheck.shared_runs.refusals import refused

        judged = self.precision.is_low and not self.item.config.stash[KEY].refresh
        told = refused(job_of(**given), self.precision) if judged else ""
        if told:
            self.refuse(golden, told, error)

    def _explained(self, golden: Path, error: Exception) -> str:
        from precheck.goldens.file import GoldenMissing
        from precheck.words import printable

        if not isinstance(error, GoldenMissing):
            return printable(str(error)).replace(str(golden), self.shown(golden))
        if _draws(self.item):
            return _DRAWN
        return f"no golden for this test at {self.shown(golden)}; record it with: {command(self.item, '--golden-refresh=missing', '32-true')}"


_DRAWN = (
    "@given draws other inputs in each run, and a golden holds those of one; let the test ask for precision instead of check_precision, and write "
    "precheck.measure(model, inputs, precision=precision).raise_for_errors()"
)


def _draws(item: pytest.Item) -> bool:
    """Whether hypothesis draws the inputs of a test anew in each run."""
    test = getattr(item, "obj", None)
    settings = getattr(test, "_hypothesis_internal_use_settings", None)
    return getattr(test, "is_hypothesis_test", False) and not getattr(settings, "derandomize", False)
