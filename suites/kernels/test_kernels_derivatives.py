"""A gradient that is the derivative of the reference's values is no fault where torch's own derivative leaves something out of itself."""

from __future__ import annotations

from typing import Any

import torch
from cases import need

import precheck


def _rules(candidate: Any, reference: Any, inputs: Any, trials: int = 120, **named: Any) -> list[str]:
    return [each.rule for each in precheck.compare_kernels(candidate, reference, inputs, trials=trials, **named).errors]


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _likeness(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cosine_similarity(x, y, 1, 0.5)


def test_the_derivative_of_the_values_is_a_warning_where_that_of_torch_leaves_something_out() -> None:
    def by_least_lengths(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, x.shape == y.shape)
        one, two = (each / torch.linalg.vector_norm(each, dim=1, keepdim=True).clamp_min(0.5) for each in (x, y))
        return (one * two).sum(1)

    inputs = _normal(4, 6) * 0.05, _normal(4, 6, seed=1)
    report = precheck.compare_kernels(by_least_lengths, _likeness, inputs, trials=30)
    assert not report.errors, report.summary()
    assert any(each.rule == "kernel-gradient" and "the derivative of the reference's values" in each.message for each in report.findings)


def test_what_a_reference_leaves_out_on_purpose_is_asked_for() -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return x * x.detach().sigmoid()

    def candidate(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x)

    assert _rules(candidate, reference, _normal(4, 6), trials=20) == ["kernel-gradient"]


def test_a_gradient_that_is_of_no_function_is_an_error() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * ctx.saved_tensors[0]

    assert _rules(Square.apply, torch.square, _normal(4, 6), trials=20) == ["kernel-gradient"]
