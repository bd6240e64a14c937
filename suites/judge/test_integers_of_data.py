"""Lengths, buckets and places that data come to by low arithmetic: wrong where they differ at all from those of float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Finding
from precheck.observe.shadow.op_notes import Recut
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.probes.integer_casts import note_recut

FRAMES = 390
SHARES = torch.tensor([0.0731, 0.1357, 0.2468, 0.3141, 0.3819, 0.4669, 0.6180, 0.7071, 0.9119])
LOW = torch.bfloat16
Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Padded(nn.Module):
    """Recordings whose lengths are shares of the longest."""

    def __init__(self, lengths: Rule) -> None:
        super().__init__()
        self.linear, self.lengths = nn.Linear(4, 4), lengths

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        here = torch.arange(FRAMES) < self.lengths(shares, hidden).unsqueeze(1)
        return hidden.float().sum() * here.float().mean()


def errors(lengths: Rule, precision: str = "bf16-mixed") -> list[Finding]:
    torch.manual_seed(0)
    return precheck.measure(Padded(lengths), {"x": torch.randn(9, 4), "shares": SHARES}, precision=precision).errors


@pytest.mark.parametrize("lengths", [
    lambda shares, hidden: (shares.to(LOW) * FRAMES).ceil().long(),
    lambda shares, hidden: (shares.to(LOW) * FRAMES).long(),
    lambda shares, hidden: (shares.to(LOW) * FRAMES).round().int(),
    lambda shares, hidden: (shares.to(LOW) * FRAMES).floor().clamp(min=1).to(torch.int64),
    lambda shares, hidden: (shares.to(LOW) * 4 * FRAMES).float().round().long() // 4,
    lambda shares, hidden: ((shares.to(LOW) * FRAMES).float().ceil() + 1).clamp(min=1).long() - 1,
], ids=["ceil", "long", "round", "floor and clamp", "round in float32", "ceil in float32 and clamp"])  # fmt: skip
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_lengths_of_rounded_shares(lengths: Rule, precision: str) -> None:
    first = errors(lengths, precision)[0]
    assert first.rule == "integer-rounding"
    assert "of 9 integers that cast (aten._to_copy) at " in first.message
    assert "makes differ from those in the reference, since the numbers were rounded to bfloat16 before the cast: " in first.message
    assert "test_integers_of_data.py:" in first.source


@pytest.mark.parametrize("lengths", [
    lambda shares, hidden: (shares.float() * FRAMES).ceil().long(),
    lambda shares, hidden: (hidden.sum(-1).sigmoid().to(LOW) * FRAMES).round().long(),  # what a network says is rounded by whoever computes it
    lambda shares, hidden: (torch.rand(9, dtype=LOW) * FRAMES).long(),  # nothing is wrong with a draw
    lambda shares, hidden: (hidden.sum(-1).sigmoid().to(LOW) * FRAMES).float().round().long(),
    lambda shares, hidden: (shares.to(LOW) * 100).float().round().to(torch.int8).long(),
    lambda shares, hidden: (shares.to(LOW) * 100).round().to(torch.int8).long(),  # a code, whose last digit is a rounding
], ids=["in float32", "of a network", "drawn", "of a network, widened", "a code, widened", "a code"])  # fmt: skip
def test_other_integers_are_none(lengths: Rule) -> None:
    assert errors(lengths) == []


@pytest.mark.parametrize(("width", "accused"), [(20, False), (2000, True)])
def test_places_between_pixels_are_wrong_where_the_format_does_not_tell_one_from_the_next(width: int, accused: bool) -> None:
    """At twenty pixels one in fifty places falls to the other side of a pixel, and what is interpolated there is right."""
    line = torch.sin(torch.arange(width) * 0.7)
    with precheck.watch() as report:
        shares = ((torch.arange(401) + 0.5) / 402).to(LOW)
        at = shares.float() * (width - 2)
        left = at.floor().long()
        drawn = torch.lerp(line[left], line[left + 1], at - left)
    assert drawn.isfinite().all()
    assert ("integer-rounding" in [finding.rule for finding in report.errors]) is accused


def test_inputs_that_the_precision_stores_low_are_what_they_are() -> None:
    assert errors(lambda shares, hidden: (shares.float() * FRAMES).round().long(), "bf16-true") == []


def test_what_the_code_itself_rounds_of_such_inputs_is_its_own() -> None:
    first = errors(lambda shares, hidden: (shares * FRAMES).round().long(), "bf16-true")[0]
    assert (first.rule, first.op) == ("integer-rounding", "aten.mul.Tensor")
    assert " of 9 integers that cast (aten._to_copy) at " in first.message


def told(wide: list[float], made: list[float], step: Callable[[torch.Tensor], torch.Tensor] = torch.round) -> Recut | None:
    operation = Operation(1, "round.default", "forward", "", "model.py:1", 1)
    note_recut(operation, step, torch.tensor(made, dtype=LOW), torch.tensor(wide), torch.tensor(made, dtype=LOW))
    return operation.recut


def test_the_figures() -> None:
    changes = Recut(2, 3, 20.0, 21.0, pytest.approx(20.3, rel=0.06), frozenset({1, 2}), (30.0, 31.0, 30.0))
    assert told([10.2, 20.4, 30.3], [10.0, 21.0, 31.0]) == changes


@pytest.mark.parametrize("made", [20.0, 21.0])
def test_where_float32_does_not_tell_either_is_right(made: float) -> None:
    """Within eight spacings of float32 of where it jumps."""
    assert told([20.5], [made]) is None
    assert told([20.5 + 8 * 2.0**-19], [made]) is None
    assert told([float(torch.tensor(20.0) + 2.0**-18)], [made], torch.ceil) is None


def test_what_is_not_finite_is_for_others_to_say() -> None:
    assert told([20.4, float("inf")], [float("nan"), 3.0]) is None


SCORES = torch.arange(2000.0)
READ: dict[str, Callable[[torch.Tensor], object]] = {
    "index": lambda made: SCORES[made],
    "embedding": lambda made: nn.functional.embedding(made, SCORES[:, None]),
    "gather": lambda made: SCORES.gather(0, made),
    "comparison": lambda made: torch.arange(FRAMES) < made[:, None],
    "scatter": lambda made: torch.zeros(2000).index_add_(0, made, torch.ones(9)),
    "counts": lambda made: torch.bincount(made),
    "a number in Python": lambda made: made.max().item(),
    "after integer arithmetic": lambda made: SCORES[(made * 2 + 1).clamp(max=1999)],
    "changed in place": lambda made: SCORES[made.add_(1)],
    "an angle of many turns": lambda made: (made.float()[:, None] * torch.tensor([1.0, 0.1])).sin(),
    "nobody": lambda made: None,
}
AMOUNTS: dict[str, Callable[[torch.Tensor], object]] = {
    "back to floats": lambda made: made.float() / FRAMES,
    "times a scale": lambda made: made * torch.tensor(0.1),
    "clamped, and back": lambda made: made.clamp_(max=300).double(),
    "moved, and back": lambda made: torch.stack([made, made])[0].float(),
    "added up": lambda made: (made + made.flip(0)).sum().float(),
    "an angle within a turn": lambda made: (6.2 * made.float() / FRAMES).cos(),
    "a root": lambda made: (0.5 * made.float()).sqrt(),
}


def watched(read: Callable[[torch.Tensor], object], shares: torch.Tensor | None = None) -> list[str]:
    with precheck.watch() as report:
        made = ((SHARES if shares is None else shares).to(LOW) * FRAMES).round().long()
        read(made)
    return [error.rule for error in report.errors]


@pytest.mark.parametrize("name", READ)
def test_integers_that_are_read_as_places(name: str) -> None:
    assert watched(READ[name]) == ["integer-rounding"]


@pytest.mark.parametrize("name", AMOUNTS)
def test_amounts_may_be_off_by_a_rounding(name: str) -> None:
    assert watched(AMOUNTS[name]) == []


def test_what_is_read_as_both_is_a_place() -> None:
    for reads in ([AMOUNTS["back to floats"], READ["index"]], [READ["index"], AMOUNTS["back to floats"]]):
        assert watched(lambda made, reads=reads: [read(made) for read in reads]) == ["integer-rounding"]  # type: ignore[misc]


@pytest.mark.parametrize("drawn", [
    lambda: torch.rand(9),
    lambda: 0.5 * torch.rand(9) + 0.1,
    lambda: torch.rand(18)[::2],
    lambda: torch.empty(9).uniform_(),
], ids=["drawn", "scaled", "a view", "in place"])  # fmt: skip
def test_of_draws_in_float32_nothing_is_wrong(drawn: Callable[[], torch.Tensor]) -> None:
    """Time steps of a diffusion: another one is as good."""
    torch.manual_seed(0)
    with precheck.watch() as report:
        steps = (drawn().to(LOW) * FRAMES).long()
        SCORES[steps]
    assert report.errors == []


def sorted_into(sort: Rule, numbers: torch.Tensor | None = None, dtype: torch.dtype = LOW) -> list[str]:
    """What is found where patches of 61 rows read a table of 70, or where given numbers do."""
    with precheck.watch() as report:
        places = torch.arange(61) / 61 if numbers is None else numbers
        bins = sort(places.to(dtype), (torch.arange(1, 70) / 70).to(dtype))
        SCORES[bins]
    return [error.rule for error in report.errors]


SORTS: dict[str, Rule] = {
    "bucketize": torch.bucketize,
    "to the right": lambda numbers, bounds: torch.bucketize(numbers, bounds, right=True),
    "searchsorted": lambda numbers, bounds: torch.searchsorted(bounds, numbers),
    "by side": lambda numbers, bounds: torch.searchsorted(bounds, numbers, side="right"),
}


@pytest.mark.parametrize("name", SORTS)
def test_places_that_are_sorted_into_other_bins(name: str) -> None:
    assert sorted_into(SORTS[name]) == ["integer-rounding"]
    assert sorted_into(SORTS[name], dtype=torch.float32) == []


def test_of_given_numbers_each_near_a_bound_may_be_in_either_bin() -> None:
    given = torch.rand(400, generator=torch.Generator().manual_seed(0))
    assert sorted_into(torch.bucketize, given) == []
    assert sorted_into(torch.bucketize, given, torch.float16) == []


def test_bounds_of_rows_are_not_followed() -> None:
    assert sorted_into(lambda numbers, bounds: torch.searchsorted(bounds.expand(2, -1).contiguous(), numbers.expand(2, -1).contiguous())) == []


def drawn_again(many: int, by_turns: bool, dtype: torch.dtype) -> list[str]:
    """What is found where particles are drawn again at even marks beside a running sum of weights, each mark added to the last `by_turns`."""
    with precheck.watch() as report:
        weights = (1 + torch.arange(many)).float().div(many * (many + 1) / 2).to(dtype)
        share = torch.full((), 1 / many).to(dtype)
        marks = [share / 2]
        while by_turns and len(marks) < many:
            marks.append(marks[-1] + share)  # the share is rounded once, and the mark each time
        even = torch.stack(marks).float() if by_turns else (torch.arange(many) + 0.5) / many
        SCORES[torch.searchsorted(weights.float().cumsum(0), even)]
    return [error.rule for error in report.errors]


def test_marks_beside_a_running_sum_fall_into_other_steps_where_they_are_added_up_low() -> None:
    """A running sum of weights is rounded as the weights are, so that a mark near a bound may be in either step."""
    assert drawn_again(300, True, torch.float16)[0] == "integer-rounding"
    assert drawn_again(300, True, torch.float32) == []
    assert drawn_again(300, False, torch.float16) == []
    assert drawn_again(300, False, LOW) == []


PLACES = 40 * torch.rand(2000, generator=torch.Generator().manual_seed(0)) + 0.5


def cells(far: float, dtype: torch.dtype) -> torch.Tensor:
    """How far places lie off the middle of their cells of a grid whose origin is far away."""
    places = (PLACES.double() + far).to(dtype)
    numbers = (places - torch.tensor(far, dtype=dtype)).long()
    return PLACES - (numbers.float() + 0.5)


def test_amounts_that_a_rounding_would_leave_what_they_are() -> None:
    with precheck.watch(precision="32-true") as report:
        cells(4e6, torch.float32)
    (first,) = report.errors
    assert first.rule == "integer-rounding"
    assert " of 2000 integers that cast (aten._to_copy) at " in first.message


@pytest.mark.parametrize(("far", "dtype", "precision"), [
    (4e6, torch.float64, "32-true"),
    (4.0, torch.float32, "32-true"),
    (4.0, LOW, None),  # every other number of bfloat16 crosses a whole number when it is rounded
], ids=["mended", "near", "low"])  # fmt: skip
def test_amounts_that_a_rounding_changes(far: float, dtype: torch.dtype, precision: str | None) -> None:
    with precheck.watch(precision=precision) as report:
        cells(far, dtype)
    assert report.errors == []


def in_float32(program: Callable[[], torch.Tensor]) -> list[Finding]:
    with precheck.watch(precision="32-true") as report:
        kept = program()
    assert kept.numel()
    return report.errors


def stepped(*, whole: bool) -> torch.Tensor:
    at, marks = torch.tensor(34_560_000.0), []
    for _ in range(20):
        at = at + 1.06
        marks.append(at.floor() if whole else at / 64)
    return torch.stack(marks)


def test_a_float32_sum_that_stands_still_is_wrong_as_a_place_alone() -> None:
    (told,) = in_float32(lambda: stepped(whole=True))
    assert told.rule == "absorption"
    assert told.op == "aten.add.Tensor"
    assert not in_float32(lambda: stepped(whole=False))


def rows(first: int, *, remainder: bool) -> torch.Tensor:
    numbers = (first + 37 * torch.arange(60)).float()
    if remainder:
        return (numbers % 512).long()
    boxes = torch.sin(torch.arange(180.0) / 7).view(60, 3) ** 7
    return torch.cat([numbers[:, None], boxes], 1)[:, 0].long()


@pytest.mark.parametrize("remainder", [True, False], ids=["a remainder", "beside other numbers"])
def test_the_line_that_rounded_numbers_is_named(remainder: bool) -> None:
    """A remainder is exact. What stands beside the numbers may be further off than they are."""
    (told,) = in_float32(lambda: rows(18_000_001, remainder=remainder))
    assert told.rule == "integer-rounding"
    assert told.op == "aten._to_copy.default"
    assert not in_float32(lambda: rows(100_001, remainder=remainder))
