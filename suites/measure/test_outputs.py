"""What goes into a model and comes out of it: every structure is measured, and each tensor is found under its path."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Report

PRECISIONS = ("bf16-mixed", "bf16-true", "16-mixed", "32-true")
precisions = pytest.mark.parametrize("precision", PRECISIONS)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor | None


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    extra: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    logits: torch.Tensor
    later: Any = dataclasses.field(default=None, init=False)


class Wraps(nn.Module):
    """One linear layer whose result is wrapped up somehow."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.wrap = wrap
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.layer(x))


def healthy(model: Any, inputs: Any, precision: str, loss: Any = None, **options: Any) -> Report:
    report = precheck.measure(model, inputs, precision=precision, loss=loss, **options)
    assert report.errors == [], report.summary()
    assert not [finding for finding in report.findings if finding.severity == "warning"], report.summary()
    assert report.boundaries
    return report


def rows(report: Report, kind: str = "output") -> list[str]:
    return [row.tensor for row in report.boundaries if row.kind == kind]


def made(wrap: Callable[[torch.Tensor], Any]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Wraps(wrap), torch.randn(8, 16)


# wrap, the model's own rows besides "layer", how the loss gets at a tensor
OUTPUTS: dict[str, tuple[Callable[[torch.Tensor], Any], list[str], Callable[[Any], torch.Tensor]]] = {
    "tensor": (lambda h: h * 2, ["output"], lambda out: out),
    "the layer's own": (lambda h: h, [], lambda out: out),
    "tuple": (lambda h: (h * 2, None, h * 3), ["[0]", "[2]"], lambda out: out[0] + out[2]),
    "list": (lambda h: [h * 2], ["[0]"], lambda out: out[0]),
    "nested": (lambda h: {"a": (h * 2, [h * 3])}, ["[a][0]", "[a][1][0]"], lambda out: out["a"][1][0]),
    "ordered dict": (lambda h: OrderedDict(a=h * 2, b=3), ["[a]"], lambda out: out["a"]),
    "named tuple": (lambda h: Pair(h * 2, None), ["[0]"], lambda out: out.left),
    "dataclass": (lambda h: Answer(h * 2, {"x": h * 3}), ["[logits]", "[extra][x]"], lambda out: out.logits),
    "frozen dataclass": (lambda h: Frozen(h * 2), ["[logits]"], lambda out: out.logits),
    "integers beside": (lambda h: (h * 2, h.argmax(-1), h.argmax(-1) > 3), ["[0]"], lambda out: out[0]),
    "twice the same": (lambda h: [h * 2] * 2, ["[0]"], lambda out: out[1]),
    "nothing": (lambda h: None, [], lambda out: None),  # type: ignore[arg-type, return-value]
}


@precisions
@pytest.mark.parametrize("structure", OUTPUTS)
def test_each_tensor_of_an_output_is_found(precision: str, structure: str) -> None:
    wrap, expected, pick = OUTPUTS[structure]
    loss = None if structure == "nothing" else lambda out: pick(out).float().square().mean()
    report = healthy(*made(wrap), precision, loss)
    assert rows(report) == ["layer", *expected]
    if loss:
        assert rows(report, "parameter-gradient") == ["layer.weight", "layer.bias"]


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, flag: bool = False, name: str = "") -> torch.Tensor:
        assert flag
        assert name == "a"
        return self.layer(x) * scale


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, batch: Any, mask: Any = None) -> torch.Tensor:
        inner = batch["x"] if isinstance(batch, dict) else batch.logits if isinstance(batch, Answer) else batch[0]
        return self.layer(inner)


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        assert ids.dtype is torch.int64
        return self.table(ids)


def x() -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


INPUTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "keywords": (Keywords, lambda: {"x": x(), "scale": x(), "flag": True, "name": "a"}),
    "a tuple of arguments": (Nested, lambda: ([x()], None)),
    "a list is one argument": (Nested, lambda: [x(), x()]),
    "a dict inside a tuple": (Nested, lambda: ({"x": x()},)),
    "a dataclass": (Nested, lambda: Answer(x())),
    "a named tuple is one argument": (Nested, lambda: Pair(x(), None)),
    "integers": (Lookup, lambda: torch.arange(8)),
    "float64": (lambda: nn.Linear(16, 16).double(), lambda: x().double()),
    "one example": (lambda: nn.Linear(16, 16), lambda: x()[0]),
    "an input with a gradient": (lambda: nn.Linear(16, 16), lambda: x().requires_grad_()),
    "a view": (lambda: nn.Linear(16, 16), lambda: x().t().contiguous().t()),
    "an expanded input": (lambda: nn.Linear(16, 16), lambda: x()[:1].expand(8, -1)),
}


@precisions
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_arrive_as_they_were_given(precision: str, kind: str) -> None:
    model, inputs = INPUTS[kind]
    torch.manual_seed(0)
    healthy(model(), inputs(), precision, lambda out: out.float().square().mean())


@precisions
def test_a_parameter_among_the_inputs_is_an_input(precision: str) -> None:
    torch.manual_seed(0)
    prompt = nn.Parameter(torch.randn(8, 16))
    report = healthy(nn.Linear(16, 16), prompt, precision, lambda out: out.float().square().mean())
    assert prompt.grad is None
    assert rows(report) == ["output"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x is self.layer.weight
        return self.layer(x)


@precisions
def test_the_models_own_parameter_among_the_inputs_stays_that_parameter(precision: str) -> None:
    torch.manual_seed(0)
    model = Tied()
    healthy(model, model.layer.weight, precision, lambda out: out.float().square().mean())
    assert model.layer.weight.grad is None


@precisions
def test_a_function_is_a_model_too(precision: str) -> None:
    report = healthy(lambda a, b: torch.softmax(a @ b.T, -1), (x(), x()), precision, lambda out: out.float().square().sum())
    assert rows(report) == ["output"]


def test_empty_tensors_are_passed_over() -> None:
    torch.manual_seed(0)
    for precision in PRECISIONS:
        report = precheck.measure(Wraps(lambda h: (h * 2, h[:0])), x(), precision=precision, loss=lambda out: out[0].float().mean())
        assert rows(report) == ["layer", "[0]"]
        assert report.errors == []


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "bf16-master", "16-mixed", "16-true", "tf32", "fp8-e4m3-mixed", "32-true"])
def test_every_precision_trains_a_small_model(precision: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    options = {"optimizer": lambda params: torch.optim.SGD(params, lr=0.5), "steps": 3}
    report = healthy(model, x(), precision, lambda out: out.float().square().mean(), **options)
    assert {row.step for row in report.boundaries if row.kind == "loss"} == {1, 2, 3}
    assert {row.step for row in report.boundaries if row.kind == "output"} == {1}


def test_float64_has_no_reference_and_says_so() -> None:
    report = precheck.measure(nn.Linear(16, 16), x(), precision="64-true")
    assert report.errors == report.boundaries == []
    assert "none" in report.facts["reference"]
