"""The first look of a check leaves out gradients that pass between modules where they end in others that it compares: nothing gets by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Report
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of

Wrong = Callable[[torch.Tensor], torch.Tensor]


class Backward(torch.autograd.Function):
    """Hands on what it is given; its gradient is `wrong` in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wrong: Wrong) -> torch.Tensor:
        ctx.wrong = wrong
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (ctx.wrong(gradient) if gradient.dtype is torch.bfloat16 else gradient), None


class Activation(nn.Module):
    """Without weights of its own, as a fused kernel with a faulty backward."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        passed: torch.Tensor = Backward.apply(nn.functional.gelu(x), self.wrong)
        return passed


class Residual(nn.Module):
    """What goes wrong in its branch is a part of what comes out."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), Activation(wrong), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = x + self.inside(x)
        return changed


def net(wrong: Wrong = torch.Tensor.clone) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), Residual(wrong), Residual(torch.Tensor.clone), nn.Linear(32, 4))


def inputs() -> torch.Tensor:
    return torch.randn(600, 8, generator=torch.Generator().manual_seed(1))


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def truncated(gradient: torch.Tensor) -> torch.Tensor:
    """To the four significant bits of FP8 E4M3, toward zero."""
    mantissa, exponent = torch.frexp(gradient.float())
    return torch.ldexp((mantissa * 16).trunc() / 16, exponent).to(gradient.dtype)


def flushed(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * (gradient.abs() > 0.1 * gradient.abs().max())


WRONG: dict[str, Wrong] = {"5 % too large": lambda gradient: gradient * 1.05, "truncated": truncated, "flushed": flushed, "lost": torch.zeros_like}


def looked_at(report: Report) -> set[str]:
    return {row.kind for row in report.boundaries}


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", "bf16-master"])
def test_gradients_that_end_in_weights_are_left_out(tmp_path: Path, precision: str) -> None:
    refresh(tmp_path / "net", job_of(net(), inputs(), loss=loss))
    report = precheck.check(net(), inputs(), golden=tmp_path / "net", precision=precision, loss=loss)
    assert not report.errors
    assert looked_at(report) == {"output", "loss", "parameter-gradient"}
    whole = precheck.check(net(), inputs(), golden=tmp_path / "net", precision=precision, loss=loss, ops=True)
    assert looked_at(whole) == {"output", "loss", "parameter-gradient", "gradient"}
    assert {row.tensor: row.r for row in whole.boundaries if row.kind != "gradient"} == {row.tensor: row.r for row in report.boundaries}


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_found_by_where_it_ends(tmp_path: Path, name: str, precision: str) -> None:
    """And named where it is wrong, which the second look tells."""
    refresh(tmp_path / "net", job_of(net(), inputs(), loss=loss))
    report = precheck.check(net(WRONG[name]), inputs(), golden=tmp_path / "net", precision=precision, loss=loss)
    assert report.errors, report.summary()
    assert "gradient" in looked_at(report)
    assert report.errors[0].phase == "backward"
    assert report.errors[0].module.startswith("1")


def asks(x: torch.Tensor) -> torch.Tensor:
    return x.requires_grad_()


class Words(nn.Module):
    """Its one gradient before the fault is sparse, which no record holds."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.body = nn.Embedding(50, 32, sparse=True), nn.Sequential(nn.GELU(), Activation(wrong), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(self.words(x))
        return result


def indices() -> torch.Tensor:
    return torch.randint(50, (600,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("model", "given"),
    [(lambda wrong: net(wrong).requires_grad_(False), lambda: asks(inputs())), (Words, indices)],
    ids=["an input's", "a sparse one"],
)
def test_those_that_end_in_nothing_compared_are_looked_at(tmp_path: Path, model: Callable[[Wrong], nn.Module], given: Callable[[], Any]) -> None:
    refresh(tmp_path / "net", job_of(model(torch.Tensor.clone), given(), loss=loss))
    healthy = precheck.check(model(torch.Tensor.clone), given(), golden=tmp_path / "net", precision="bf16-true", loss=loss)
    assert not healthy.errors
    assert "gradient" in looked_at(healthy)
    assert precheck.check(model(flushed), given(), golden=tmp_path / "net", precision="bf16-true", loss=loss).errors


def test_those_of_float16_are_looked_at(tmp_path: Path) -> None:
    refresh(tmp_path / "net", job_of(net(), inputs(), loss=loss))
    report = precheck.check(net(), inputs(), golden=tmp_path / "net", precision="16-mixed", loss=loss)
    assert not report.errors
    assert "gradient" in looked_at(report)
