"""cuBLAS's flags on and off: what a product of matrices gains in speed by them, and loses in digits; and that they are put back.

A CPU ignores them, which is asserted bit for bit. Times and drifts are written down (junit, -rP), with limits on the drifts alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from flags import PAIRS, SPLIT_K, drift, flag
from ratios import medians
from scale import ON_CUDA, sized_for

from precheck.formats import FP32, TF32, of_dtype
from precheck.observe.timing.clocks import clock_for

ONE_ROUNDING = 0.56
"""Relative L2 in unit roundoffs: 0.34 to 0.56 over the kernels that sum in float32 and round once (measured; numerics, section 1.3)."""
SUMMED_LOW = 5.0
"""1 + ½√n for a sum of n parts in the low format (the same section), of the 64 parts that a split-K kernel may have."""
REASSOCIATED = 3**-0.5 / 2**0.5
"""float32's own, in its roundoffs, times the root of the terms. Additions one after another round partial sums, whose squares grow with their number,
and a rounding has a third of a roundoff's square at most. Measured on an H200: 19.2 for 4096 terms, where this allows 26."""
TF32_OPERANDS = 4.0
"""Of tf32's roundoffs: two operands rounded are 0.6, two operands cut off, which is twice as far and all one way, are under 4."""

FLAGS = {
    "allow_bf16_reduced_precision_reduction": torch.bfloat16,
    "allow_fp16_reduced_precision_reduction": torch.float16,
    "allow_fp16_accumulation": torch.float16,
    "allow_tf32": torch.float32,
}


def state() -> list[bool]:
    matmul = torch.backends.cuda.matmul
    return [getattr(matmul, name) for name in (*FLAGS, *(each + SPLIT_K for each in FLAGS if PAIRS and each.endswith("reduction")))]


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    before = state()
    yield
    assert state() == before


@pytest.mark.parametrize("name", list(FLAGS))
@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_flag_is_put_back_to_what_it_was(name: str, value: bool, fails: bool) -> None:
    with contextlib.suppress(KeyError) if fails else contextlib.nullcontext(), flag(name, value):
        assert getattr(torch.backends.cuda.matmul, name) is value
        if fails:
            raise KeyError


@pytest.mark.skipif(not PAIRS, reason="this torch has no flags in pairs")
def test_a_flag_that_is_a_pair_comes_back_as_one() -> None:
    matmul, name = torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"
    before = getattr(matmul, name), getattr(matmul, name + SPLIT_K)
    try:
        setattr(matmul, name, (False, False))
        with flag(name, True):
            pass
        assert (getattr(matmul, name), getattr(matmul, name + SPLIT_K)) == (False, False)
    finally:
        setattr(matmul, name, before)


@pytest.mark.parametrize("deep", [False, True], ids=["square", "deep"])
@pytest.mark.parametrize("name", list(FLAGS))
def test_a_product_with_the_flag_and_without(
    name: str, deep: bool, device: torch.device, record_property: Callable[[str, object], None]
) -> None:
    rows, inner = (16, sized_for(256, 65536)) if deep else (sized_for(64, 4096),) * 2
    dtype = FLAGS[name]
    left, right = (torch.randn(shape, device=device).to(dtype) for shape in ((rows, inner), (inner, rows)))

    def product(value: bool) -> torch.Tensor:
        with flag(name, value):
            return left @ right

    def lost(value: bool) -> float:
        with flag(name, value):
            return drift(left, right, of_dtype(dtype))

    seconds = medians({"on": lambda: product(True), "off": lambda: product(False)}, sized_for(1, 20), clock_for(device))
    on, off = lost(True), lost(False)
    told = f"{seconds['off'] / seconds['on']:.2f}x faster with it; drift {on:.3g} with it, {off:.3g} without, in roundoffs of {of_dtype(dtype).name}"
    record_property(f"{name}_{'deep' if deep else 'square'}", told)
    print(f"{name}, {rows} x {inner} x {rows} on {device}: {told}")
    assert off <= (ONE_ROUNDING + REASSOCIATED * inner**0.5 if dtype is torch.float32 else ONE_ROUNDING)
    if not ON_CUDA:
        assert torch.equal(product(True), product(False)), "flags of CUDA's changed what a CPU computes"
    elif name == "allow_tf32":
        assert on <= TF32_OPERANDS * TF32.unit_roundoff / FP32.unit_roundoff
    elif name.endswith("reduction"):
        assert on <= SUMMED_LOW
