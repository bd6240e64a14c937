"""Attention and recurrent layers: kernels that keep books of their own, and paths that torch takes only when nobody looks."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import pytest
import torch
from beside import check, normal
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

LOWS = (torch.bfloat16, torch.float16)
CALLS: dict[str, dict[str, Any]] = {
    "plain": {}, "causal": {"is_causal": True}, "bool mask": {"mask": torch.ones(8, 8, dtype=torch.bool).tril()},
    "float mask": {"mask": normal(8, 8, seed=9)}, "grouped": {"enable_gqa": True, "shared": 2}, "dropout": {"dropout_p": 0.3},
    "scaled": {"scale": 0.5},
}  # fmt: skip
FLASH_REFUSES = ("float mask", "dropout")  # on a CPU: a mask with a gradient, dropout


def attended(dtype: torch.dtype, *, backend: SDPBackend, mask: torch.Tensor | None = None, shared: int = 4, **options: Any) -> list[torch.Tensor]:
    query, key, value = (normal(2, heads, 8, 16, seed=seed).to(dtype).requires_grad_() for seed, heads in enumerate((4, shared, shared)))
    if mask is not None and mask.is_floating_point():
        mask = mask.clone().to(dtype).requires_grad_()
    with sdpa_kernel(backend):
        result = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)
    result.float().pow(2).sum().backward()
    read = [query, key, value, *([mask] if mask is not None and mask.requires_grad else [])]
    return [result, *(each.grad for each in read if each.grad is not None)]


@pytest.mark.parametrize("low", LOWS, ids=str)
@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=lambda backend: backend.name.lower())
def test_scaled_dot_product_attention(backend: SDPBackend, name: str, low: torch.dtype) -> None:
    """The CPU's flash kernel carries the tag of random ops with dropout off too: taken at its word, the shadow would begin again there."""
    if backend is SDPBackend.FLASH_ATTENTION and name in FLASH_REFUSES:
        pytest.skip("the CPU's flash kernel does not take it")
    check(functools.partial(attended, backend=backend, **CALLS[name]), low)


def attention_layer(dtype: torch.dtype) -> list[torch.Tensor]:
    """Fast paths in evaluation, and training after it."""
    layer = nn.MultiheadAttention(16, 4, batch_first=True).to(dtype)
    x = normal(2, 5, 16).to(dtype)
    with torch.no_grad():
        layer.eval()
        fast = [layer(x, x, x, need_weights=False)[0], layer(x, x, x)[0]]
    result, weights = layer.train()(x, x, x)
    result.float().pow(2).sum().backward()
    return [*fast, result, weights, *(each.grad for each in layer.parameters() if each.grad is not None)]


def encoder(dtype: torch.dtype) -> list[torch.Tensor]:
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu"), 2).to(dtype).eval()
    with torch.no_grad():
        return [layers(normal(2, 5, 16).to(dtype))]


@pytest.mark.parametrize("low", LOWS, ids=str)
@pytest.mark.parametrize("program", [attention_layer, encoder], ids=lambda program: program.__name__)
def test_layers_with_fast_paths(program: Any, low: torch.dtype) -> None:
    check(program, low)


RECURRENT: dict[str, Any] = {
    "LSTM": lambda: nn.LSTM(8, 8, 2), "LSTM both ways": lambda: nn.LSTM(8, 8, bidirectional=True),
    "LSTM projected": lambda: nn.LSTM(8, 8, proj_size=4),
    "GRU": lambda: nn.GRU(8, 8, 2, bidirectional=True), "RNN": lambda: nn.RNN(8, 8),
}  # fmt: skip


def recurrent(dtype: torch.dtype, *, make: Any, mixed: bool, packed: bool = False) -> list[torch.Tensor]:
    layer, x = make(), normal(5, 2, 8)
    if not mixed:
        layer, x = layer.to(dtype), x.to(dtype)
    given = nn.utils.rnn.pack_padded_sequence(x, [5, 3]) if packed else x
    with torch.autocast("cpu", dtype=dtype, enabled=mixed and dtype != torch.float32):
        result, state = layer(given)
    result = result.data if packed else result
    result.float().pow(2).sum().backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    return [result.float(), *(each.float() for each in (state if isinstance(state, tuple) else (state,))), *gradients]


def runs_here(name: str, low: torch.dtype, mixed: bool) -> bool:
    """oneDNN has a float16 LSTM on some processors only."""
    try:
        recurrent(low, make=RECURRENT[name], mixed=mixed)
    except RuntimeError:
        return False
    return True


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("low", LOWS, ids=str)
@pytest.mark.parametrize("mixed", [True, False], ids=["autocast", "cast"])
@pytest.mark.parametrize("name", list(RECURRENT))
def test_recurrent_layers(name: str, mixed: bool, low: torch.dtype) -> None:
    if not runs_here(name, low, mixed):
        pytest.skip("this processor's oneDNN has no such kernel")
    check(functools.partial(recurrent, make=RECURRENT[name], mixed=mixed), low, within=1e-6)  # a float32 kernel for each, not always the same one


def test_packed_sequences() -> None:
    check(functools.partial(recurrent, make=RECURRENT["LSTM"], mixed=False, packed=True), within=1e-6)


HARD = """
import gc, torch, precheck
torch.manual_seed(0)
for hidden in (3, 16, 33):
    for low in (torch.bfloat16, torch.float32):
        layer = torch.nn.LSTM(7, hidden, 2).to(low)
        with precheck.watch() as report:
            for length in (1, 2, 5, 9) * 2:
                result, _ = layer(torch.randn(length, 3, 7).to(low))
                result.float().sum().backward()
                junk = [torch.empty(size) for size in (1, 65, 4097)]
        gc.collect()
        assert report.facts["opaque"] == {}, report.facts
"""


def test_workspaces_of_another_format_corrupt_no_memory() -> None:
    """oneDNN's LSTM hands bytes to its backward; replayed in float32 on bfloat16's bytes it overruns the heap, which kills the process.

    Eight rounds for each of six layers: the prototype died within three.
    """
    done = subprocess.run([sys.executable, "-c", HARD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
