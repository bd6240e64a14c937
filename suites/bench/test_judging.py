"""What it costs to judge updates at check depth: runs of a few steps with and without it, by the budget of a tenth of the step.

The clock decides nothing here; see test_diagnose.py. At a rate of 1e-2 nothing stands still, as in a healthy run; at 1e-4 most weights do,
and what becomes of them is found by the ageing test, once a run. `PRECHECK_BENCH=1` measures the share on a million parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ratios import medians
from sized import made

from precheck.measurement import job_of
from precheck.observe.run import run
from precheck.observe.setting import low
from precheck.observe.training import Training
from precheck.precisions import resolve

BUDGET = 0.10
STEPS = 4


@pytest.mark.parametrize("rate", [1e-2, 1e-4])
def test_updates_judged_beside_the_steps_alone(
    rate: float, size: int, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    model, ids = made(size)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.roll(-1, 1).flatten())

    job = job_of(model, ids, loss=loss, optimizer=lambda them: torch.optim.AdamW(them, lr=rate), steps=STEPS, seed=0)
    traces = []

    def judged() -> None:
        traces.append(run(job, low(resolve("bf16-true"))))

    def bare() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Training, "_record_updates", lambda self, step: None)
            patched.setattr(Training, "aged", lambda self, another: {})
            run(job, low(resolve("bf16-true")))

    seconds = medians({"bare": bare, "judged": judged}, 3 if size else 1)
    share = seconds["judged"] / seconds["bare"] - 1
    record_property(f"updates_{rate:g}_{size}M", f"{share:.3f} of {BUDGET} allowed")
    print(f"rate {rate:g}, {size} M parameters, {STEPS} steps: {seconds}, {100 * share:.1f} % of {100 * BUDGET:.0f} % allowed")
    moved = [record for record in traces[0].records.values() if record.kind == "update"]
    assert [record.step for record in moved] == [STEPS] * len(list(model.parameters()))
    assert bool(traces[0].aged) is (rate == 1e-4)
