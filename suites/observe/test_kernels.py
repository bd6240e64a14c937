"""The fused kernel beside torch's own ops: on a GPU where there is one, else run by Triton's interpreter in a process of its own."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

from precheck.observe.recording import reduce
from precheck.observe.recording.sketch import BLOCK

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton here: pip install triton")
running = pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="run by test_in_the_interpreter")


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
def test_in_the_interpreter() -> None:
    """Which Triton chooses when it is imported."""
    command = [sys.executable, "-m", "pytest", __file__, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(LENGTHS) * len(DTYPES) + len(SAMPLES) + 3} passed, 3 skipped" in done.stdout


def normal(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with nothing proven yet, and what it was asked for."""
    found = importlib.import_module("precheck.observe.recording.triton_kernel")
    monkeypatch.setattr(found, "_proven", {})
    return found


LENGTHS = [0, 1, 127, 128, BLOCK, 3 * BLOCK + 5000, 8 * 16 * 127 * 3 + 1]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@running
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_it_tells_is_what_torch_finds(kernels: Any, length: int, dtype: torch.dtype) -> None:
    """To the rounding of float64 sums; counts and magnitudes exactly."""
    values = normal(length).to(dtype)
    values[2::50] = 0
    values[10:15] = torch.tensor([math.nan, math.inf, math.inf, -math.inf, 0.0])[: max(0, length - 10)].to(dtype)
    here, there = reduce.reduced(values.double()), reduce.as_reduced(kernels.numbers(values.to(DEVICE)).cpu())
    assert there["norm"] == pytest.approx(here["norm"], rel=1e-12)
    assert numpy.allclose(there["sketch"], here["sketch"], rtol=0, atol=1e-12 * here["norm"])
    assert {name: there[name] for name in ("amax", "zeros")} == {name: here[name] for name in ("amax", "zeros")}
    assert [there[name] for name in ("nan", "posinf", "neginf")] == [here.get(name, 0) for name in ("nan", "posinf", "neginf")]


SAMPLES = ["", "folded", "alone"]


@running
@pytest.mark.parametrize("sample", SAMPLES)
def test_it_is_what_a_record_is_made_by(kernels: Any, sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = normal(20 * BLOCK + 77).bfloat16().to(DEVICE)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "proven", lambda device, dtype, plain: False)
        plain = reduce.numbers(values, sample)
    asked: list[int] = []
    monkeypatch.setattr(kernels, "numbers", lambda values, run=kernels.numbers: asked.append(values.numel()) or run(values))
    assert torch.allclose(reduce.numbers(values, sample), plain, rtol=1e-6, atol=1e-6)
    assert kernels._proven == {(values.device, torch.bfloat16): True}
    assert asked[0] == 2 * BLOCK + 300  # what it proves itself on
    assert sum(asked[1:]) == {"": values.numel(), "folded": values.numel() + reduce.SAMPLE, "alone": reduce.SAMPLE}[sample]


@running
def test_one_that_is_wrong_is_not_used(kernels: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(kernels, "numbers", lambda values, run=kernels.numbers: run(values) * 1.001)
    values = normal(1000)
    assert reduce.as_reduced(reduce.numbers(values.to(DEVICE)).cpu())["norm"] == pytest.approx(reduce.reduced(values)["norm"], rel=1e-12)
    assert "the fused kernel is wrong for torch.float32 on" in caplog.text
    assert kernels._proven == {(values.to(DEVICE).device, torch.float32): False}


@running
def test_nor_is_one_that_does_not_compile(kernels: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def broken(values: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("ptxas died")

    monkeypatch.setattr(kernels, "numbers", broken)
    values = normal(1000)
    assert reduce.as_reduced(reduce.numbers(values.to(DEVICE)).cpu())["amax"] == float(values.abs().max())
    assert "torch's ops instead: ptxas died" in caplog.text


@running
def test_numbers_that_add_up_beyond_float32(kernels: Any) -> None:
    """Squares of 1e30 are 1e60."""
    values = torch.full((5000,), 1e30).to(DEVICE)
    assert reduce.as_reduced(kernels.numbers(values).cpu())["norm"] == pytest.approx(1e30 * math.sqrt(5000), rel=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Triton's own parser on Python 3.13
@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")
@pytest.mark.parametrize(("kind", "double"), [("*bf16", False), ("*fp64", True)])
def test_it_compiles_for_a_gpu_where_there_is_none(kind: str, double: bool) -> None:
    """The interpreter runs what the compiler refuses, such as an annotation that is no constant of Triton's."""
    from triton import compile as compiled
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from precheck.observe.recording import triton_kernel

    tensors = {"values": kind, "t": "*i8", "v": "*i8", "w": "*i8", "partial": "*fp64", "count": "i32"}
    constants = {"ROWS": triton_kernel._ROWS, "TILES": triton_kernel._TILES[0], "DOUBLE": double}
    source = ASTSource(triton_kernel._pass, signature=tensors | dict.fromkeys(constants, "constexpr"), constexprs=constants)
    assert compiled(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"]
