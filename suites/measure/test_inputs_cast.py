"""Noise of an input under autocast: at the ops that read a cast of it, as often as it was rounded, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.analysis.noise_floor.noise_sites import noise_for
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Job
from precheck.observe.recording.sketch import distance
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.precisions import PRECISIONS


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def features(places: torch.Tensor) -> torch.Tensor:
    """Sines at eight octaves, in float32 as the places are."""
    angles = places[..., None] * torch.pi * 2.0 ** torch.arange(8)
    return torch.sin(angles).flatten(-2).to(places.dtype)


def low_features(places: torch.Tensor) -> torch.Tensor:
    angles = places[..., None] * torch.pi * 2.0 ** torch.arange(8)
    low = angles.bfloat16()
    return torch.sin(low.float()).flatten(-2)


class Field(nn.Module):
    """Reads its places twice: as they are, for their features, and cast by autocast, for a product."""

    def __init__(self, encode: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.encode, self.first, self.direct = encode, nn.Linear(24, 32), nn.Linear(3, 32)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.first(self.encode(places)) + self.direct(places)


def moved(model: nn.Module, precision: str = "bf16-mixed") -> dict[str, float]:
    """How far a noise run is from the reference at each tensor, relative."""
    job, log, chosen = Job(model, torch.rand(64, 3, generator=generator())), DecisionLog(), PRECISIONS[precision]
    seen = run(job, low(chosen, records=log))
    noise = noise_for(model, seen, log, chosen, seed=1)
    plain, disturbed = (run(job, reference(torch.float32, chosen, follows=log, disturbance=each, functions=True)) for each in (None, noise))
    pairs = ((record.name, distance(record.sketch, disturbed.records[key].sketch), record.norm) for key, record in plain.records.items())
    return {name: off / norm for name, off, norm in pairs}


def test_what_reads_an_input_uncast_is_not_disturbed() -> None:
    found = moved(Field(features))
    assert found["features()"] == 0.0
    assert found["direct"] > 1e-3


def test_inputs_that_are_stored_low_are_disturbed_for_all() -> None:
    assert moved(Field(features), "bf16-true")["features()"] > 0.05


def test_low_features_of_wide_places_are_an_error() -> None:
    report = precheck.measure(Field(low_features), torch.rand(64, 3, generator=generator()), precision="bf16-mixed")
    assert report.errors[0].cause_rule == "amplified-rounding"
    row = next(row for row in report.boundaries if row.tensor == "low_features()")
    assert row.r > 10 * row.allowed


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_wide_features_of_wide_places_are_none(precision: str) -> None:
    report = precheck.measure(Field(features), torch.rand(64, 3, generator=generator()), precision=precision)
    assert report.errors == []
    assert max(row.r for row in report.boundaries) < 2


class Twice(nn.Module):
    """Two readers of one cast, whose difference is zero in any format."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 8, bias=False), nn.Linear(3, 8, bias=False)
        self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = torch.cat([x, x])[: len(x)]  # a copy
        return self.one(x).float() - self.other(x).float(), self.one(moved)  # type: ignore[return-value]


def test_an_input_is_rounded_once_whoever_reads_it() -> None:
    model, x = Twice(), torch.rand(64, 3, generator=generator())
    job, log, chosen = Job(model, x), DecisionLog(), PRECISIONS["bf16-mixed"]
    seen = run(job, low(chosen, records=log))
    noise = noise_for(model, seen, log, chosen, seed=1)
    noise.rounded = {}
    disturbed = run(job, reference(torch.float32, chosen, follows=log, disturbance=noise))
    plain = run(job, reference(torch.float32, chosen, follows=log))
    assert disturbed.records[disturbed.results["[0]"]].norm == 0.0
    key = plain.results["[1]"]
    assert distance(disturbed.records[key].sketch, plain.records[key].sketch) > 1e-3 * plain.records[key].norm  # moved about, it is cast all the same


def test_whole_numbers_are_not_rounded() -> None:
    model = nn.Linear(3, 8)
    job, log, chosen = Job(model, torch.randint(0, 200, (64, 3), generator=generator()).float()), DecisionLog(), PRECISIONS["bf16-mixed"]
    seen = run(job, low(chosen, records=log))
    noise = noise_for(model, seen, log, chosen, seed=1)
    noise.rounded, noise.parameters = {}, frozenset()
    disturbed, plain = (run(job, reference(torch.float32, chosen, follows=log, disturbance=each)) for each in (noise, None))
    (key,) = plain.records
    assert distance(disturbed.records[key].sketch, plain.records[key].sketch) == 0.0


def near(places: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
    return places - origin


class Arm(nn.Module):
    """Reads where things are in a hall, beside its own place."""

    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self.low, self.first = low, nn.Linear(3, 32)

    def forward(self, places: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
        return self.first(near(places.to(self.low), origin.to(self.low)).float())


def hall() -> dict[str, torch.Tensor]:
    origin = 90 + torch.rand(64, 3, generator=generator())
    return {"places": origin + torch.rand(64, 3, generator=generator().manual_seed(1)), "origin": origin}


def test_a_difference_of_inputs_that_the_user_casts_low_is_not_disturbed() -> None:
    """Autocast casts for products. What noise it would bring in here is the digits that the user's code has thrown away."""
    report = precheck.measure(Arm(torch.bfloat16), hall(), precision="bf16-mixed")
    first = report.errors[0]
    assert "near()" in first.message
    assert {first.rule, first.cause_rule} & {"accumulated-drift", "cancellation", "amplified-rounding"}


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_the_same_difference_in_float32_is_none(precision: str) -> None:
    assert precheck.measure(Arm(torch.float32), hall(), precision=precision).errors == []


def test_a_product_of_an_input_that_the_user_casts_is_disturbed() -> None:
    """Autocast would make the same cast."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.direct = nn.Linear(3, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.direct(x.bfloat16())

    torch.manual_seed(0)
    model, x = Cast(), torch.rand(64, 3, generator=generator())
    job, log, chosen = Job(model, x), DecisionLog(), PRECISIONS["bf16-mixed"]
    seen = run(job, low(chosen, records=log))
    noise = noise_for(model, seen, log, chosen, seed=1)
    noise.rounded, noise.parameters = {}, frozenset()
    disturbed, plain = (run(job, reference(torch.float32, chosen, follows=log, disturbance=each)) for each in (noise, None))
    key = plain.results[""]
    least = chosen.roundoff / 8 * plain.records[key].norm  # a rounding is 0.42 u; the bias has none
    assert distance(disturbed.records[key].sketch, plain.records[key].sketch) > least
