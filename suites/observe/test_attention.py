"""Replays of CUDA's fused attention kernels, called with the kernels' own schemas, against attention from first principles."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from beside import normal, off
from torch.nn.functional import scaled_dot_product_attention

from precheck.observe.shadow.replaying.attention import REPLAYED, Unfollowable
from precheck.observe.shadow.replaying.replay import OpCall, plan

KERNELS = ("flash", "efficient", "cudnn")
CLOSE = 1e-12
"""Of float64: roundoff 1e-16, over some hundred operations each."""


def op(kernel: str, *, backward: bool = False) -> Any:
    return getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention{'_backward' if backward else ''}").default


def given(heads: int = 4, shared: int = 4) -> list[torch.Tensor]:
    return [normal(2, count, length, 16, seed=seed).double() for seed, (count, length) in enumerate(((heads, 6), (shared, 9), (shared, 9)))]


def called(func: Any, **named: Any) -> list[torch.Tensor]:
    """The replay of a call, its arguments placed as the dispatcher would: in the order of the schema, as far as they have no default."""
    planned = plan(func)
    args = [named.pop(each.name) for each in func._schema.arguments if not each.kwarg_only and not each.has_default_value()]
    return REPLAYED[planned.packet](OpCall(func, planned, tuple(args), named))


def forward(kernel: str, query: Any, key: Any, value: Any, bias: Any = None, **named: Any) -> list[torch.Tensor]:
    own = {"efficient": {"attn_bias": bias, "compute_log_sumexp": True}, "cudnn": {"attn_bias": bias, "compute_log_sumexp": True}}.get(kernel, {})
    return called(op(kernel), query=query, key=key, value=value, **own, **named)


def backward(kernel: str, gradient: Any, query: Any, key: Any, value: Any, bias: Any = None, **named: Any) -> list[torch.Tensor]:
    func = op(kernel, backward=True)
    filled: dict[str, Any] = {each.name: None for each in func._schema.arguments if not each.kwarg_only and not each.has_default_value()}
    filled |= {"query": query, "key": key, "value": value, "attn_bias": bias, "dropout_p": 0.0, "is_causal": False}
    filled |= {"grad_out": gradient, "grad_out_": gradient, **named}
    return called(func, **{name: value for name, value in filled.items() if name in plan(func).names})


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
@pytest.mark.parametrize("shared", [4, 2], ids=["own keys", "grouped"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_forward_kernels(kernel: str, shared: int, options: dict[str, Any]) -> None:
    query, key, value = given(shared=shared)
    result, lse = forward(kernel, query, key, value, **options)
    truth = scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)
    assert off(result, truth) < CLOSE
    scores = query @ key.repeat_interleave(4 // shared, 1).mT * options.get("scale", 1 / math.sqrt(16))
    if options.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(6, 9, dtype=torch.bool).tril(), -math.inf)
    truth = scores.logsumexp(-1)
    assert off(lse, truth.unsqueeze(-1) if kernel == "cudnn" else truth) < CLOSE  # the shape that cuDNN's kernel gives


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
@pytest.mark.parametrize("shared", [4, 2], ids=["own keys", "grouped"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_backward_kernels(kernel: str, shared: int, options: dict[str, Any]) -> None:
    read = [each.requires_grad_() for each in given(shared=shared)]
    gradient = normal(2, 4, 6, 16, seed=7).double()
    scaled_dot_product_attention(*read, enable_gqa=True, **options).backward(gradient)
    made = backward(kernel, gradient, *(each.detach() for each in read), **options)
    for mine, each in zip(made, read, strict=False):
        assert each.grad is not None
        assert off(mine, each.grad) < CLOSE


@pytest.mark.parametrize("shape", [(2, 4, 6, 9), (1, 1, 6, 9), (2, 1, 1, 9)], ids=str)
def test_a_bias_has_a_gradient_of_its_own_shape(shape: tuple[int, ...]) -> None:
    read = [each.requires_grad_() for each in (*given(), normal(*shape, seed=8).double())]
    query, key, value, bias = read
    gradient = normal(2, 4, 6, 16, seed=7).double()
    result = scaled_dot_product_attention(query, key, value, attn_mask=bias)
    result.backward(gradient)
    still = [each.detach() for each in read]
    assert off(forward("efficient", *still)[0], result) < CLOSE
    for mine, each in zip(backward("efficient", gradient, *still), read, strict=True):
        assert each.grad is not None
        assert mine.shape == each.grad.shape
        assert off(mine, each.grad) < CLOSE


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_cannot_be_followed(kernel: str) -> None:
    """The mask never leaves the kernel: the shadow begins again, and the report says so."""
    query, key, value = given()
    with pytest.raises(Unfollowable, match="mask"):
        forward(kernel, query, key, value, dropout_p=0.1)
    with pytest.raises(Unfollowable, match="mask"):
        backward(kernel, query, query, key, value, dropout_p=0.1)
