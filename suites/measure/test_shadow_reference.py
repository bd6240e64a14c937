"""The shadow of a run under autocast is the float32 run on its decisions, bit for bit, so a measurement needs no second one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import precheck
from precheck import measurement
from precheck.measurement import Measurement, job_of
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import reference
from precheck.precisions import resolve


class Attention(nn.Module):
    """A masked head, written by hand: the mask's fill is the end of whatever format the scores have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        found = query @ key.transpose(-1, -2) / 4
        return found.masked_fill(torch.ones(8, 8).triu(1).bool(), torch.finfo(found.dtype).min)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(self.scores(query, key).softmax(-1) @ value)


class Carried(nn.Module):
    """A recurrence by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), 16)
        for each in x.unbind(1):
            state = self.cell(each, state)
        return state


class Sampled(nn.Module):
    """Draws a float32 number, as a variational autoencoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.first(x).float()
        return self.second(mean + torch.randn_like(mean))


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(8, 16, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Conv1d(16, 4, 3), nn.ELU(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Chosen(nn.Module):
    """Decides by what low precision has made."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).argmax(-1)
        return torch.stack([expert(x) * (chosen == number).unsqueeze(-1) for number, expert in enumerate(self.experts)]).sum(0)


class Read(Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return found * 2 if float(self.qkv(x).mean()) > 0 else found


class Rounded(nn.Module):
    """Choices of other kinds: by a comparison, a rounding, a pool and the largest few."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.first(x)
        kept = torch.where(wide > 0.1, wide, wide.sign() * 0.1) + (wide * 8).round() / 8
        pooled = nn.functional.max_pool1d(kept, 2)
        return self.second(pooled) * pooled.topk(4, -1).values.mean(-1, keepdim=True)


def seen(make: Callable[[], nn.Module], precision: str, steps: int = 1) -> Measurement:
    torch.manual_seed(0)
    model, inputs = make(), torch.randn(4, 8, 16)
    job = job_of(model, inputs, loss=lambda out: out.float().square().mean(), optimizer=torch.optim.AdamW, steps=steps)
    return Measurement(job, resolve(precision), depth="ops")


def run_alone(measured: Measurement) -> Trace:
    return run(measured.job, reference(measured.dtype, measured.precision, follows=measured.log, decides=measured.own, functions=measured.functions))


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.parametrize(("make", "steps"), [(Attention, 1), (Carried, 1), (Sampled, 1), (Chosen, 1), (Attention, 3)])
def test_the_shadow_has_the_bits_of_a_run_in_float32(make: Callable[[], nn.Module], steps: int, precision: str) -> None:
    measured = seen(make, precision, steps)
    shadow = measured.seen.reference
    assert shadow is not None
    alone = run_alone(measured)
    assert list(shadow.records) == list(alone.records)
    assert {record.kind for record in shadow.records.values()} >= {"output", "gradient", "parameter-gradient", "loss", "update"}
    for key, record in shadow.records.items():
        other = alone.records[key]
        assert numpy.array_equal(record.sketch, other.sketch), key
        assert (record.norm, record.amax, record.zeros, record.nonfinite) == (other.norm, other.amax, other.zeros, other.nonfinite), key
        assert (record.shape, record.dtype, record.is_result, record.place) == (other.shape, other.dtype, other.is_result, other.place), key
    assert shadow.results == alone.results


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_masks_of_a_layer_are_the_runs_in_both(precision: str) -> None:
    """ReLU, dropout and ELU: what their derivatives let through is decided by the run."""
    measured = seen(Convolved, precision, steps=1)
    shadow, alone = measured.seen.reference, run_alone(measured)
    assert shadow is not None
    for key, record in shadow.records.items():
        off = float(numpy.linalg.norm(record.sketch - alone.records[key].sketch))
        cancels = record.norm < 1e-3 * max(each.norm for each in shadow.records.values() if each.kind == record.kind)  # a bias before a norm
        assert off <= (1e-2 if cancels else 1e-4) * max(record.norm, 1e-3), key


@pytest.mark.parametrize(
    ("make", "precision", "why"),
    [
        (Read, "bf16-mixed", "Python has read a low number, and may have branched on it"),
        (Attention, "bf16-true", "the weights themselves are rounded"),
        (Attention, "fp8-e4m3-mixed", "products are emulated"),
    ],
)
def test_where_the_two_part_float32_runs_by_itself(make: Callable[[], nn.Module], precision: str, why: str) -> None:
    assert seen(make, precision).seen.reference is None, why


@pytest.mark.parametrize("make", [Chosen, Rounded])
def test_the_shadow_knows_what_float32_would_decide(make: Callable[[], nn.Module]) -> None:
    measured = seen(make, "bf16-mixed")
    shadow, own = measured.seen.reference, dict(measured.own.entries)
    assert shadow is not None
    measured.own = DecisionLog()
    alone = run_alone(measured)
    assert shadow.flips == alone.flips
    assert sum(flipped for flipped, _ in alone.flips.values()) > 0 or make is Chosen
    assert own.keys() == measured.own.entries.keys()
    for key, found in measured.own.entries.items():
        assert all(one is two is None or torch.equal(one, two) for one, two in zip(found, own[key], strict=True)), key


class Meant(nn.Module):
    """Rounds its data on one line, in any precision."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.bfloat16().float())


def test_the_run_that_tells_which_casts_are_meant_is_the_reference() -> None:
    measured = seen(Meant, "bf16-mixed")
    beside, own = measured.seen.beside, measured.own
    assert measured.seen.reference is None
    assert beside is not None
    measured._make_reference()
    assert measured.reference is beside
    measured.own = DecisionLog()
    alone = run_alone(measured)
    assert own.entries.keys() == measured.own.entries.keys()
    assert list(alone.records) == list(beside.records)
    assert all(numpy.array_equal(record.sketch, alone.records[key].sketch) for key, record in beside.records.items())


def test_a_measurement_makes_no_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = []

    def counted(job: Any, setting: Any) -> Trace:
        settings.append(setting)
        return run(job, setting)

    monkeypatch.setattr(measurement, "run", counted)
    torch.manual_seed(0)
    report = precheck.measure(Attention(), torch.randn(4, 8, 16), precision="bf16-mixed", loss=lambda out: out.square().mean())
    assert not report.errors
    assert settings
    assert all(setting.disturbance is not None for setting in settings)


class Routed(nn.Module):
    """A router that returns its logits in float32. A float32 run passes them on as they are, so its noise runs have one tensor where this has two."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.gate = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits: torch.Tensor = self.gate(self.before(x).relu()).float()
        return logits, logits.sigmoid()


def test_the_gradient_of_a_cast_that_float32_does_not_make_has_the_noise_of_what_is_cast() -> None:
    """It had none, but one rounding of its own: the gradient of Afmoe's router was accused, with r = 9, of what reaches it from behind."""
    torch.manual_seed(0)
    after = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.after = Routed(), after

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.after(self.router(x)[1])
            return made

    report = precheck.measure(Whole(), torch.randn(8, 16), precision="bf16-mixed", loss=lambda out: out.float().square().mean())
    rows = {row.tensor: row for row in report.boundaries if row.kind == "gradient"}
    assert not report.errors
    assert rows["router[0]"].floor > 0.5 * rows["router.gate"].floor
