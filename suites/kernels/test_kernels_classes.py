"""Which class wins where several facts hold: chance beside sizes, and what a mask hides beside what is done with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import precheck
from precheck.kernels import contents


def _found(candidate: Any, reference: Any, inputs: Any, trials: int = 290) -> list[Any]:
    return precheck.compare_kernels(candidate, reference, inputs, trials=trials, gradients=False).errors


def _told(candidate: Any, reference: Any, inputs: Any, trials: int = 290) -> list[str]:
    return [each.rule for each in _found(candidate, reference, inputs, trials)]


def _rows(x: torch.Tensor) -> torch.Tensor:
    if x.dim() != 2:
        raise ValueError("rows are needed")
    return x


def test_a_fault_that_few_numbers_have_is_no_edge() -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))

    def by_numbers(x: torch.Tensor) -> torch.Tensor:
        unlucky = (_rows(x).sum(-1).abs() * 1e4).long() % 499 == 7
        return x.tanh() + unlucky[:, None]

    def by_place(x: torch.Tensor) -> torch.Tensor:
        last = torch.arange(len(_rows(x))) >= 128
        return x.tanh() + last[:, None]

    assert _told(by_numbers, torch.tanh, x) == ["kernel-contract"]
    assert _told(by_place, torch.tanh, x) == ["kernel-edge"]


def _seen(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(torch.arange(x.shape[1]) >= lengths[:, None], 0).sum(-1)


def test_a_bound_that_hides_all_of_an_input_does_not_make_a_mask_of_another_fault() -> None:
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 6, 2, 5])

    def twice(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return 2 * _seen(_rows(x), lengths)

    assert _told(twice, _seen, inputs) == ["kernel-contract"]


def _from_a_place(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Rows from a place on, each with the columns up to its own."""
    hidden = torch.arange(x.shape[1]) > start + torch.arange(len(x))[:, None]
    return x.masked_fill(hidden, 0).sum(-1)


def test_a_bound_of_zero_tells_a_mask_if_all_inputs_are_read_there_too() -> None:
    inputs = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)), torch.tensor(3)

    def later(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        before = torch.arange(_rows(x).shape[1]) < start
        return _from_a_place(x.masked_fill(before, 0), start)

    (error,) = _found(later, _from_a_place, inputs)
    assert error.rule == "kernel-mask"
    assert "it is right where inputs[1] is 0" in error.message


def test_a_result_that_is_kept_without_a_number_of_the_call_is_stale() -> None:
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor(3)
    kept: dict[Any, torch.Tensor] = {}

    def table(x: torch.Tensor, start: torch.Tensor, key: tuple[int, ...]) -> torch.Tensor:
        if key not in kept:
            kept[key] = start + torch.arange(len(_rows(x)))[:, None] + torch.zeros(x.shape)
        return x * kept[key]

    reference = lambda x, start: x * (start + torch.arange(len(x))[:, None])  # noqa: E731
    assert _told(lambda x, start: table(x, start, tuple(x.shape)), reference, inputs) == ["kernel-stale"]
    kept.clear()
    assert _told(lambda x, start: table(x, start, (*x.shape, int(start))), reference, inputs, trials=64) == []


@pytest.mark.parametrize("least", [0, 1])
def test_a_mean_of_none_is_no_matter_of_sizes(least: int) -> None:
    """Of two numbers both are below the margin more often than of nine. In larger sizes they are at times, too, so that no size is at fault."""

    def mean(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum() / (x > 0).sum().clamp(min=least)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum() / (x > 0).sum().clamp(min=1)

    x = torch.randn(9, generator=torch.Generator().manual_seed(0))
    assert _told(mean, reference, x) == ([] if least else ["kernel-contract"])


def test_a_sum_that_leaves_out_what_is_left_behind_a_tile_is_wrong_in_each_draw_of_a_size() -> None:
    def tiles(x: torch.Tensor) -> torch.Tensor:
        return x[: len(x) // 8 * 8].sum()

    assert _told(tiles, torch.sum, torch.randn(16, generator=torch.Generator().manual_seed(0))) == ["kernel-edge"]


@pytest.mark.parametrize(("filling", "rule"), [(-torch.inf, []), (0.0, ["kernel-edge"]), (None, ["kernel-contract"])])
def test_a_tile_filled_up_with_zeros_shows_in_rows_below_zero(filling: float | None, rule: list[str]) -> None:
    """Where the row fits its tile, nothing is filled up. A largest magnitude is wrong there as well."""

    def place(x: torch.Tensor) -> torch.Tensor:
        if filling is None:
            return x.abs().argmax(1)
        lanes = 1 << max(x.shape[1] - 1, 0).bit_length()
        return torch.nn.functional.pad(x, (0, lanes - x.shape[1]), value=filling).argmax(1)

    assert _told(place, lambda x: x.argmax(1), torch.randn(5, 7, generator=torch.Generator().manual_seed(0))) == rule


@pytest.mark.parametrize(("matrix", "kept"), [((torch.arange(36).view(6, 6) % 5 < 2).float(), True), (3 * torch.eye(6) + 1, False)])
def test_a_symmetric_matrix_of_integers_stays_one_unless_equations_are_solved_with_it(matrix: torch.Tensor, kept: bool) -> None:
    """Of neighbours in a graph there are zeros and ones alone. A positive definite matrix stays positive definite."""
    example = torch.maximum(matrix, matrix.mT).double()
    drawn = contents.like(example, (8, 8), torch.Generator().manual_seed(0), contents.Bounds())[0]
    assert torch.allclose(drawn, drawn.mT)
    assert torch.equal(drawn, drawn.round()) is kept
    assert kept or int(torch.linalg.cholesky_ex(drawn)[1]) == 0


def test_a_row_divided_by_its_scale_is_whole_at_its_largest_number_on_either_side() -> None:
    """float32 has 127 or 126.99999 there, so that a number that is cut off is one or the other."""

    def quotient(x: torch.Tensor) -> torch.Tensor:
        return x.detach() / (x.detach().abs().amax(1, keepdim=True) / 127)

    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    report = precheck.compare_kernels(lambda x: quotient(x).trunc(), lambda x: quotient(x).round(), x, trials=2)
    assert [finding.rule for finding in report.errors] == ["kernel-rounding"]
    assert "whole numbers that are cut off explain it" in report.summary()


def test_the_growth_of_few_errors_is_measured_in_several_draws() -> None:
    """A sum of thirty results seems not to grow in one draw of eight, by chance."""

    def kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(len(x), w.shape[1], dtype=x.dtype)
        for part, other in zip(x.split(4, 1), w.split(4), strict=True):
            total = total + (part.float() @ other.float()).to(x.dtype)
        return total

    x, w = (torch.randn(size, generator=torch.Generator().manual_seed(0)).bfloat16() for size in ((6, 24), (24, 5)))
    report = precheck.compare_kernels(kernel, torch.mm, (x, w), trials=60)
    assert [finding.rule for finding in report.errors] == ["kernel-accumulation"], report.summary()
