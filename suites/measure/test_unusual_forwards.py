"""Forwards that take derivatives, map over examples, catch errors or were compiled: measured like any other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import precheck
from precheck.findings import Report

FORMAT = {"bf16-mixed": "bfloat16", "bf16-true": "bfloat16", "16-mixed": "float16", "32-true": "float32"}
PRECISIONS = tuple(FORMAT)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.b = nn.Linear(16, 16)


class OutputInside(Base):
    """A child with the name that the model's own result goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.a(x)) * 2


class Mapped(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: torch.tanh(self.a(row)))(x) + torch.func.vmap(torch.func.grad(lambda row: self.b(row).sum()))(x)


class Derivative(Base):
    """A physics-informed net: the output's derivative by the input is part of the output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        u = self.b(torch.tanh(self.a(x)))
        return u + torch.autograd.grad(u.sum(), x, create_graph=True)[0]


class Scripted(Base):
    def __init__(self) -> None:
        super().__init__()
        self.b = torch.jit.script(self.b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


class Recovering(Base):
    """A submodule raises, and its parent goes on without it."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = Broken()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.broken(x)  # type: ignore[no-any-return]
        except ArithmeticError:
            return self.b(self.a(x))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(self.inner(x).shape)


EXPECTED: dict[str, tuple[Callable[[], nn.Module], list[str], list[str]]] = {
    "vmap and functional gradients": (Mapped, ["output"], ["a.weight", "a.bias", "b.weight"]),
    "a derivative in the forward": (Derivative, ["a", "b", "output"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "a failure that is caught": (Recovering, ["broken.inner", "a", "b"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "a child called output": (OutputInside, ["a", "output", "output[]"], ["a.weight", "a.bias", "output.weight", "output.bias"]),
}


def measured(model: nn.Module, precision: str, *, train: bool) -> Report:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    optimizer = (lambda params: torch.optim.SGD(params, lr=0.5)) if train and precision != "bf16-true" else None
    steps = 2 if optimizer else 1
    report = precheck.measure(
        model, x, precision=precision, loss=(lambda out: out.float().square().mean()) if train else None, optimizer=optimizer, steps=steps
    )
    assert not [finding for finding in report.findings if finding.severity != "note"], report.summary()
    return report


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", EXPECTED)
def test_boundaries_are_where_modules_make_tensors(case: str, precision: str) -> None:
    build, outputs, gradients = EXPECTED[case]
    torch.manual_seed(0)
    report = measured(build(), precision, train=True)
    assert [row.tensor for row in report.boundaries if row.kind == "output"] == outputs
    assert [row.tensor for row in report.boundaries if row.kind == "parameter-gradient"] == gradients


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_scripted_part_has_no_boundaries_of_its_own(precision: str) -> None:
    torch.manual_seed(0)
    report = measured(Scripted(), precision, train=True)
    assert [row.tensor for row in report.boundaries if row.kind == "output"] == ["a", "output"]


class Plain(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))  # type: ignore[no-any-return]


def scripted() -> nn.Module:
    return torch.jit.script(Plain())  # type: ignore[no-any-return]


def traced() -> nn.Module:
    return torch.jit.trace(Plain(), torch.ones(8, 16))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.torch.jit.(script|trace|trace_method). is deprecated")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("build", [scripted, traced])
def test_of_a_model_that_is_scripted_itself_the_result_is_compared(build: Callable[[], nn.Module], precision: str) -> None:
    """Also its backward, which TorchScript's own executor cannot carry out under float16 autocast."""
    torch.manual_seed(0)
    model = build()
    before = torch._C._get_graph_executor_optimize()
    report = measured(model, precision, train=False)
    assert [(row.tensor, row.kind, row.dtype) for row in report.boundaries] == [("output", "output", FORMAT[precision])]
    report = measured(model, precision, train=True)
    assert [row.tensor for row in report.boundaries if row.kind != "update"][:3] == ["output", "loss", "output"]
    assert {row.tensor for row in report.boundaries if row.kind == "parameter-gradient"} == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert torch._C._get_graph_executor_optimize() == before


def turned(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return x * by + x


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("called", [0, 3])
def test_what_torchscript_had_compiled_before_is_compiled_anew(called: int) -> None:
    """From its second call on, TorchScript's executor has another gradient of a complex product, and a wrong one."""
    code = torch.jit.script(turned)
    by = torch.polar(torch.ones(8), torch.arange(8.0))

    class Turn(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return code(torch.complex(self.a(x).float(), x[:, :16].float()), by.repeat(2)).abs()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = Turn(), torch.randn(4, 16)
    for _ in range(called):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(x).square().mean().backward()
    report = precheck.measure(model, x, precision="bf16-mixed", loss=lambda out: out.square().mean())
    assert not report.errors, [error.message for error in report.errors]


class Leaves(Base):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.b(self.a(x)) * 1e5}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_scripted_model_that_leaves_the_range_is_told_so() -> None:
    torch.manual_seed(0)
    report = precheck.measure(torch.jit.script(Leaves()), torch.ones(8, 16), precision="16-mixed")
    assert [(finding.rule, finding.tensor, finding.module) for finding in report.errors] == [("overflow", "[logits]", "")]
    assert report.errors[0].message.startswith("the model's output[logits]: ")


class Additive(Base):
    """BERT's mask: the ones and zeros that it is given, less one, times -10000."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.a(x) @ self.b(x).transpose(1, 2) / 4 + (1.0 - mask)[:, None, :] * -1e4
        return scores.softmax(-1) @ x


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_mask_of_floats_is_as_exact_as_one_of_booleans(precision: str) -> None:
    torch.manual_seed(0)
    mask = torch.ones(2, 8)
    mask[:, 5:] = 0
    report = precheck.measure(Additive(), (torch.randn(2, 8, 16), mask), loss=lambda out: out.square().mean(), precision=precision)
    assert report.findings == [], report.summary()


def test_a_checkpoint_recomputes_under_the_same_autocast_policy() -> None:
    """CUDA's policy has softmax in float32, a CPU's own in bfloat16: what a backward pass recomputes has to be what the forward pass saved."""

    class Recomputed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1), torch.nn.Linear(8, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return]

    report = precheck.measure(Recomputed(), torch.randn(4, 8), precision="bf16-mixed", loss=lambda out: out.float().square().mean())
    assert not report.errors


class Shy(nn.Parameter):
    """A point of a manifold, as in hypll: its class refuses every function, so that nobody takes it for a plain tensor."""

    @classmethod
    def __torch_function__(cls, function: object, types: object, args: tuple[object, ...] = (), kwargs: object = None) -> object:
        if getattr(function, "__name__", "") not in ("__get__", "__set__", "to", "detach", "clone"):
            raise TypeError(f"{function} is refused")
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[misc]


def test_a_parameter_whose_class_refuses_functions_is_measured() -> None:
    class Points(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.points = Shy(torch.randn(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch._C.DisableTorchFunctionSubclass():
                return x @ self.points.as_subclass(torch.Tensor)

    model = Points()
    report = precheck.measure(model, torch.randn(8, 4), precision="bf16-true", loss=lambda out: out.square().mean())
    assert report.findings == [], report.summary()
    assert type(model.points) is Shy
