"""The object of the fixture `watch_precision`: watches a block, and fails the test if there are errors.

Loaded when a test uses the fixture, since it imports torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import NoReturn

import pytest
import torch

from precheck import ops
from precheck.findings import Report
from precheck.observe.job import InputError
from precheck.plugin.arguments import taking
from precheck.plugin.naming import golden_of
from precheck.plugin.settings import KEY
from precheck.plugin.verdicts import Verdicts
from precheck.selftests.checks import watched
from precheck.watching import watch


class WatchPrecision(Verdicts):
    """The object of the `watch_precision` fixture. `precision` is that of the test."""

    name = "watch_precision"
    left_out = 0  # calls whose block has not been entered

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the precision stores weights: float32 under *-mixed, bfloat16 under bf16-true."""
        return self.precision.param_dtype

    @property
    def applied(self) -> bool:
        """Whether the fixture applies the precision to the block. For other precisions the user's loop has to cast the weights."""
        return self.precision.autocasts or self.precision.gemm is not None or self.precision.name == "32-true"

    @taking()
    def __call__(
        self, model: torch.nn.Module | None = None, *, allow: Mapping[str, str] | None = None
    ) -> contextlib.AbstractContextManager[Report]:
        self.left_out += 1
        return self._block(model, allow)

    def __enter__(self) -> NoReturn:
        __tracebackhide__ = True
        self.misuse("watch_precision stands in a `with` without its parentheses; write `with watch_precision() as report:`")

    def __exit__(self, *raised: object) -> None: ...

    def at_end(self) -> None:
        """Fails a test that has called the fixture and entered no block, in which nothing would be watched."""
        if self.left_out:
            pytest.fail("watch_precision() was called without `with`, so nothing was watched: write `with watch_precision():`", pytrace=False)

    @contextlib.contextmanager
    def _block(self, model: torch.nn.Module | None, allow: Mapping[str, str] | None) -> Iterator[Report]:
        __tracebackhide__ = True
        self.left_out -= 1
        if self.item.config.stash[KEY].refresh:
            yield Report(precision=self.precision.name, facts={"refreshed": "nothing: a watched block has no golden"})
            return
        place = golden_of(self.item, self.number)
        block = contextlib.ExitStack()
        block.enter_context(self.timed())
        try:
            report = block.enter_context(watch(model, precision=self.precision if self.applied else None, allow=allow))
        except InputError as error:
            message = str(error).replace("watch()", self.name)
        else:
            report.precision = self.precision.name
            try:
                with block:
                    yield report
            except Exception as error:
                self.note(place, watched=True, error=f"{type(error).__name__}: {error}")
                raise
            message = self._unwatched(report)
        if message:
            self.note(place, watched=True, error=message)
            pytest.fail(message, pytrace=False)
        compared = bool(report.facts["shadowed"])
        self.judge(place, report, self.precision, lambda tolerated: watched(compared=compared, precision=self.precision))

    def _unwatched(self, report: Report) -> str:
        """The message for a block in which nothing ran, or nothing in the low format of its precision. "" if something did."""
        if not report.facts["ops"]:
            return "no op of torch ran in this block, so nothing was watched: run the training steps inside it, in this thread"
        if self.precision.autocasts and not report.errors and (other := self._other_format(report)):
            runs = "16-mixed" if other == "float16" else "bf16-mixed"
            return (
                f"no product of the forward pass ran in {self.precision.compute.dtype_name}, so it did not run under {self.precision.name}: it "
                f"computes in {other}. Leave its autocast out, or write torch.autocast(..., dtype={self.name}.precision.compute_dtype), or name "
                f'the precisions that it runs under, as in @pytest.mark.precision("{runs}")'
            )
        if self.applied or not self.precision.is_low or report.facts["shadowed"]:
            return ""
        return (
            f"nothing in this block is stored in {self.precision.param.dtype_name}, so it did not run under {self.precision.name}: cast in it, "
            f'as in model.to({self.name}.dtype), or name the precisions that it runs under, as in @pytest.mark.precision("bf16-mixed")'
        )

    def _other_format(self, report: Report) -> str:
        """The format of 16 bits in which the forward pass multiplies matrices, if that is not the precision's. Under the fixture's autocast they are
        multiplied in its format, whatever is cast by hand, so an autocast of the block's own goes before it.

        A backward pass that is called outside of that autocast, as torch advises, runs under the fixture's and says nothing."""
        rows = (row for row in report.ops if row.phase == "forward" and any(name in ops.MATRIX_PRODUCTS for name in row.op.split(".")[1:2]))
        found = {row.dtype for row in rows} & {"bfloat16", "float16"}
        return "" if self.precision.compute.dtype_name in found else min(found, default="")
