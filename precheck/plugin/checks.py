"""What the fixture `check_precision` gives to a test; loaded when a test uses it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from precheck.observe.listeners import judging
from precheck.plugin import selftest
from precheck.plugin.ledger import CHECKS, KNOWN, Check, Ruling
from precheck.plugin.markers import Expectations, expectations
from precheck.plugin.naming import command, golden_of, plain_id, shown
from precheck.plugin.settings import KEY, Depth
from precheck.plugin.tracebacks import users_frames
from precheck.precisions import Precision

if TYPE_CHECKING:
    import torch

    from precheck.findings import Report


class CheckPrecision:
    """What the `check_precision` fixture hands to a test."""

    def __init__(self, item: pytest.Item, precision: Precision) -> None:
        self.item, self.precision, self.calls = item, precision, 0
        self.depth: Depth = "ops"
        self.needs_golden = True  # or else, where there is none, float32 in the same process is the only reference

    def __call__(
        self,
        model: torch.nn.Module | Callable[..., Any],
        inputs: Any,
        *,
        loss: Callable[[Any], torch.Tensor] | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] | None = None,
        steps: int = 1,
        seed: int = 0,
        depth: Depth | None = None,
    ) -> Report:
        """`precheck.check`, with the golden of this test; `depth` as there, and as --precision-depth says where it is None."""
        __tracebackhide__ = True
        self.calls += 1
        golden = golden_of(self.item, self.calls)
        settings: dict[str, Any] = {"loss": loss, "optimizer": optimizer, "steps": steps, "seed": seed}
        self.depth = depth or self.item.config.stash[KEY].depth
        act = self._refreshed if self.item.config.stash[KEY].refresh else self._checked
        from precheck.goldens.file import GoldenError
        from precheck.observe.job import InputError

        try:
            return act(golden, model, inputs, settings)
        except (GoldenError, InputError) as error:
            message = self._explained(golden, error)
        except Exception as error:
            self._note(golden, error=f"{type(error).__name__}: {error}")
            raise error.with_traceback(users_frames(error)) from error.__cause__
        self._note(golden, error=message)
        pytest.fail(message, pytrace=False)

    def _refreshed(self, golden: Path, model: Any, inputs: Any, settings: dict[str, Any]) -> Report:
        from precheck.goldens.lifecycle import refresh
        from precheck.measurement import job_of

        which = self.item.config.stash[KEY].refresh or "changed"
        done = refresh(golden, job_of(model, inputs, **settings), which)
        self._note(golden, refreshed=done.status, changes=list(done.lines))
        from precheck.findings import Report

        return Report(precision=self.precision.name, facts={"golden": self._shown(golden), "refreshed": done.status})

    def _checked(self, golden: Path, model: Any, inputs: Any, settings: dict[str, Any]) -> Report:
        __tracebackhide__ = True
        report = self._report(golden, model, inputs, settings)
        wishes = expectations(self.item)
        tolerated = wishes.expected | wishes.allowed.keys()
        left = dataclasses.replace(report, findings=[f for f in report.findings if not (f.severity == "error" and f.rule in tolerated)])
        known = self.item.config.stash[KNOWN]
        ruling = known.ruling(self.item, self.calls, self.precision.name, left) if known else Ruling()
        failed = bool(left.errors) and not ruling.excused
        if failed:
            report.cure = left.cure = self._cure(left, model, inputs, settings)
        self._judged(golden, report, wishes, ruling, failed=failed)
        if failed:
            again = command(self.item, f"--precision={self.precision.name}", self.precision.name)
            pytest.fail("\n".join([*filter(None, [ruling.worse]), left.summary(), f"to see this again: {again}"]), pytrace=False)
        if not ruling.excused and self.item.config.stash[KEY].selftest:
            held = golden if golden.exists() else None
            selftest.tried(self.item, self.calls, self.precision, wishes, model, inputs, golden=held, **settings)
        return report

    def _report(self, golden: Path, model: Any, inputs: Any, settings: dict[str, Any]) -> Report:
        ops = self.item.config.stash[KEY].ops
        if self.needs_golden or golden.exists():
            from precheck.checking import check

            with judging(None):  # this check is tried with what its test's markers say
                report = check(model, inputs, golden=golden, precision=self.precision, ops=ops, depth=self.depth, **settings)
            report.facts["golden"] = self._shown(golden)
            return report
        from precheck.diagnosis import diagnose
        from precheck.measurement import job_of, measure

        report = measure(model, inputs, precision=self.precision, depth=self.depth, **settings)
        if ops and not report.ops:
            diagnose(job_of(model, inputs, **settings), self.precision, report)
        return report

    def _cure(self, report: Report, model: Any, inputs: Any, settings: dict[str, Any]) -> str:
        """Code with which the check passes, if that is found within the trials that `remedy_trials` allows."""
        asked = self.item.config.stash[KEY]
        if not asked.trials or all(finding.rule == "golden-stale" for finding in report.errors):
            return ""
        from precheck.measurement import job_of
        from precheck.remedies import searched

        found = searched(job_of(model, inputs, **settings), self.precision, report, most=asked.trials, patient=asked.patient, depth=self.depth)
        return found.call if found else ""

    def _judged(self, golden: Path, report: Report, wishes: Expectations, ruling: Ruling, *, failed: bool) -> None:
        """For the end of the session, and for junit."""
        from precheck.report.terminal import entry

        settings, worst = self.item.config.stash[KEY], report.worst
        self._note(
            golden,
            failed=failed,
            alone=plain_id(self.item) if not self.needs_golden and not golden.exists() else "",
            rules=sorted({finding.rule for finding in report.findings}),
            allowed=[f"{finding.rule} ({wishes.allowed[finding.rule]})" for finding in report.errors if finding.rule in wishes.allowed],
            entry=entry(report, settings.top),
            report=json.loads(report.to_json()) if settings.files else None,
            tolerated={
                **dict.fromkeys((finding.rule for finding in report.errors if ruling.excused), "known to fail"),
                **dict.fromkeys(wishes.expected, "expected"),
                **wishes.allowed,
            },
            excused=list(ruling.excused),
            known=ruling.told,
        )
        self.item.user_properties += [
            ("precheck_precision", report.precision),
            ("precheck_errors", ",".join(finding.rule for finding in report.errors)),
            ("precheck_worst_r", f"{worst.r:.4g}" if worst else ""),
            ("precheck_worst_tensor", worst.tensor if worst else ""),
        ]

    def _note(self, golden: Path, **facts: Any) -> None:
        line = (self.item.location[1] or 0) + 1
        check = Check(nodeid=plain_id(self.item, self.precision.name), golden=str(golden), precision=self.precision.name, line=line, **facts)
        self.item.stash[CHECKS].append(check)

    def _explained(self, golden: Path, error: Exception) -> str:
        from precheck.goldens.file import GoldenMissing
        from precheck.words import printable

        if not isinstance(error, GoldenMissing):
            return printable(str(error))
        return f"no golden for this test at {self._shown(golden)}; record it with: {command(self.item, '--golden-refresh=missing', '32-true')}"

    def _shown(self, golden: Path) -> str:
        return shown(golden, self.item.config.rootpath)
