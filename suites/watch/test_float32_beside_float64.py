"""watch(precision=...) of what computes in float32: tf32's and fp8's rounding is meant, and float32 has digits to lose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.observe.run import trains_recurrent


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.GELU(), nn.Conv2d(8, 8, 3), nn.Flatten())


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)


class Recurrent(nn.LSTM):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        result: torch.Tensor = super().forward(x)[0]
        return result


def recurrent() -> nn.Module:
    return Recurrent(64, 16)


@pytest.mark.parametrize("precision", ["32-true", "tf32", "fp8-e4m3-mixed"])
@pytest.mark.parametrize("make", [perceptron, convolutions, encoder, recurrent])
def test_healthy_models_train_in_peace(make: Callable[[], nn.Module], precision: str) -> None:
    if make is recurrent and precision == "fp8-e4m3-mixed" and not trains_recurrent(torch.bfloat16):
        pytest.skip("oneDNN has no LSTM in bfloat16 for this processor, and torch raises")
    torch.manual_seed(0)
    model = make()
    with precheck.watch(model, precision=precision) as report:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            model(normal(32, 64)).square().mean().backward()
            optimizer.step()
    assert report.findings == [], report.summary()


def offset(by: float) -> torch.Tensor:
    return (normal(300, 3) + by) - by


def counted() -> torch.Tensor:
    total = torch.tensor(1e8)  # beyond 2^24 ones add nothing
    for _ in range(100):
        total = total + 1.0
    return total


def nothing_left() -> torch.Tensor:
    """Rows less their mean, summed: zero but for float32's own rounding."""
    x = normal(64, 1000) + 3
    return (x - x.mean(1, keepdim=True)).sum(1)


@pytest.mark.parametrize("precision", ["32-true", "tf32"])
@pytest.mark.parametrize("code", [lambda: offset(1000.0), counted, nothing_left, lambda: normal(64) + 2.0**-10],
                         ids=["offset", "counted", "nothing left", "an ordinary constant"])  # fmt: skip
def test_what_float32_can_afford_to_lose_is_no_fault(code: Callable[[], torch.Tensor], precision: str) -> None:
    """An offset of 1000 costs ten bits of 24: what is left has more than float16 ever had."""
    with precheck.watch(precision=precision) as report:
        code()
    assert report.findings == [], report.summary()


@pytest.mark.parametrize("precision", ["32-true", "tf32"])
def test_what_float32_cannot_afford_is_one(precision: str) -> None:
    """2^-24 · 1e6 is 0.06 of a standard deviation at most, 0.42 of that on average: six times 8 · 2^-11."""
    with precheck.watch(precision=precision) as report:
        kept = offset(1e6)
    assert kept.shape == (300, 3)
    assert [finding.rule for finding in report.errors] == ["cancellation"], report.summary()


def test_what_float32_loses_float64_determines() -> None:
    """The twin that tells chaos from bugs is disturbed by the reference's own roundoff, not by float32's."""
    with precheck.watch(precision="32-true") as report:
        kept = torch.sin(normal(300).add(1.0).mul(1e7))
    assert len(kept) == 300
    assert [finding.rule for finding in report.errors] == ["amplified-rounding"], report.summary()


def test_tf32_is_told_where_its_rounding_costs_the_result() -> None:
    """Squared distances of points far from the origin: 2^-11 of 2e4 is 10, and distances are about 6."""
    points = normal(40, 3) + 80
    with precheck.watch(precision="tf32") as report:
        size = points.square().sum(-1)
        kept = size[:, None] + size[None] - 2 * points @ points.T
    assert kept.shape == (40, 40)
    assert report.errors, report.summary()
    assert report.errors[0].rule == "cancellation"


def turned_by_choice(decomposed: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A vector of each matrix, which a choice turns to one side. Which sign a decomposition gives is another matter in float64."""
    matrices = normal(200, 5, 3)
    matrices = matrices - matrices.mean(1, keepdim=True)
    vectors = decomposed(matrices)
    return torch.where(vectors[..., :1] > 0, vectors, -vectors)


@pytest.mark.parametrize(
    "decomposed",
    [
        lambda matrices: torch.linalg.eigh(matrices.mT @ matrices).eigenvectors[..., 0],
        lambda matrices: torch.linalg.svd(matrices, full_matrices=False).Vh[..., -1, :],
        lambda matrices: torch.linalg.svd(matrices).U[..., 0],
    ],
    ids=["eigenvectors", "right-vectors", "left-vectors"],
)
def test_a_vector_of_either_sign_has_the_runs_in_float64_too(decomposed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with precheck.watch(precision="32-true") as report:
        kept = turned_by_choice(decomposed)
    assert bool((kept[..., 0] > 0).all())
    assert report.findings == [], report.summary()


def test_singular_vectors_turn_together() -> None:
    """Left vectors, values and right vectors make the matrix again, whatever signs the run's have."""
    matrices = normal(200, 5, 3)
    with precheck.watch(precision="32-true") as report:
        left, sizes, right = torch.linalg.svd(matrices, full_matrices=False)
        again = left * sizes[:, None] @ right
    assert float((again - matrices).abs().max()) < 1e-4
    assert report.findings == [], report.summary()
