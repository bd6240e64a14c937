"""A gradient that autograd casts low on its way is rounded there, though the reference has no such op: correct rounding explains what follows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn import functional

import precheck
from precheck.analysis.noise_floor.noise_sites import noise_for
from precheck.measurement import job_of
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.recording.sketch import distance
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.precisions import resolve

SLOPE = "parameter-gradient:slope@1"


class Biased(torch.nn.Module):
    """Attention with a bias of each key that it learns, stored as its scores are. A softmax's gradient sums to zero along a row, and so the bias's
    gradient cancels; of the rounding after the softmax no such thing is true."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(width, width) for _ in range(3))
        self.slope = torch.nn.Parameter(torch.zeros(64))
        self.register_buffer("features", 1 + 0.02 * torch.randn(24, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (layer(x)[:, None] for layer in (self.query, self.key, self.value))
        bias = (self.features * self.slope).sum(-1).expand(len(x), 1, 24, 24)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))


def arguments() -> dict[str, Any]:
    torch.manual_seed(1)
    return {"model": Biased(), "inputs": torch.randn(2, 24, 32), "loss": lambda output: output.float().square().mean()}


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_gradient_that_cancels_after_a_cast_is_healthy(precision: str) -> None:
    assert not precheck.measure(**arguments(), precision=precision).errors


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_noise_on_every_op_reaches_what_reads_it(precision: str) -> None:
    """Without the cast's noise a run of correct rounding is off by less than a third of what the low run is off by, with it by as much."""
    job, chosen, log = job_of(**arguments()), resolve(precision), DecisionLog()
    seen = run(job, low(chosen, records=log))
    assert any(name == "aten.sum" for _, name, _, _ in log.narrowed), "the sum over queries reads what was cast after the softmax"
    assert {place for place, *_ in log.narrowed} == {"backward"}
    plain = run(job, reference(torch.float32, chosen, follows=log))

    def off(trace: Trace) -> float:
        return distance(trace.records[SLOPE].sketch, plain.records[SLOPE].sketch)

    def noisy(number: int, follows: DecisionLog) -> float:
        noise = dataclasses.replace(noise_for(job.model, seen, log, chosen, seed=number), everywhere=True)
        return off(run(job, reference(torch.float32, chosen, follows=follows, disturbance=noise)))

    least = max(noisy(number, dataclasses.replace(log, narrowed={})) for number in (1, 2, 3))
    most = max(noisy(number, log) for number in (1, 2, 3))
    assert least < off(seen) / 3 < most


class Balanced(torch.nn.Module):
    """Scores of points and their like, whose rows and columns are balanced in turn where autocast is turned off. `kept` is their format there."""

    def __init__(self, kept: torch.dtype, width: int = 16) -> None:
        super().__init__()
        self.kept, self.first, self.last = kept, torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        torch.nn.init.eye_(self.first.weight)
        torch.nn.init.eye_(self.last.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.first(x).float(), self.last(x).float()
        with torch.autocast("cpu", enabled=False):
            scores = (4 * left @ right.transpose(1, 2)).to(self.kept)
            rows, columns = torch.zeros(x.shape[:2]), torch.zeros(x.shape[:2])
            for _ in range(20):
                rows = -torch.logsumexp(scores + columns[:, None], 2)
                columns = -torch.logsumexp(scores + rows[:, :, None], 1)
            return scores + rows[:, :, None] + columns[:, None]


@pytest.mark.parametrize(("kept", "wrong"), [(torch.float16, True), (torch.float32, False)])
def test_a_cast_that_autocast_does_not_ask_for_explains_no_gradient(kept: torch.dtype, wrong: bool) -> None:
    """The rows' and columns' gradients cancel. In float16 each read of the scores rounds a gradient, and autograd adds 41 of them up. Runs that round
    there too are as far off, so they must not: float32 would do without."""
    torch.manual_seed(0)
    inputs = torch.randn(2, 24, 16)
    report = precheck.measure(Balanced(kept), inputs, loss=lambda plan: -plan.diagonal(dim1=1, dim2=2).mean(), precision="16-mixed")
    found = {(error.rule, error.source.split(":")[-1]) for error in report.errors if error.source}
    line = Balanced.forward.__code__.co_firstlineno + 3
    assert found == ({("accumulated-drift", str(line))} if wrong else set()), report.summary()
