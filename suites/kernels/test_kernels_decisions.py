"""Whole numbers, equal numbers and numbers left out: what a kernel may decide, and what it must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sets import BROKEN_BY_NAME

import precheck
from precheck import formats
from precheck.kernels import contents, dimensions, examples, number_kinds, reference_error, unmasked
from precheck.kernels.noise import Rounded
from precheck.kernels.trials import Trial, trial_inputs

GENERATOR = torch.Generator().manual_seed(0)
SINGLE = torch.randn(6, 18, generator=GENERATOR)
SHARES = torch.rand(6, 18, generator=GENERATOR)
Kernel = Callable[..., torch.Tensor]


def _rules(candidate: Kernel, reference: Kernel, inputs: object, trials: int = 140) -> list[str]:
    report = precheck.compare_kernels(candidate, reference, inputs, trials=trials, gradients=False)
    return [each.rule for each in report.errors]


def _codes(rounded: Callable[[torch.Tensor], torch.Tensor]) -> Kernel:
    return lambda x: rounded(x / 0.25).clamp(-127, 127).to(torch.int8)


def test_codes_that_are_whole_numbers_have_one_side_at_a_tie() -> None:
    away = _codes(lambda x: (x.abs() + 0.5).floor().copysign(x))
    assert _rules(away, _codes(torch.round), SINGLE) == ["kernel-rounding"]


def test_places_of_equal_numbers_stay_free() -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        if not x.shape[-1]:
            raise ValueError("columns are needed")
        return x.shape[-1] - 1 - x.flip(-1).argmax(-1)

    assert _rules(last, lambda x: x.argmax(-1), SINGLE, trials=40) == []


def test_numbers_of_one_sign_are_equal_at_times() -> None:
    example = examples.read(SHARES, None, False)[0]
    made = trial_inputs(example, dimensions.of(example), Trial(seed=4, family="ties")).values[0]
    assert made.unique().numel() < made.numel() / 4
    assert bool(((made >= SHARES.min()) & (made <= SHARES.max())).all())
    for kind in number_kinds.WITHIN:
        assert kind in number_kinds.FAMILIES

    def once(x: torch.Tensor) -> torch.Tensor:
        most = x.amax(-1, keepdim=True)
        next_one = x.masked_fill(x == most, -torch.inf).amax(-1, keepdim=True)
        return torch.cat([most, torch.where(next_one.isinf(), most, next_one)], -1)

    assert _rules(once, lambda x: x.topk(2).values, SHARES) == ["kernel-contract"]


def test_what_is_structured_or_alone_has_no_limits() -> None:
    for example in (torch.arange(1.0, 9), torch.randn(4, 5).softmax(-1), torch.tensor(3.0)):
        assert contents.like(example, example.shape, GENERATOR, contents.Bounds())[1] is None
    assert contents.like(SINGLE, SINGLE.shape, GENERATOR, contents.Bounds())[1] == contents.FREE


@pytest.mark.parametrize("size", [1.0, 0.02, 1e-6])
def test_ties_of_small_numbers_are_ties(size: float) -> None:
    ties = number_kinds.FAMILIES["ties"](size * SINGLE.double(), GENERATOR, formats.of_dtype(torch.float32))
    assert 4 < ties.unique().numel() < 60
    assert float((ties - size * SINGLE).abs().max()) <= size


def test_a_number_that_is_lost_beside_others_lies_on_either_side() -> None:
    value = torch.tensor([1.0, -3.0, 1e-39, 0.0])
    assert reference_error.lost(value).tolist() == [False, False, True, True]
    moved = [reference_error.stepped(value, torch.Generator().manual_seed(seed), 1)[2] for seed in range(8)]
    assert min(moved) < 0 < max(moved)

    def counted(x: torch.Tensor) -> torch.Tensor:  # nothing is added first, so that -1e-39 is below zero
        return torch.stack([(x < 0).sum(-1), (x >= 0).sum(-1)], -1)

    def added(x: torch.Tensor) -> torch.Tensor:
        bins = (x + 2 >= 2).long()
        return torch.stack([(bins == 0).sum(-1), (bins == 1).sum(-1)], -1)

    assert _rules(counted, added, SINGLE, trials=40) == []


def test_a_number_that_stands_for_nothing_is_replaced() -> None:
    assert [each.tolist() for each in unmasked._unmarked(torch.tensor([3, 0, 2, 0]), {0, 5})] == [[3, 3, 2, 3]]
    assert not list(unmasked._unmarked(torch.tensor([0, 0]), {0}))
    assert not list(unmasked._unmarked(SINGLE, {0}))


@pytest.mark.parametrize("name", [
    "a step against pages: the window is not looked at",
    "means of bags: padding counts",
    "places among ends of bins: where a number is an end it lies before it",
    "counts of three hundred bins: a bin's number is bfloat16",
    "a number for each channel spread over the picture: on the way back gathered in float16",
])  # fmt: skip
def test_a_class_that_needs_another_question(name: str) -> None:
    case = BROKEN_BY_NAME[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), trials=100)
    assert [each.rule for each in report.errors] == [case.rule], report.summary()


def test_a_transform_errs_as_a_sum_does() -> None:
    terms, errors = torch.rand(1, 4096, generator=GENERATOR), []
    for seed in range(1, 9):
        with Rounded(seed, 2.0**-24):
            errors.append(abs(float(torch.fft.rfft(terms)[0, 0].real) / float(terms.double().sum()) - 1))
    assert 4 * 2.0**-24 < max(errors) < 400 * 2.0**-24


def test_numbers_at_one_place_of_two_inputs_belong_together() -> None:
    """A NaN in one part of a row may reach what is made of the other part of the same row, and no other row."""

    def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([a[:, 0], a[:, 0] + b.sum(-1)], -1)

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a[:, :1] + b.sum(-1, keepdim=True) * torch.tensor([0.0, 1.0])

    def of_all_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return reference(a, b) + 0 * b.sum()

    inputs = (SINGLE, SINGLE.flip(0))
    assert _rules(product, reference, inputs, trials=140) == []
    assert _rules(of_all_rows, reference, inputs) == ["kernel-mask"]
