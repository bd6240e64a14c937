"""What the fixture `watch_precision` gives to a test; loaded when a test uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from precheck.plugin import selftest
from precheck.plugin.naming import golden_of
from precheck.plugin.settings import KEY
from precheck.plugin.verdicts import Verdicts

if TYPE_CHECKING:
    import torch

    from precheck.findings import Report


class WatchPrecision(Verdicts):
    """What the `watch_precision` fixture hands to a test. `precision` is that of the test."""

    name = "watch_precision"

    @property
    def dtype(self) -> torch.dtype:
        """The format that the precision stores weights in: float32 under *-mixed, bfloat16 under bf16-true."""
        return self.precision.param_dtype

    @property
    def applied(self) -> bool:
        """Whether the block is put under the precision by the fixture; what others store, the user's own loop has to cast."""
        return self.precision.autocasts or self.precision.gemm is not None or self.precision.name == "32-true"

    @contextlib.contextmanager
    def __call__(self, model: torch.nn.Module | None = None, *, allow: Mapping[str, str] | None = None) -> Iterator[Report]:
        __tracebackhide__ = True
        from precheck.findings import Report
        from precheck.observe.job import InputError
        from precheck.watching import watch

        if self.item.config.stash[KEY].refresh:
            yield Report(precision=self.precision.name, facts={"refreshed": "nothing: a watched block has no golden"})
            return
        place = golden_of(self.item, self.number)
        watched = contextlib.ExitStack()
        watched.enter_context(self.timed())
        try:
            report = watched.enter_context(watch(model, precision=self.precision if self.applied else None, allow=allow))
        except InputError as error:
            message = str(error).replace("watch()", self.name)
        else:
            report.precision = self.precision.name
            try:
                with watched:
                    yield report
            except Exception as error:
                self.note(place, watched=True, error=f"{type(error).__name__}: {error}")
                raise
            message = self._unwatched(report)
        if message:
            self.note(place, watched=True, error=message)
            pytest.fail(message, pytrace=False)
        self._judged(place, report)

    def _unwatched(self, report: Report) -> str:
        """What to do about a block of which nothing was in the format that its precision stores; "" where something was."""
        if self.applied or not self.precision.is_low or report.facts["shadowed"]:
            return ""
        return (
            f"nothing in this block is stored in {self.precision.param.dtype_name}, so it did not run under {self.precision.name}, to which only "
            f"your loop can cast: model.to({self.name}.dtype); or name the others, as in @pytest.mark.precision(\"bf16-mixed\")"
        )

    def _judged(self, place: Path, report: Report) -> None:
        __tracebackhide__ = True
        number, verdict = self.number, self.verdict(report)
        self.keep(place, verdict, watched=True)
        if verdict.failed:
            self.fail(verdict)
        if not verdict.ruling.excused and self.item.config.stash[KEY].selftest:
            selftest.seen(self.item, number, self.precision, verdict.wishes, bool(report.facts["shadowed"]))

