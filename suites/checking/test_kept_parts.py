"""A golden still holds for a model that keeps parts of itself in float32, as the remedy says that precheck has tried."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import precheck
from precheck import in_float32
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of


class Wave(nn.Module):
    """Returns what its last part returns, so that its output has been recorded once, under that part's name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x).sin())  # type: ignore[no-any-return]


def model(*, more: bool = False) -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Linear(4, 8), Wave(), nn.Linear(8, 2)
    return nn.Sequential(*parts, nn.Tanh()) if more else nn.Sequential(*parts)


def inputs() -> torch.Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(1))


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    assert refresh(tmp_path / "wave.safetensors", job_of(model(), inputs(), loss=loss)).status == "written"
    return tmp_path / "wave.safetensors"


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "16-mixed"])
@pytest.mark.parametrize("names", [["1"], ["1.out"], ["0", "1"]], ids=" ".join)
def test_parts_kept_in_float32_are_no_other_model(golden: Path, names: list[str], precision: str) -> None:
    kept = model()
    in_float32(kept, names)
    report = precheck.check(kept, inputs(), golden=golden, precision=precision, loss=loss)
    assert not report.errors, [error.message for error in report.errors]


def test_a_part_that_was_added_is_another_model(golden: Path) -> None:
    report = precheck.check(model(more=True), inputs(), golden=golden, precision="32-true", loss=loss)
    (error,) = report.errors
    error.message.index("it belongs to another model: 2 of ")
    error.message.index("first the output of module 3 of shape (16, 2)")


def test_kept_parts_whose_weights_were_changed_are_still_out_of_date(golden: Path) -> None:
    kept = model()
    in_float32(kept, ["1"])
    with torch.no_grad():
        kept.get_parameter("1.out.weight")[0, 0] += 0.01
    report = precheck.check(kept, inputs(), golden=golden, precision="32-true", loss=loss)
    assert [error.rule for error in report.errors] == ["golden-stale"]
    report.errors[0].message.index("the weights are not those recorded")


def test_the_forward_method_of_a_kept_part_is_no_function() -> None:
    """Its result is the output of the module, and is recorded as that."""
    kept = model()
    in_float32(kept, ["1"])
    report = precheck.measure(kept, inputs(), precision="bf16-mixed", loss=loss)
    assert not [row.tensor for row in report.boundaries if row.kind == "returned"]
