"""The fixtures: `precision`, `precision_device`, `check_precision`. torch is imported when one is used."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from precheck.findings import Report
from precheck.plugin.ledger import CHECKS, Check
from precheck.plugin.markers import Expectations, expectations
from precheck.plugin.naming import golden_of, shown, under_float32
from precheck.plugin.settings import KEY
from precheck.precisions import Precision, resolve
from precheck.report.terminal import entry

if TYPE_CHECKING:
    import torch


@pytest.fixture(scope="session")
def precision(request: pytest.FixtureRequest) -> Precision:
    """The precision of this test: one after the other of those in --precision (32-true if none is given).

    Of session scope, so that it is safe under hypothesis' @given. `.name`, `.compute_dtype`, `.param_dtype`, `.autocast()`, …
    """
    given = getattr(request, "param", None)
    chosen: Precision = given if given is not None else request.config.stash[KEY].precisions[0]
    return chosen


@pytest.fixture(scope="session")
def precision_device(request: pytest.FixtureRequest) -> torch.device:
    """The torch.device of --precision-device; `auto` is the first CUDA device if there is one, else the CPU."""
    import torch

    name = request.config.stash[KEY].device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


@pytest.fixture
def check_precision(request: pytest.FixtureRequest, precision: Precision | str) -> CheckPrecision:
    """check_precision(model, inputs, *, loss=None, optimizer=None, steps=1, seed=0) -> Report.

    Runs the model under the test's precision, compares it with the golden of this test, and fails the test if there are errors.
    A tensor of inputs is one argument, a tuple positional ones, a dict keywords. `loss` takes the model's output and returns a
    scalar; without it only the forward runs. `optimizer` takes parameters, as torch.optim's do. The model comes back as it was.
    """
    return CheckPrecision(request.node, resolve(precision))


class CheckPrecision:
    """What the `check_precision` fixture hands to a test."""

    def __init__(self, item: pytest.Item, precision: Precision) -> None:
        self.item, self.precision, self.calls = item, precision, 0

    def __call__(
        self,
        model: torch.nn.Module | Callable[..., Any],
        inputs: Any,
        *,
        loss: Callable[[Any], torch.Tensor] | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] | None = None,
        steps: int = 1,
        seed: int = 0,
    ) -> Report:
        __tracebackhide__ = True
        self.calls += 1
        golden = golden_of(self.item, self.calls)
        settings: dict[str, Any] = {"loss": loss, "optimizer": optimizer, "steps": steps, "seed": seed}
        act = self._refreshed if self.item.config.stash[KEY].refresh else self._checked
        from precheck.goldens.file import GoldenError
        from precheck.observe.job import InputError

        try:
            return act(golden, model, inputs, settings)
        except (GoldenError, InputError) as error:
            raise _said(self, golden, error) from None

    def _refreshed(self, golden: Path, model: Any, inputs: Any, settings: dict[str, Any]) -> Report:
        __tracebackhide__ = True
        from precheck.goldens.lifecycle import refresh
        from precheck.measurement import job_of

        which = self.item.config.stash[KEY].refresh or "changed"
        done = refresh(golden, job_of(model, inputs, **settings), which)
        check = Check(nodeid=self.item.nodeid, golden=str(golden), refreshed=done.status, changes=list(done.lines))
        self.item.stash[CHECKS].append(check)
        return Report(precision=self.precision.name, facts={"golden": str(golden), "refreshed": done.status})

    def _checked(self, golden: Path, model: Any, inputs: Any, settings: dict[str, Any]) -> Report:
        __tracebackhide__ = True
        from precheck.checking import check

        report = check(model, inputs, golden=golden, precision=self.precision, **settings)
        wishes = expectations(self.item)
        self._note(golden, report, wishes)
        tolerated = wishes.expected | wishes.allowed.keys()
        left = dataclasses.replace(report, findings=[f for f in report.findings if not (f.severity == "error" and f.rule in tolerated)])
        if left.errors:
            pytest.fail(f"{left.summary()}\nto see this again: {self._command()}", pytrace=False)
        return report

    def _note(self, golden: Path, report: Report, wishes: Expectations) -> None:
        """For the end of the session, and for junit."""
        root = self.item.config.rootpath
        report.facts["golden"] = shown(golden, root)
        self.item.stash[CHECKS].append(
            Check(
                nodeid=self.item.nodeid,
                golden=str(golden),
                rules=sorted({finding.rule for finding in report.findings}),
                allowed=[f"{finding.rule} ({wishes.allowed[finding.rule]})" for finding in report.errors if finding.rule in wishes.allowed],
                entry=entry(report, self.item.config.stash[KEY].top),
                report=json.loads(report.to_json()) if self.item.config.stash[KEY].json else None,
            )
        )
        worst = report.worst
        self.item.user_properties.extend(
            [
                ("precheck_precision", report.precision),
                ("precheck_errors", ",".join(finding.rule for finding in report.errors)),
                ("precheck_worst_r", f"{worst.r:.4g}" if worst else ""),
                ("precheck_worst_tensor", worst.tensor if worst else ""),
            ]
        )

    def _command(self) -> str:
        return f'pytest --precision={self.precision.name} "{self.item.nodeid}"'


def _said(check: CheckPrecision, golden: Path, error: Exception) -> BaseException:
    """precheck's own error as a failure of one message and no traceback."""
    from precheck.goldens.file import GoldenMissing

    item = check.item
    text = str(error)
    if isinstance(error, GoldenMissing):
        path = shown(golden, item.config.rootpath)
        text = f'no golden for this test at {path}; record it with: pytest --golden-refresh=missing "{under_float32(item)}"'
    return pytest.fail.Exception(text, pytrace=False)
