"""Data that a function rounds itself: known to a rounding anyway, unless the function computes low with them. Counts that are taken as amounts."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import precheck
from precheck.findings import Finding

LOW = torch.bfloat16


class Model(nn.Module):
    """A model whose forward pass is that function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: object) -> torch.Tensor:
        return self.function(*inputs)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def errors(code: Callable[[], object]) -> list[Finding]:
    with precheck.watch() as report:
        kept = code()
    del kept
    return report.errors


def at(function: Callable[..., object], text: str) -> str:
    """The end of a finding's source: the line of a function that has that text in it."""
    lines, start = inspect.getsourcelines(function)
    return f"test_rounded_data.py:{start + next(number for number, line in enumerate(lines) if text in line)}"


def distances(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    places = places.to(low)
    apart = (places[:, None] - places[None]).float()
    return apart.square().sum(-1)


def distances_rounded(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    apart = (places[:, None] - places[None]).to(low).float()
    return apart.square().sum(-1)


PLACES = torch.tensor([950.0, 480.0]) + 40 * normal(40, 2)


def test_low_arithmetic_on_data_is_the_functions_own() -> None:
    """Data may be rounded. But what is subtracted in the low format could have been subtracted before the cast."""
    first = errors(lambda: Model(distances)(PLACES, LOW))[0]
    assert first.source.endswith(at(distances, "places = "))
    assert "distances() is " in first.message
    assert "a rounding to bfloat16 here" in first.message
    assert errors(lambda: Model(distances_rounded)(PLACES, LOW)) == []


def wide_distances(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    stored = places.to(low)
    return (stored.float()[:, None] - stored.float()[None]).square().sum(-1)


def test_wide_arithmetic_takes_data_as_they_were_stored() -> None:
    assert errors(lambda: Model(wide_distances)(PLACES, LOW)) == []


def test_what_a_program_stores_outside_of_its_model_is_data() -> None:
    assert errors(lambda: distances(PLACES, LOW)) == []


def wrapped(angles: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    angles = angles.to(low)
    apart = (angles[:, None] - angles[None]).float()
    return (apart + 3.0).remainder(6.0) - 3.0


def test_an_earlier_line_with_most_of_an_error_is_named_if_a_later_one_has_a_part() -> None:
    """The difference rounds as well. What it rounds is less than half of the error."""
    first = errors(lambda: Model(wrapped)(2.5 + 0.05 * normal(40), LOW))[0]
    assert first.source.endswith(at(wrapped, "angles = "))
    assert "wrapped() is " in first.message


def faded(low: torch.dtype, steps: int = 64) -> torch.Tensor:
    kept = torch.tensor(0.9973, dtype=low)
    return kept.float() ** torch.arange(steps)


def test_a_number_that_is_written_down_in_a_low_format_is_rounded_there() -> None:
    first = errors(lambda: faded(LOW))[0]
    assert first.source.endswith(at(faded, "kept ="))
    assert "faded() is " in first.message
    assert errors(lambda: faded(torch.float32)) == []


def triangles(low: torch.dtype) -> torch.Tensor:
    edges = 700 * (10 ** (torch.linspace(0, 2146, 18, dtype=low).float() / 2595) - 1)
    bins = torch.linspace(0, 4000, 129)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rise, fall).clamp_min(0)


def test_a_grid_that_is_made_low_is_rounded_as_a_cast_is() -> None:
    """Nothing is computed low, so the limit is that of a cast: 4 unit roundoffs, and not 13."""
    first = errors(lambda: triangles(LOW))[0]
    assert first.source.endswith(at(triangles, "edges ="))
    assert first.limit == 4.0
    assert errors(lambda: triangles(torch.float32)) == []


VIEWS = torch.randint(20_000, 400_000, (64,), generator=torch.Generator().manual_seed(0))
CLICKS = (VIEWS * 0.07).long()


def rates(clicks: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
    return clicks.to(LOW) / views.to(LOW)


def places_of_rows(place: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return place.to(LOW) / length.to(LOW)


def directions(steps: torch.Tensor) -> torch.Tensor:
    return functional.normalize(steps.to(LOW).float(), dim=-1)


@pytest.mark.parametrize(("code", "found"), [
    (lambda: rates(CLICKS, VIEWS), []),
    (lambda: directions(torch.randint(-900, 900, (64, 2), generator=torch.Generator().manual_seed(0))), []),
    (lambda: places_of_rows(torch.arange(700)[None], torch.tensor([[700], [811]])), ["integer-rounding"]),
    (lambda: rates(CLICKS, VIEWS) - CLICKS.to(LOW), ["integer-rounding"]),
])  # fmt: skip
def test_counts_are_amounts_where_each_is_divided_by_one_of_its_own(code: Callable[[], torch.Tensor], found: list[str]) -> None:
    """A rate or a direction is right up to the roundings of both. Places in a row have one length, and are compared with each other."""
    assert [each.rule for each in errors(code)] == found


def moneyness(prices: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    ratio = (prices / 100).to(low)
    return ratio.float().log()


def iterated(numbers: torch.Tensor) -> torch.Tensor:
    numbers = numbers.sigmoid()
    for _ in range(48):
        numbers = 3.9 * numbers * (1 - numbers)
    return numbers


class Chaotic(nn.Module):
    """A function, and chaos in another one."""

    def forward(self, prices: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        return iterated(moneyness(prices, low))


def test_what_a_function_returns_is_wrong_however_chaotic_is_what_follows() -> None:
    prices = 100 + 9 * normal(256)
    first = errors(lambda: Chaotic()(prices, LOW))[0]
    assert first.source.endswith(at(moneyness, "ratio ="))
    assert "moneyness() is " in first.message
    assert errors(lambda: Chaotic()(prices, torch.float32)) == []
    assert errors(lambda: Model(lambda: iterated(moneyness(prices, LOW)))()) == [], "one function, whose result float32 does not determine"


def counted(classes: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    count = torch.zeros(2, dtype=low).index_add_(0, classes, torch.ones(classes.numel(), dtype=low))
    return count.float() / 700


def squared(angles: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    half = angles.sin().to(low)
    return (half * half).float().sqrt() * 1e4


class Followed(nn.Module):
    """What a function returns, and chaos in another one."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, given: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        return iterated(self.function(given, low))


@pytest.mark.parametrize(("function", "given", "low", "rule", "line"), [
    (counted, torch.arange(1200) % 2, LOW, "local-drift", "count ="),
    (squared, 2e-5 * (1 + normal(256).sigmoid()), torch.float16, "underflow", "return (half"),
])  # fmt: skip
def test_lost_terms_and_squares_that_vanish_are_errors_before_chaos(
    function: Callable[..., torch.Tensor], given: torch.Tensor, low: torch.dtype, rule: str, line: str
) -> None:
    first = errors(lambda: Followed(function)(given, low))[0]
    assert first.rule == rule
    assert first.source.endswith(at(function, line))
    assert errors(lambda: Followed(function)(given, torch.float32)) == []


class Temperature(nn.Module):
    """Exponentials of what one of torch's own modules gives."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.score = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.score(x).float().clamp(max=1.4) * 60)


@pytest.mark.parametrize(("autocast", "severities"), [(True, ["warning"]), (False, [])])
def test_a_rounding_that_the_precision_asks_for_is_a_warning_where_no_noise_runs_explain_it(autocast: bool, severities: list[str]) -> None:
    """The line does what correct code does."""
    model = Temperature()
    with precheck.watch() as report, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        kept = model(normal(128, 32))
    del kept
    assert [each.severity for each in report.findings] == severities
    assert all("measure() tells whether noise runs explain what it does" in each.message for each in report.findings)


def test_noise_runs_explain_it() -> None:
    assert precheck.measure(Temperature(), normal(128, 32), precision="bf16-mixed").errors == []


def rarity(counts: torch.Tensor, scale: float) -> torch.Tensor:
    """Weights that are largest for the rarest rows. Their chances are less than a millionth."""
    chance = (scale * counts / counts.sum()).half()
    weight = (chance.float() / scale) ** -0.4
    return weight / weight.max()


COUNTS = torch.cat((torch.randint(20, 80, (8,), generator=torch.Generator().manual_seed(3)), torch.full((50_000,), 1_500))).float()


def test_numbers_that_a_cast_of_data_makes_subnormal_are_known_to_less_than_a_rounding() -> None:
    first = errors(lambda: rarity(COUNTS, 1.0))[0]
    assert first.rule == "underflow"
    assert first.source.endswith(at(rarity, "chance = "))
    assert "rarity() is off by " in first.message
    assert errors(lambda: rarity(COUNTS, 1024.0)) == []
