"""A few numbers of one sign: they may have it by chance, or because they must."""

from __future__ import annotations

import pytest
import torch

import precheck

X = torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
WIDTHS = torch.tensor([0.1465, 0.7852, 0.9453, 1.1172, 1.6875, 0.8945])


def bins(x: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
    return torch.bucketize(x, widths.cumsum(0))


def counted(x: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
    return (widths.cumsum(0) < x[..., None]).sum(-1)


def test_a_kernel_that_is_wrong_for_other_signs_alone_gets_a_warning() -> None:
    """Ends of bins are in order only if all widths are positive."""
    report = precheck.compare_kernels(counted, bins, (X, WIDTHS), trials=60)
    assert not report.errors, report.summary()
    assert "only where inputs have signs that the example's have not" in report.summary()


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_wrong_with_the_examples_signs_too_is_an_error(sign: int) -> None:
    report = precheck.compare_kernels(lambda x, w: x * w.clamp(-1, 1), lambda x, w: x * w, (X[:, :6], sign * WIDTHS), trials=10)
    assert [finding.rule for finding in report.errors] == ["kernel-contract"], report.summary()


@pytest.mark.parametrize(("count", "sign"), [(2, 1), (3, -1), (6, 1)])
def test_a_kernel_that_refuses_other_signs_is_judged_with_the_examples(count: int, sign: int) -> None:
    """Else nearly all of its trials are refused: of a few numbers that must be positive hardly ever all are."""
    x, scale = torch.randn(count, 7, generator=torch.Generator().manual_seed(2)), sign * WIDTHS[:count]

    def kernel(x: torch.Tensor, scale: torch.Tensor, most: int = 8) -> torch.Tensor:
        if x.shape[:1] != scale.shape or bool((scale * sign <= 0).any()):
            raise ValueError("a scale of that sign is needed for each row")
        return torch.where(torch.arange(x.shape[1]) < most, x / scale[:, None], 0)

    report = precheck.compare_kernels(kernel, lambda x, scale: x / scale[:, None], (x, scale), trials=202)
    assert [finding.rule for finding in report.errors] == ["kernel-edge"], report.summary()


def test_many_numbers_of_one_sign_keep_it() -> None:
    seen: list[float] = []

    def spy(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.nan_to_num(neginf=0.0).amin()) if x.numel() else 0.0)
        return x * 2

    precheck.compare_kernels(spy, lambda x: x * 2, X.abs(), trials=60)
    assert min(seen) >= 0


def test_complex_numbers_that_are_conjugated_when_they_are_read_may_be_returned() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))
    report = precheck.compare_kernels(lambda x: (2 * x).conj(), lambda x: x.conj() * 2, x, trials=50)
    assert report.verdict == "rounding", report.summary()


@pytest.mark.parametrize(("begins", "rules"), [(0.0, ["kernel-rounding"]), (float("-inf"), [])])
def test_scores_of_rows_of_opposite_signs_are_far_below_zero(begins: float, rules: list[str]) -> None:
    """Where all inputs have one sign, a sum of products of two of them never is."""

    def kernel(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = q @ k.T
        powers = (scores - scores.detach().amax(1, keepdim=True).clamp(min=begins)).exp()
        return powers / powers.sum(1, keepdim=True)

    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(4)), torch.randn(7, 6, generator=torch.Generator().manual_seed(5))
    report = precheck.compare_kernels(kernel, lambda q, k: (q @ k.T).softmax(1), inputs, trials=32)
    assert [finding.rule for finding in report.errors] == rules, report.summary()
    assert "numbers beyond 8, those of one input below zero and all others above" in report.summary() or not rules
