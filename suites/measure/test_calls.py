"""How modules may be called, shared, cut off from autograd, and worked in place: boundaries are where expected, and health is health."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import precheck
from precheck.findings import Report

PRECISIONS = ("bf16-mixed", "bf16-true", "16-mixed", "32-true")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.b = nn.Linear(16, 16)


class SharedModule(Base):
    """The loop of a recurrent model by hand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(self.a(x))
        return self.b(x)


class TiedWeights(Base):
    def __init__(self) -> None:
        super().__init__()
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


class OneModuleUnderTwoNames(Base):
    def __init__(self) -> None:
        super().__init__()
        self.b = self.a

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


class FrozenPart(Base):
    def __init__(self) -> None:
        super().__init__()
        self.a.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


class HalfWithoutGradient(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.a(x).relu()
        return self.b(x)


class NoGradient(Base):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


class Inference(Base):
    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


class View(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 4, 4).transpose(1, 2)


class Views(Base):
    def __init__(self) -> None:
        super().__init__()
        self.view = View()
        self.flat = nn.Flatten()
        self.same = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.same(self.flat(self.view(self.a(x)))))


class InPlace(Base):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.b(self.act(self.a(x)))
        h += x
        h[:, :2] = 0
        return h.mul_(2)


class Checkpointed(Base):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        inner = lambda h: self.drop(self.b(h).relu())  # noqa: E731
        return checkpoint(inner, h, use_reentrant=self.reentrant) * 2  # type: ignore[no-any-return]


class Fourier(Base):
    """A complex tensor passes a module boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.fft = Spectrum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.fft.irfft(self.fft(self.a(x).float()), n=16).to(x.dtype))


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x)


class Caching(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.a(x)
        self.aux = self.hidden.float().square().mean()
        return self.b(self.hidden.relu())


class Skipping(Base):
    """A branch that is not taken, and a method that is not forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.a.weight) if x.dim() == 2 else self.b(x)


# the model, its output rows, its parameter gradients
EXPECTED: dict[str, tuple[Callable[[], nn.Module], list[str], list[str]]] = {
    "shared module": (SharedModule, ["a", "a#2", "a#3", "b"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "tied weights": (TiedWeights, ["a", "b"], ["a.weight", "a.bias", "b.bias"]),
    "one module, two names": (OneModuleUnderTwoNames, ["a", "a#2"], ["a.weight", "a.bias"]),
    "frozen part": (FrozenPart, ["a", "b"], ["b.weight", "b.bias"]),
    "half without gradient": (HalfWithoutGradient, ["a", "b"], ["b.weight", "b.bias"]),
    "no gradient": (NoGradient, ["a", "b"], []),
    "inference mode": (Inference, ["a", "b"], []),
    "views": (Views, ["a", "view", "flat", "b"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "in place": (InPlace, ["a", "act", "b", "output"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "checkpoint": (lambda: Checkpointed(reentrant=False), ["a", "b", "drop", "output"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "reentrant checkpoint": (lambda: Checkpointed(reentrant=True), ["a", "b", "drop", "output"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "complex numbers": (Fourier, ["a", "fft", "b"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "cached attributes": (Caching, ["a", "b"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "weights used without their module": (Skipping, ["output"], ["a.weight"]),
}  # fmt: skip


def x() -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


def measured(model: nn.Module, precision: str, **options: Any) -> Report:
    loss = options.pop("loss", lambda out: out.float().square().mean())
    report = precheck.measure(model, x(), precision=precision, loss=loss, **options)
    assert not [finding for finding in report.findings if finding.severity != "note"], report.summary()
    return report


def names(report: Report, kind: str) -> list[str]:
    return [row.tensor for row in report.boundaries if row.kind == kind]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", EXPECTED)
def test_boundaries_are_where_modules_make_tensors(case: str, precision: str) -> None:
    build, outputs, gradients = EXPECTED[case]
    torch.manual_seed(0)
    report = measured(build(), precision)
    assert names(report, "output") == outputs
    assert names(report, "parameter-gradient") == gradients


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", [name for name in EXPECTED if "gradient" not in name and "inference" not in name])
def test_each_of_them_trains(case: str, precision: str) -> None:
    torch.manual_seed(0)
    report = measured(EXPECTED[case][0](), precision, optimizer=lambda params: torch.optim.SGD(params, lr=0.5), steps=2)
    assert report.errors == [], report.summary()


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_not_recorded_again(reentrant: bool) -> None:
    torch.manual_seed(0)
    report = measured(Checkpointed(reentrant=reentrant), "bf16-mixed")
    assert not [name for name in names(report, "output") if "#" in name]
    assert {"a", "output"} <= set(names(report, "gradient"))


def test_a_loss_may_read_what_the_model_kept() -> None:
    torch.manual_seed(0)
    model = Caching()
    report = measured(model, "bf16-mixed", loss=lambda out: out.float().square().mean() + model.aux)
    assert report.boundaries
    assert not hasattr(model, "aux")


def test_a_module_that_returns_its_input_makes_nothing() -> None:
    report = measured(nn.Sequential(nn.Identity(), nn.Linear(16, 16), nn.Identity(), nn.Dropout(0.0)), "bf16-mixed")
    assert names(report, "output") == ["0", "1"]  # the input is seen where it first passes a module


class OnlyLow(torch.optim.SGD):
    """An optimizer for bfloat16 weights, as adamw_bf16's."""

    def step(self, closure: Any = None) -> Any:
        if self.param_groups[0]["params"][0].dtype is not torch.bfloat16:
            raise TypeError("only bfloat16 is supported")
        return super().step(closure)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11")
def test_what_raises_only_in_float32_says_that_the_float32_run_raised_it() -> None:
    def optimizer(given: Any) -> torch.optim.Optimizer:
        return OnlyLow(given, lr=0.1)

    with pytest.raises(TypeError, match="only bfloat16") as raised:
        precheck.measure(torch.nn.Linear(4, 4), torch.ones(2, 4), precision="bf16-true", loss=lambda out: out.square().mean(), optimizer=optimizer)
    assert raised.value.__notes__ == ["raised by the float32 run that bf16-true is compared with; precheck.watch() needs none"]
