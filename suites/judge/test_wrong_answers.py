"""Comparisons that give wrong answers, and matrices that have no factors, because an earlier op has lost digits."""

from __future__ import annotations

import pytest
import torch

import precheck
from precheck.observe.shadow.op_notes import Mistaken
from precheck.observe.shadow.operations import Operation

SINGLE, DOUBLE = torch.float32, torch.float64


def moments(kind: torch.dtype, start: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The moments of 200 events and the last one, in seconds."""
    before = start + torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    return before.to(kind), torch.tensor(start + 1.0, dtype=DOUBLE).to(kind)


def recent(kind: torch.dtype, start: float = 5e6) -> torch.Tensor:
    """Which events are less than a third of a second old."""
    before, now = moments(kind, start)
    return torch.where(now - before < 0.33, 1.0, 0.0)


def oldest(kind: torch.dtype, start: float = 5e6) -> torch.Tensor:
    """Whether events are less than ten seconds old: all are, whatever is lost of their age."""
    before, now = moments(kind, start)
    return torch.where(now - before < 10, 1.0, 0.0)


def factors(kind: torch.dtype, least: float) -> torch.Tensor:
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)).Q
    matrix = turn @ torch.diag(torch.tensor([1e6, 1.0, 2.0, least], dtype=DOUBLE)) @ turn.T
    return torch.linalg.cholesky(matrix.to(kind))


def test_a_mask_of_numbers_without_digits_shows_what_lost_them() -> None:
    with precheck.watch(precision="32-true") as report:
        recent(SINGLE)
    assert [finding.rule for finding in report.errors] == ["amplified-rounding"], report.summary()
    assert "its rounding error grows at aten.sub.Tensor" in report.errors[0].message


@pytest.mark.parametrize("start", [0.0, 5.0])
def test_a_mask_of_right_numbers_is_no_harm(start: float) -> None:
    with precheck.watch(precision="32-true") as report:
        recent(SINGLE, start)
    assert not report.errors, report.summary()


def test_a_lost_number_that_changes_no_answer_is_no_harm() -> None:
    with precheck.watch(precision="32-true") as report:
        oldest(SINGLE)
    assert not report.errors, report.summary()


def test_only_answers_that_rounding_does_not_explain_are_counted() -> None:
    seen: list[Mistaken] = []
    before = Operation.__setattr__

    def noted(operation: Operation, name: str, value: object) -> None:
        if isinstance(value, Mistaken):
            seen.append(value)
        before(operation, name, value)

    with pytest.MonkeyPatch.context() as patch, precheck.watch(precision="32-true"):
        patch.setattr(Operation, "__setattr__", noted)
        low, exact = recent(SINGLE), recent(DOUBLE)
    assert len(seen) == 1
    assert 0 < seen[0].count <= int((low != exact).sum())
    assert seen[0].total == 200


def test_a_matrix_that_has_factors_in_float64_alone_is_told() -> None:
    with pytest.raises(torch.linalg.LinAlgError), precheck.watch(precision="32-true") as report:
        factors(SINGLE, 1e-6)
    assert [finding.rule for finding in report.errors] == ["amplified-rounding"], report.summary()
    assert "gives another answer than in the reference, and the code raised _LinAlgError" in report.errors[0].message


def test_a_matrix_that_has_no_factors_at_all_is_not() -> None:
    with pytest.raises(torch.linalg.LinAlgError), precheck.watch(precision="32-true") as report:
        factors(SINGLE, -1.0)
    assert not report.errors, report.summary()


def test_what_a_factorization_leaves_when_it_gives_up_is_no_result() -> None:
    """It is half wrong, and no kernel is to blame for that."""
    places = torch.linspace(0, 2, 30)
    with pytest.raises(torch.linalg.LinAlgError), precheck.watch(precision="32-true") as report:
        torch.linalg.cholesky(torch.exp(-0.5 * ((places[:, None] - places) / 0.15) ** 2))
    assert [finding.rule for finding in report.errors] == ["amplified-rounding"], report.summary()
