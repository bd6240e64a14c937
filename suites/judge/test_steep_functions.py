"""A rounding in one function that another makes large: told where its author could leave it out, and not where the precision asks for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import precheck
from precheck.findings import Finding

LOW = torch.bfloat16
FEATURES, PROTOTYPES = (functional.normalize(torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows)), dim=-1) for rows in (24, 64))
GIVEN = FEATURES.to(LOW)


def errors(code: Callable[[], object]) -> list[Finding]:
    with precheck.watch() as report:
        kept = code()
    del kept
    return report.errors


def line_of(function: Callable[..., object], text: str) -> str:
    """The number of the first line of a function that has that text in it."""
    lines, start = inspect.getsourcelines(function)
    return str(start + next(number for number, line in enumerate(lines) if text in line))


def softened(scores: torch.Tensor) -> torch.Tensor:
    return functional.softmax(scores.float(), dim=-1)


def tempered(features: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    scores = features.float() @ PROTOTYPES.T
    return scores.to(low) / 0.02  # cast, then softened


class Targets(nn.Module):
    """Calls one function after the other."""

    def forward(self, features: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        return softened(tempered(features, low))


def sharpened(features: torch.Tensor) -> torch.Tensor:
    return (features.float() @ PROTOTYPES.T / 0.02).to(LOW)


def test_a_cast_that_another_function_exponentiates() -> None:
    (found,) = errors(lambda: Targets()(GIVEN, LOW))
    assert found.rule == "amplified-rounding"
    assert found.source.endswith(f"test_steep_functions.py:{line_of(tempered, 'cast, then')}")
    assert "a rounding to bfloat16 here (" in found.message
    assert "times by aten._softmax.default at " in found.message
    assert found.message.endswith("unit roundoffs off, most of it by this one rounding")


def both(features: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    scores = features.float() @ PROTOTYPES.T
    return torch.cat([each.to(LOW) / 0.02 for each in (scores, held.float() / 2)])  # casts of a list


def test_of_several_casts_on_a_line_the_one_that_rounds_is_named() -> None:
    """The last one rounds nothing, since a function has rounded its numbers before."""
    (found,) = errors(lambda: softened(both(GIVEN, sharpened(1e-4 * GIVEN))))
    assert found.rule == "amplified-rounding"
    assert found.source.endswith(f"test_steep_functions.py:{line_of(both, 'casts of a list')}")
    assert "a rounding to bfloat16 here (0.1" in found.message


def test_the_same_without_the_cast() -> None:
    assert errors(lambda: Targets()(GIVEN, torch.float32)) == []


def test_what_a_function_hands_over_low_is_rounded_where_the_precision_rounds() -> None:
    assert errors(lambda: softened(sharpened(GIVEN))) == []


def test_data_that_is_cast_is_as_given() -> None:
    def called(data: torch.Tensor) -> torch.Tensor:
        return softened(data.to(LOW) / 0.02)

    assert errors(lambda: called(FEATURES @ PROTOTYPES.T)) == []


FIELD = torch.rand(1, 4, 64, 64, generator=torch.Generator().manual_seed(5))


def sampled(grid: torch.Tensor) -> torch.Tensor:
    return functional.grid_sample(FIELD, grid.float()[None], align_corners=True)


class Samples(nn.Module):
    """A network that samples a field at places, so that what makes the places is another call."""

    def forward(self, grid: torch.Tensor) -> torch.Tensor:
        return sampled(grid)


def points(offsets: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    places = 0.5 + 0.4 * torch.tanh(offsets.float())
    return Samples()(2 * places.to(low) - 1)  # cast, then sampled


def test_a_cast_of_places_at_which_another_function_samples_a_field() -> None:
    offsets = torch.randn(1, 200, 2, generator=torch.Generator().manual_seed(6)).to(LOW)
    (found,) = errors(lambda: points(offsets, LOW))
    assert found.rule == "amplified-rounding"
    assert found.source.endswith(f"test_steep_functions.py:{line_of(points, 'cast, then')}")
    assert "times by aten.grid_sampler_2d.default at " in found.message
    assert errors(lambda: points(offsets, torch.float32)) == []


class Rotary(nn.Module):
    """Positions times a table of frequencies that the module holds."""

    def __init__(self, positions: int = 400) -> None:
        super().__init__()
        self.positions = positions
        self.embed = nn.Linear(8, 16)
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(0, 16, 2) / 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.embed(x)
        angles = torch.arange(self.positions, dtype=torch.float32)[:, None] * self.frequencies.float()  # positions times the table
        return torch.cat([angles.cos(), angles.sin()], -1).to(y.dtype) * y


class Kept(Rotary):
    """The same, whose conversion leaves the table in float32."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        table = self.frequencies
        super()._apply(fn, recurse)
        self.frequencies = table
        return self


def measured(model: nn.Module, rows: int, precision: str = "bf16-true") -> precheck.Report:
    torch.manual_seed(0)
    return precheck.measure(model, torch.randn(rows, 8), precision=precision)


def test_a_table_that_the_conversion_rounds() -> None:
    report = measured(Rotary(), 400)
    assert report.errors == []
    (found,) = [each for each in report.findings if each.rule == "amplified-rounding"]
    assert found.rule == "amplified-rounding"
    assert found.source.endswith(f"test_steep_functions.py:{line_of(Rotary.forward, 'positions times')}")
    assert "this computes with a tensor that the conversion of the model to bfloat16 has rounded (" in found.message
    assert found.message.endswith("; keep that tensor in float32: override _apply, or compute it again after the conversion")


def test_a_table_that_its_author_keeps() -> None:
    assert measured(Kept(), 400).errors == []


def test_few_positions_make_little_of_it() -> None:
    assert measured(Rotary(4), 4).errors == []


def test_autocast_leaves_the_table_alone() -> None:
    assert measured(Rotary(), 400, "bf16-mixed").errors == []


def test_a_table_of_sines_is_rounded_once() -> None:
    class Sines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.sin(torch.arange(400)[:, None] / 7 * torch.arange(1, 9)))
            self.mix = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.softmax(self.mix(x + self.table), dim=-1)

    assert measured(Sines(), 400).errors == []


STEPS = 0.019 + 0.0005 * torch.rand(3, 800, generator=torch.Generator().manual_seed(3))


def turned(steps: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    sums = steps.to(low).cumsum(1)  # stored
    return sums - sums.floor()


def sung(turns: torch.Tensor) -> torch.Tensor:
    return (2 * torch.pi * turns[..., None] * torch.arange(1, 7)).sin()


class Voice(nn.Module):
    def forward(self, steps: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        return sung(turned(steps, low))


def test_a_difference_and_a_wave_that_amplify_one_rounding_together() -> None:
    (found,) = errors(lambda: Voice()(STEPS, LOW))
    assert found.rule == "amplified-rounding"
    assert found.source.endswith(f"test_steep_functions.py:{line_of(turned, 'stored')}")
    assert " times, by a difference of nearly equal numbers and then by aten.sin.default at " in found.message


def test_a_difference_of_sums_that_float32_holds() -> None:
    assert errors(lambda: Voice()(STEPS, torch.float32)) == []


class Hum(nn.Module):
    """Waves of few turns: neither the difference nor they lose much."""

    def forward(self, steps: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        return (2 * torch.pi * turned(steps[:, :48], low)).sin()


def test_a_wave_that_keeps_its_digits() -> None:
    assert errors(lambda: Hum()(STEPS, LOW)) == []
