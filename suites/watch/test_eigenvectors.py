"""The reference takes over the run's choice of eigenvectors and singular vectors: their signs, and a basis where several values are equal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import precheck
from precheck.observe.shadow.probes.perturbation import disturbed


def spectrum(*values: float) -> torch.Tensor:
    """A symmetric matrix with these eigenvalues."""
    basis = torch.linalg.qr(torch.randn(len(values), len(values), generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    return (basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T).float()


@pytest.mark.parametrize("values", [(5.0, 1.0, 1.0, 1.0, 1.0, 1.0), (3.0, 3.0, 2.0, 2.0, 2.0, 1.0), (6.0, 5.0, 4.0, 3.0, 2.0, 1.0)])
@pytest.mark.parametrize("batch", [False, True])
def test_the_basis_of_a_space_with_equal_eigenvalues_is_no_error(values: tuple[float, ...], batch: bool) -> None:
    matrix = spectrum(*values)
    matrix = torch.stack([matrix, spectrum(*(2.0 * each for each in reversed(values)))]) if batch else matrix
    with precheck.watch(precision="32-true") as report:
        kept = torch.linalg.eigh(matrix).eigenvectors * 1.0
    assert kept.isfinite().all()
    assert not report.errors, report.summary()


@pytest.mark.parametrize("full", [False, True])
def test_nor_that_of_singular_vectors(full: bool) -> None:
    matrix = torch.cat([spectrum(3.0, 1.0, 1.0, 1.0), torch.zeros(3, 4)])
    with precheck.watch(precision="32-true") as report:
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=full)
        kept = left[:, :4] * sizes @ right, left * 1.0, right * 1.0
    assert kept[0].isfinite().all()
    assert not report.errors, report.summary()


def test_eigenvectors_of_a_matrix_that_was_summed_low_are_an_error_still() -> None:
    """Principal axes by moments in bfloat16, of points far from zero."""
    points = 30 + torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([2.0, 1.0, 0.5, 0.25])
    with precheck.watch() as report:
        low = points.to(torch.bfloat16)
        mean = low.mean(0)
        kept = torch.linalg.eigh(((low.T @ low) / 200 - mean[:, None] * mean).float()).eigenvectors * 1.0
    assert kept.isfinite().all()
    assert [each.rule for each in report.errors] == ["cancellation"], report.summary()


def general(size: int = 12, rank: int = 12) -> torch.Tensor:
    """A matrix that is not symmetric, with values of one size."""
    draw = torch.Generator().manual_seed(3)
    return torch.randn(size, rank, generator=draw) @ torch.randn(rank, size, generator=draw)


@pytest.mark.parametrize("rank", [12, 5])
def test_eigenvalues_in_another_order_are_the_same(rank: int) -> None:
    """In float32 and in float64 those of a matrix that is not symmetric come in different orders. Of rank 5, seven are zero, and have any vectors."""
    with precheck.watch(precision="32-true") as report:
        values, vectors = torch.linalg.eig(general(rank=rank))
        roots = values * 2
    assert roots.is_complex()
    assert vectors.numel()
    assert not report.findings, report.summary()


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 4)])
def test_matrices_without_numbers_have_no_order(shape: tuple[int, ...]) -> None:
    with precheck.watch(precision="32-true") as report:
        values = torch.linalg.eig(torch.zeros(shape)).eigenvalues * 2
    assert not values.numel()
    assert not report.findings
    assert report.facts["opaque"] == {}, "the replay failed"


def test_a_complex_shadow_is_disturbed_a_little_in_each_part() -> None:
    numbers = torch.complex(torch.linspace(1.0, 2.0, 64), torch.linspace(-3.0, 4.0, 64))
    mode: Any = SimpleNamespace(replay=SimpleNamespace(reference=torch.float32), noise={})
    moved = torch.view_as_real(disturbed(mode, numbers)) / torch.view_as_real(numbers) - 1
    assert torch.allclose(moved.abs(), torch.tensor(2.0**-20), rtol=0.1)
    assert (moved > 0).any()
    assert (moved < 0).any()
