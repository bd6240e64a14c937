"""A golden from another machine, whose float32 errs otherwise: what float32 itself does not know is no reason to call the golden stale."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import precheck
from precheck.goldens import lifecycle
from precheck.goldens.file import write
from precheck.measurement import job_of


class Bound(nn.Module):
    """Weights by importance: the exponentials of sums of some thousands, in which the last bits of float32 are a share of the gradient.

    `backwards`: the sums are taken in another order, as another machine takes them.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.backwards = nn.Linear(32, 512), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        likelihoods = -32 - self.layer(x).float().square()
        ordered = likelihoods.flip(-1) if self.backwards else likelihoods
        sums = ordered.reshape(*x.shape[:-1], 16, 32).sum(-1).cumsum(-1)[..., -1]
        return (sums.softmax(-1).detach() * sums).sum(-1)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "golden.safetensors"
    write(path, lifecycle.record(job_of(Bound(), x(), loss=mean)))
    return path


def x() -> torch.Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(64, 1, 32, generator=draws) + 0.05 * torch.randn(64, 16, 32, generator=draws)


def mean(out: torch.Tensor) -> torch.Tensor:
    return out.float().mean()


def rules(model: nn.Module, golden: Path, precision: str) -> list[str]:
    return [each.rule for each in precheck.check(model, x(), loss=mean, golden=golden, precision=precision).errors]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_what_float32_errs_by_has_not_moved(golden: Path, precision: str) -> None:
    model = Bound()
    model.backwards = True
    assert rules(model, golden, precision) == []


def test_a_golden_of_what_float32_errs_by_is_not_written_anew(golden: Path) -> None:
    model, before = Bound(), golden.read_bytes()
    model.backwards = True
    assert lifecycle.refresh(golden, job_of(model, x(), loss=mean), "changed").status == "unchanged"
    assert golden.read_bytes() == before
    with torch.no_grad():
        model.layer.weight.mul_(1.001)
    assert lifecycle.refresh(golden, job_of(model, x(), loss=mean), "changed").status == "changed"


def test_what_moves_by_more_has(golden: Path) -> None:
    model = Bound()
    with torch.no_grad():
        model.layer.weight.mul_(1.001)
    assert rules(model, golden, "32-true") == ["golden-stale"]
