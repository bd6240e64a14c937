"""Single ops across precisions: speed, memory and error in one row. Full size on a CUDA device; small here, as a test of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scale import sized_for
from torch.nn import functional

PRECISIONS = ["bf16-mixed", "bf16-true", "16-mixed", "16-true", "tf32"]


def gemm(device: torch.device) -> tuple[Any, Any]:
    size = sized_for(64, 8192)
    return torch.matmul, (torch.randn(size, size, device=device), torch.randn(size, size, device=device))


def skinny_gemm(device: torch.device) -> tuple[Any, Any]:
    """Few rows and a long sum, as one token's: bound by memory, and where kernels cut the sum up."""
    rows, inner = 16, sized_for(256, 16384)
    return torch.matmul, (torch.randn(rows, inner, device=device), torch.randn(inner, rows, device=device))


def attention(device: torch.device) -> tuple[Any, Any]:
    shape = (2, 4, sized_for(32, 4096), sized_for(16, 128))
    query, key, value = (torch.randn(shape, device=device) for _ in range(3))
    return functional.scaled_dot_product_attention, {"query": query, "key": key, "value": value, "is_causal": True}


def layer_norm(device: torch.device) -> tuple[Any, Any]:
    width = sized_for(64, 4096)
    return torch.nn.LayerNorm(width, device=device), torch.randn(sized_for(32, 16384), width, device=device)


def rms_norm(device: torch.device) -> tuple[Any, Any]:
    width = sized_for(64, 4096)
    return torch.nn.RMSNorm(width, device=device), torch.randn(sized_for(32, 16384), width, device=device)


def softmax(device: torch.device) -> tuple[Any, Any]:
    return torch.nn.Softmax(dim=-1), torch.randn(sized_for(32, 8192), sized_for(64, 8192), device=device)


@pytest.mark.parametrize("op", [gemm, skinny_gemm, attention, layer_norm, rms_norm, softmax], ids=lambda op: op.__name__)
def test_an_op_forward(op: Callable[[torch.device], tuple[Any, Any]], gpu_benchmark: Any, device: torch.device) -> None:
    found = gpu_benchmark(*op(device), precisions=PRECISIONS)
    for row in found.rows:
        assert row.errors == (), str(row)
        assert row.precision == "tf32" or row.memory, "what is not emulated is weighed"


@pytest.mark.parametrize("op", [gemm, attention, layer_norm, rms_norm], ids=lambda op: op.__name__)
def test_an_op_forward_and_backward(op: Callable[[torch.device], tuple[Any, Any]], gpu_benchmark: Any, device: torch.device) -> None:
    function, inputs = op(device)
    values = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else (inputs,)
    for value in values:
        if isinstance(value, torch.Tensor):
            value.requires_grad_()
    found = gpu_benchmark(function, inputs, loss=lambda out: out.float().square().mean(), precisions=["bf16-mixed", "bf16-true"])
    for row in found.rows:
        assert row.errors == (), str(row)
