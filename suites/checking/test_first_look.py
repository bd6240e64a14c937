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


class Faint(nn.Module):
    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        self.before, self.branch = nn.Identity(), Activation(wrong)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = x + 1e-4 * self.branch(self.before(x * 1.0))
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


def sample_size(report: Report) -> set[str]:
    return {row.kind for row in report.boundaries}


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", "bf16-master"])
def test_gradients_that_end_in_weights_are_left_out(tmp_path: Path, precision: str) -> None:
    refresh(tmp_path / "net", job_of(net(), inputs(), loss=loss))
    report = precheck.check(net(), inputs(), golden=tmp_path / "net", precision=precision, loss=loss, depth="boundaries")
    assert not report.errors
    assert sample_size(report) == {"output", "loss", "parameter-gradient"}
    whole = precheck.check(net(), inputs(), golden=tmp_path / "net", precision=precision, loss=loss, depth="boundaries", ops=True)
    assert sample_size(whole) == {"output", "loss", "parameter-gradient", "gradient"}
    both = {row.tensor: row.r for row in whole.boundaries if row.kind != "gradient"}
    assert both == pytest.approx({row.tensor: row.r for row in report.boundaries}, rel=1e-3)


def test_what_ends_in_nothing_is_found_where_it_is_asked_for(tmp_path: Path) -> None:
    """A gradient that goes wrong in a branch whose part in all others is a ten-thousandth."""

    def model(wrong: Wrong) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 32), Faint(wrong), nn.Linear(32, 4))

    refresh(tmp_path / "net", job_of(model(torch.Tensor.clone), inputs(), loss=loss))
    asked = [
        precheck.check(
            model(torch.zeros_like), inputs(), golden=tmp_path / "net", precision="bf16-true", loss=loss, depth="boundaries", ops=ops
        )
        for ops in (False, True)
    ]
    assert [bool(report.errors) for report in asked] == [False, True]


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_found_by_where_it_ends(tmp_path: Path, name: str, precision: str) -> None:
    """And named where it is wrong, which the second look tells."""
    refresh(tmp_path / "net", job_of(net(), inputs(), loss=loss))
    report = precheck.check(net(WRONG[name]), inputs(), golden=tmp_path / "net", precision=precision, loss=loss, depth="boundaries")
    assert report.errors, report.summary()
    assert "gradient" in sample_size(report)
    assert report.errors[0].phase == "backward"
    assert report.errors[0].module.startswith("1")


def indices() -> torch.Tensor:
    return torch.randint(50, (600,), generator=torch.Generator().manual_seed(0))


class Words(nn.Module):
    """Its one gradient before the fault is sparse, which no record holds."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.body = nn.Embedding(50, 32, sparse=True), nn.Sequential(nn.GELU(), Activation(wrong), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(self.words(x))
        return result


class Prompted(nn.Module):
    """Trains a head, and besides a prompt that no module knows of."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.prompt = [torch.randn(1, 8).requires_grad_()]
        self.body, self.head = nn.Sequential(nn.Linear(8, 32), Activation(wrong)).requires_grad_(False), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(x + self.prompt[0].to(x.dtype)))
        return result


class Probed(nn.Module):
    """Asks for a gradient by a tensor that it makes, as a saliency map does."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        self.net = net(wrong).requires_grad_(False)
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.net(x.detach().requires_grad_()))
        return result


def asking() -> torch.Tensor:
    return inputs().requires_grad_()


ELSEWHERE: dict[str, tuple[Callable[[Wrong], Any], Callable[[], Any]]] = {
    "an input's": (lambda wrong: net(wrong).requires_grad_(False), asking),
    "a sparse one": (Words, indices),
    "a tensor's that no module knows": (Prompted, inputs),
    "a tensor's made on the way": (Probed, inputs),
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_those_that_end_in_nothing_compared_are_looked_at(tmp_path: Path, where: str) -> None:
    model, given = ELSEWHERE[where]
    refresh(tmp_path / "net", job_of(model(torch.Tensor.clone), given(), loss=loss))
    healthy = precheck.check(model(torch.Tensor.clone), given(), golden=tmp_path / "net", precision="bf16-true", loss=loss, depth="boundaries")
    assert not healthy.errors
    assert "gradient" in sample_size(healthy)
    report = precheck.check(model(flushed), given(), golden=tmp_path / "net", precision="bf16-true", loss=loss, depth="boundaries")
    assert report.errors, report.summary()


def test_a_run_that_is_broken_off_has_taken_no_step(tmp_path: Path) -> None:
    """It is made again, with its optimizer, and the model comes back as it was."""
    steps: dict[str, Any] = {"loss": loss, "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5), "steps": 2}
    refresh(tmp_path / "net", job_of(Prompted(torch.Tensor.clone), inputs(), **steps))
    model = Prompted(torch.Tensor.clone)
    before = [parameter.clone() for parameter in model.parameters()]
    report = precheck.check(model, inputs(), golden=tmp_path / "net", precision="bf16-mixed", depth="boundaries", **steps)
    assert not report.errors
    assert len(report.losses) == 2
    assert all(map(torch.equal, before, model.parameters()))
    assert model.prompt[0].grad is None
    model.prompt[0].grad = torch.ones(1, 8)
    precheck.check(model, inputs(), golden=tmp_path / "net", precision="bf16-mixed", depth="boundaries", **steps)
    assert torch.equal(model.prompt[0].grad, torch.ones(1, 8))


def test_those_of_a_function_are_looked_at(tmp_path: Path) -> None:
    """Weights behind a default are not found, so they are nobody's; what the loss hands back to the function is all there is."""
    layers = {dtype: net().to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)}

    def given(wrong: Wrong) -> dict[str, Any]:
        return {"model": lambda x, layers=layers: layers[x.dtype](x), "inputs": inputs(), "loss": lambda out: loss(Backward.apply(out, wrong))}

    refresh(tmp_path / "net", job_of(**given(torch.Tensor.clone)))
    assert not precheck.check(**given(torch.Tensor.clone), golden=tmp_path / "net", precision="bf16-true", depth="boundaries").errors
    assert precheck.check(**given(WRONG["5 % too large"]), golden=tmp_path / "net", precision="bf16-true", depth="boundaries").errors


def test_those_of_float16_are_looked_at(tmp_path: Path) -> None:
    refresh(tmp_path / "net", job_of(net(), inputs(), loss=loss))
    report = precheck.check(net(), inputs(), golden=tmp_path / "net", precision="16-mixed", loss=loss, depth="boundaries")
    assert not report.errors
    assert "gradient" in sample_size(report)


class Deeper(nn.Module):
    """Calls itself: its calls end in another order than they began."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        below: torch.Tensor = self.linear(x) + 1.0
        return self(below, depth - 1) * 0.5 if depth else below


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_a_module_that_calls_itself_passes(tmp_path: Path, precision: str) -> None:
    refresh(tmp_path / "deeper", job_of(Deeper(), inputs(), loss=loss))
    report = precheck.check(Deeper(), inputs(), golden=tmp_path / "deeper", precision=precision, loss=loss, depth="boundaries")
    assert not report.findings, report.summary()
