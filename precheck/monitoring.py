"""The verb `monitor`: watches a few steps of a long training run at regular intervals, and reports what no earlier look has shown.

Some faults come late: updates become too small for the format as the learning rate decays, a loss scale collapses, activations grow. A watch of every
step would find them, and take four to six times as long as training. A look at 5 steps in 1000 takes two percent longer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch

from precheck import arguments
from precheck.findings import Finding, Report
from precheck.judge import allowances
from precheck.observe.job import InputError
from precheck.observe.shadow.distributed.ranks import rank
from precheck.precisions import Precision, resolve
from precheck.torch_internals import innermost_mode
from precheck.watching import check_arguments, watch
from precheck.words import described

_logger = logging.getLogger("precheck")


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What one look showed.

    Attributes:
        first: The first step that was watched, from 1.
        last: The last one.
        errors: Rules of the errors, also of those that an earlier look has shown.
        loss: The greatest error of a loss relative to float32's, from the same weights at the beginning of the look. None without a backward pass.
        arrived: The least share of its intended updates that arrived in a low-precision parameter. None where there is none.
        scale: The last scale of a GradScaler. None without one.
    """

    first: int
    last: int
    errors: tuple[str, ...]
    loss: float | None
    arrived: float | None
    scale: float | None


class Monitor:
    """Watches some steps of a loop. `precheck.monitor` makes one; enter it around the loop, and call `step` at the end of each iteration.

    Attributes:
        report: The findings of all looks. A fault that several looks show is in it once, with the step at which it was first seen. Tables of ops,
            losses and updates are those of the last look.
        looks: A row for each look, such as for a plot.
    """

    def __init__(self, watching: Callable[[], contextlib.AbstractContextManager[Report]], every: int, steps: int, tell: Callable[[str], Any]) -> None:
        self.report = Report()
        self.looks: list[Look] = []
        self._watching, self._every, self._steps, self._tell = watching, every, steps, tell
        self._done = 0  # steps
        self._entered = False
        self._open: contextlib.ExitStack | None = None
        self._seen: Report | None = None
        self._mode: object = None  # the innermost mode at the beginning of the open look
        self._first = 0  # step of the open look
        self._known: set[tuple[str, str]] = set()

    def __enter__(self) -> Monitor:
        if self._entered:
            raise InputError("this monitor has been entered before; make one for each loop with precheck.monitor(...)")
        self._entered = True
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._open is not None:
            self._end(kind, error, trace)
        self._done = -1

    def step(self) -> None:
        """Ends an iteration of the loop. Call it outside of `torch.no_grad()`, autocast and other blocks that you entered within the iteration."""
        if not self._entered or self._done < 0:
            raise InputError("step() was called outside of the monitor's block; write `with precheck.monitor(...) as monitor:` around the loop")
        self._done += 1
        if self._open is not None and self._done - self._first + 1 >= self._steps:
            if innermost_mode() is not self._mode:
                return  # a mode that the program has entered since then has to be left first
            self._end(None, None, None)
        if self._open is None and self._done % self._every == 0:
            self._begin()

    def _begin(self) -> None:
        self._open, self._first = contextlib.ExitStack(), self._done + 1
        self._seen = self._open.enter_context(self._watching())
        self._mode = innermost_mode()

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the open look and takes over what it showed."""
        stack, seen, self._open, self._seen = self._open, self._seen, None, None
        assert stack is not None
        assert seen is not None
        stack.__exit__(kind, error, trace)
        if 0 < self._done < self._first and error is None:
            return  # the loop had ended when this look began
        last = max(self._done, self._first)
        self.looks.append(look(seen, self._first, last))
        fresh = [self._placed(finding, last) for finding in seen.findings if self._is_new(finding)]
        seen.findings, known = [], self.report.findings
        self.report = seen
        self.report.add([*known, *fresh])
        told = [finding for finding in fresh if finding.severity != "note" and told_by(finding, rank())]
        if told:
            steps = f"step {last}" if last == self._first else f"steps {self._first} to {last}"
            self._tell(f"precheck, {steps}: {Report(precision=seen.precision, findings=told).summary()}")

    def _is_new(self, finding: Finding) -> bool:
        """Whether no look has shown this fault. A rule and a line are one fault, or a rule and a tensor where there is no line."""
        key = finding.rule, finding.source or finding.tensor
        fresh = key not in self._known
        self._known.add(key)
        return fresh

    def _placed(self, finding: Finding, last: int) -> Finding:
        """The finding with its step in the whole run. A loop with several optimizers has several steps in an iteration."""
        return dataclasses.replace(finding, step=min(self._first - 1 + finding.step, last))


@arguments.entered("with precheck.monitor(model) as monitor:")
def monitor(
    model: torch.nn.Module | None = None,
    *,
    every: int = 1000,
    steps: int = 5,
    precision: str | Precision | None = None,
    allow: Mapping[str, str] | None = None,
    tell: Callable[[str], Any] | None = None,
) -> Monitor:
    """Watches the first `steps` of each `every` iterations of a training loop. Between looks nothing of precheck is on torch's way.

        with precheck.monitor(model) as monitor:
            for batch in loader:
                ...
                monitor.step()

    Args:
        model: Names modules in findings, as in `watch`.
        every: Iterations from the beginning of a look to that of the next, from `steps`.
        steps: Iterations of a look, from 1. With fewer than 5, rules on averages and counters may not come to a verdict.
        precision: A policy to apply to watched steps, as in `watch`. Leave it out where your loop applies its own.
        allow: Rules whose errors become notes, each with your reason: `{"lost-update": "the rate is zero at the end"}`.
        tell: Is given a text after each look that showed errors or warnings which are new. By default the logger "precheck" gets it, as a warning.
            Of several ranks the first on which a fault was found tells of it.

    Returns:
        A Monitor. Its `report` has the findings of all looks, its `looks` a row for each.

    Raises:
        PrecisionError: There is no such precision.
        InputError: An argument is not one of the above.
    """
    for name, value, least in (("steps", steps, 1), ("every", every, steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name}={value!r}; pass a whole number from {least}" + (" (steps)" if name == "every" else ""))
    if tell is not None and not callable(tell):
        raise InputError(f"tell is {described(tell)}; pass a function of a text, as in tell=print")
    check_arguments(model, None if precision is None else resolve(precision))
    allowances.checked(allow)
    return Monitor(lambda: watch(model, precision=precision, allow=allow), every, steps, tell or _logger.warning)


def told_by(finding: Finding, rank: int) -> bool:
    """Whether this rank tells of a finding: the first on which it was found. Where ranks do not watch together, each tells of its own."""
    return not finding.ranks or min(finding.ranks) == rank


def look(report: Report, first: int, last: int) -> Look:
    """The row of a look."""
    losses = [abs(loss.low - loss.reference) / abs(loss.reference) for loss in report.losses if math.isfinite(loss.reference) and loss.reference]
    scales = report.scaler.get("scale") if report.scaler else None
    return Look(
        first,
        last,
        tuple(dict.fromkeys(finding.rule for finding in report.errors)),
        max(losses, default=None),
        min((row["arrived"] for row in report.updates), default=None),
        scales,
    )
