"""On an accelerator a run asks its tensors for nothing until its end, and writes the same trace."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from precheck.measurement import job_of
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Job
from precheck.observe.recording import reduce
from precheck.observe.recording.recorder import without_fill
from precheck.observe.recording.reduce import as_reduced, facts, numbers, reduced
from precheck.observe.records import Record, Trace
from precheck.observe.run import run
from precheck.observe.setting import low
from precheck.observe.shadow.comparing import fetching
from precheck.precisions import resolve


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def spoiled(values: torch.Tensor) -> torch.Tensor:
    values = values.clone()
    values.view(-1)[:5] = torch.tensor([math.nan, math.inf, math.inf, -math.inf, 0.0]).to(values.dtype)
    return values


VALUES = {
    "normal": normal(700, 400),
    "bf16": normal(700, 400).bfloat16(),
    "spoiled": spoiled(normal(700, 400).half()),
    "complex": torch.complex(normal(30, 20), normal(30, 20, seed=1)),
    "whole numbers": torch.arange(1000),
    "one": torch.tensor(-3.0),
    "none": torch.zeros(0, 3),
    "turned": normal(700, 400).t(),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_masks_are_counted_and_found_as_torch_finds_them(dtype: torch.dtype) -> None:
    """The quick ways for Inf, NaN and fills of masks give what the plain definitions give."""
    values, most = spoiled(normal(300, 300).to(dtype)), torch.finfo(dtype).max
    kinds = {"nan": values.isnan(), "posinf": values == math.inf, "neginf": values == -math.inf}
    assert reduce.nonfinite_counts(values) == {name: int(where.sum()) for name, where in kinds.items()}
    for fill in (-most, -most / 4, -math.inf, math.nan, 0.0):
        filled = normal(300, 300).to(dtype).masked_fill(normal(300, 300, seed=1) > 1, fill)
        plain = filled.masked_fill(filled.abs() > most / 4, math.inf)
        assert torch.equal(without_fill(filled, filled).nan_to_num(7.0), plain.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_fill_of_float16_is_one_in_a_wider_format_where_it_stands_alone(dtype: torch.dtype) -> None:
    masked = normal(300, 300, seed=1) > 1
    filled = normal(300, 300).half().masked_fill(masked, -65504.0).to(dtype) + normal(300, 300).to(dtype)
    assert torch.equal(without_fill(filled, filled).isinf(), masked)
    filled[0, 0] = 2.0**15  # a large number like any other: then 65504 may be one, too
    assert not without_fill(filled, filled).isinf().any()


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("sample", ["", "folded", "alone"])
def test_what_a_device_tells_is_what_a_cpu_finds(name: str, sample: Any) -> None:
    """Counts and magnitudes alike; sums of float32 within rows of a 16-bit tensor are off by 127 * 2^-24."""
    values, whole = VALUES[name], reduce.real(VALUES[name]).reshape(-1)
    if sample == "alone":
        [found] = reduce.reduced_together([reduce.thinned(whole)], [whole.numel()])
        here = facts(values, sample) | found
    else:
        here = reduced(values, sample)
    there = facts(values, sample) | as_reduced(numbers(values, sample))
    assert here.keys() <= there.keys()
    assert {key: there[key] for key in there.keys() - here.keys()} == dict.fromkeys(there.keys() - here.keys(), 0)
    for key in here.keys() - {"sketch", "norm"}:
        assert here[key] == there[key], key
    assert here["norm"] == pytest.approx(there["norm"], rel=1e-5)
    assert numpy.allclose(here["sketch"], there["sketch"], rtol=1e-5, atol=1e-5 * there["norm"])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.up, self.norm, self.down = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(nn.functional.gelu(self.norm(self.up(x))))
        return result


def job(**changes: Any) -> Job:
    """With rates from 1e-6 on nothing of bf16 weights moves, so that they are aged."""
    loss = changes.pop("loss", lambda out: out.float().square().mean())
    rate, steps = changes.pop("rate", 1e-2), changes.pop("steps", 2)
    made = job_of(Net(), normal(8, 16), loss=loss, optimizer=lambda them: torch.optim.AdamW(them, lr=rate), steps=steps)
    return dataclasses.replace(made, **changes)


@pytest.fixture
def deferring(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A CPU in an accelerator's place; and who asked a tensor for a number outside the transfers."""
    monkeypatch.setattr(fetching, "elsewhere", lambda tensor: True)
    return asked


def traced(asked: Job, precision: str) -> Trace:
    return run(asked, low(resolve(precision), records=DecisionLog()))


def differences(a: Trace, b: Trace) -> list[str]:
    """Records and their fields that are not the same, sums of float32 aside, as above."""
    if list(a.records) != list(b.records):
        return [f"{list(a.records)} are not {list(b.records)}"]
    return [f"{mine.key}: {field.name}" for mine, other in zip(a.records.values(), b.records.values(), strict=True)
            for field in dataclasses.fields(mine) if not _alike(field.name, mine, other)]  # fmt: skip


def _alike(field: str, mine: Record, other: Record) -> bool:
    one, two = getattr(mine, field), getattr(other, field)
    return bool(numpy.allclose(one, two, rtol=1e-5, atol=1e-5 * other.norm) if field in ("sketch", "norm", "weight_norm") else one == two)


SAMPLED = frozenset({"output:up@1", "gradient:up@1", "parameter-gradient:up.weight@1", "update:up.weight@2"})


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", "16-mixed", "bf16-master"])
@pytest.mark.parametrize("changes", [{}, {"rate": 1e-6}, {"sampled": SAMPLED}, {"steps": 1}, {"loss": None, "optimizer": None, "steps": 1}],
                         ids=["steps", "still", "sampled", "one step", "forward"])  # fmt: skip
def test_the_trace_is_the_same(precision: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if changes.get("loss", 0) is None:
        asked = dataclasses.replace(job(), loss=None, optimizer=None, steps=1)
    else:
        asked = job(**changes)
    plain = traced(asked, precision)
    monkeypatch.setattr(fetching, "elsewhere", lambda tensor: True)
    fetched = traced(asked, precision)
    assert len(fetched.records) >= len(list(Net().children()))
    assert not differences(fetched, plain)


def test_that_can_fail() -> None:
    """Another rate moves the weights otherwise, and nothing else of the first step."""
    differ = differences(traced(job(rate=1e-2, steps=1), "bf16-mixed"), traced(job(rate=2e-2, steps=1), "bf16-mixed"))
    assert {each.partition(":")[0] for each in differ} == {"update"}


@pytest.mark.parametrize(("steps", "still"), [(1, 0), (3, 1)])
def test_a_step_asks_once_and_twice_from_the_second_on(deferring: list[str], steps: int, still: int) -> None:
    """Whether all weights are finite after it; and whether its loss is, since a run that has failed learns no more. In the end how many
    stood still, if any is where it was: after three steps one has come back. Torch's own AdamW asks for its step count, which lies on
    the host: `item`."""
    traced(job(steps=steps), "bf16-true")
    own = len(list(Net().parameters())) * steps
    assert deferring.count("__bool__") == steps + (steps - 1)
    assert deferring.count("tolist") == still
    assert deferring.count("item") <= own
    assert set(deferring) <= {"__bool__", "tolist", "item"}


def test_fetching_is_one_call_a_dtype(deferring: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    original = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: fetched.append(self.numel()) or original(self))
    traced(job(), "bf16-true")
    assert len(fetched) == 1
    assert fetched[0] > 1000
