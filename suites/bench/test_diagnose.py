"""Diagnose depth beside its budget: one watched training step, over the plain low step and the plain float32 step together.

The clock decides nothing here: the ratio is written down (junit property, and on the terminal with -rP). `PRECHECK_BENCH=17` names the
size in millions of parameters, of 1, 4, 17 and 124; the budget of 1.5 is stated for 17. Without it the model is tiny and runs once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ratios import medians
from sized import Trained

import precheck

BUDGET = 1.5


@pytest.mark.parametrize("kind", ["bf16-true", "bf16-mixed"])
def test_a_watched_step_beside_the_two_that_it_is_made_of(kind: str, size: int, record_property: Callable[[str, object], None]) -> None:
    rounds = {0: 1, 1: 3}.get(size, 5)
    low = {"dtype": torch.bfloat16} if kind == "bf16-true" else {"autocast": torch.bfloat16}
    plain, wide, watched = Trained(size, **low), Trained(size), Trained(size, **low)
    reports = []

    def watch() -> None:
        with precheck.watch(watched.model) as report:
            watched.step()
        reports.append(report)

    seconds = medians({"low": plain.step, "float32": wide.step, "watched": watch}, rounds)
    ratio = seconds["watched"] / (seconds["low"] + seconds["float32"])
    record_property(f"diagnose_{kind}_{size}M", f"{ratio:.2f} of {BUDGET} allowed")
    print(f"{kind}, {size} M parameters: {seconds}, ratio {ratio:.2f} of {BUDGET} allowed")
    assert all(torch.equal(one, other) for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True))
    assert {report.facts["covered"] for report in reports} == {1.0}, "what is timed is the whole of it"
