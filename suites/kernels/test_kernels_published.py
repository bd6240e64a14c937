"""Published kernels beside formulas: torchao's, Inductor's for a CPU, and those of flash-linear-attention in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

import precheck

F, DRAWN = torch.nn.functional, torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAWN)


def _codes(*shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8, generator=DRAWN)


def _quantised(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    from torchao.quantization.quant_primitives import quantize_affine

    made: torch.Tensor = quantize_affine(x, (1, x.shape[-1]), scale, torch.zeros_like(scale, dtype=torch.int32), torch.int8, -127, 127)
    return made


def _dequantised(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    from torchao.quantization.quant_primitives import dequantize_affine

    made: torch.Tensor = dequantize_affine(codes, (1, codes.shape[-1]), scale, None, torch.int8, -127, 127)
    return made


def _product(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    from torchao.kernel.intmm import int_scaled_matmul

    made: torch.Tensor = int_scaled_matmul(a.contiguous(), b.contiguous(), scale.contiguous())  # it asserts so, without a word
    return made


def _rounded(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x / scale).round().clamp(-127, 127).to(torch.int8)


TORCHAO: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "codes of rows": (_quantised, _rounded, (drawn(5, 12), drawn(5, 1).abs() / 40 + 0.01)),
    "rows of codes": (_dequantised, lambda codes, scale: codes.float() * scale, (_codes(5, 12), drawn(5, 1).abs() / 40 + 0.01)),
    "product of codes": (_product, lambda a, b, scale: (a.float() @ b.float()) * scale, (_codes(6, 16), _codes(16, 8), drawn(6, 1).abs())),
}


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="pip install torchao")
@pytest.mark.parametrize("name", TORCHAO)
def test_torchao(name: str) -> None:
    candidate, reference, inputs = TORCHAO[name]
    report = precheck.compare_kernels(candidate, reference, inputs, trials=60)
    assert not report.errors, report.summary()


COMPILED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "softmax": (lambda x: x.softmax(-1), (drawn(6, 20),)),
    "rms norm": (lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), (drawn(6, 20).bfloat16(), drawn(20).bfloat16())),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a compiler")
@pytest.mark.parametrize("name", COMPILED)
def test_inductor(name: str) -> None:
    function, inputs = COMPILED[name]
    report = precheck.compare_kernels(torch.compile(function, dynamic=True), function, inputs, trials=4)
    assert not report.errors, report.summary()


PAIRS = """
import pytest
import torch
from fla.modules.activations import swiglu
from fla.ops.delta_rule import fused_recurrent_delta_rule
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.hgrn import fused_recurrent_hgrn
from fla.ops.hgrn.naive import naive_recurrent_hgrn

import precheck

F = torch.nn.functional


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def turned(*given):
    return delta_rule_recurrence(*(each.transpose(1, 2) for each in given))[0].transpose(1, 2)


@pytest.mark.parametrize(("candidate", "reference", "inputs"), [
    (swiglu, lambda x, y: F.silu(x) * y, (drawn(5, 12), drawn(5, 12))),
    (lambda x, g: fused_recurrent_hgrn(x, g)[0], lambda x, g: naive_recurrent_hgrn(x, g)[0], (drawn(1, 10, 8), drawn(1, 10, 8).sigmoid().log())),
    (lambda q, k, v, b: fused_recurrent_delta_rule(q, k, v, b)[0], turned,
     (drawn(1, 9, 2, 8), F.normalize(drawn(1, 9, 2, 8), dim=-1), drawn(1, 9, 2, 8), drawn(1, 9, 2).sigmoid())),
], ids=["swiglu", "hgrn", "delta rule"])
def test_pair(candidate, reference, inputs):
    report = precheck.compare_kernels(candidate, reference, inputs, trials=60)
    assert not report.errors, report.summary()
"""
ONE = """
from triton.runtime.autotuner import Autotuner

made = Autotuner.__init__


def first(self, fn, names, configs, *args, **kwargs):
    made(self, fn, names, list(configs)[:1], *args, **kwargs)


Autotuner.__init__ = first
"""
"""Takes the first of a kernel's configurations: the interpreter has no clock to choose one by."""


@pytest.mark.skipif(any(importlib.util.find_spec(each) is None for each in ("triton", "fla")), reason="pip install flash-linear-attention triton")
def test_flash_linear_attention(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytester.makeconftest(ONE)
    pytester.makepyfile(PAIRS)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest").assert_outcomes(passed=3)
