"""The twenty-ninth frozen set, fifth part: kernels of Triton, broken ones and two that are healthy.

They are there where Triton interprets (TRITON_INTERPRET=1), and in float32 alone, as bfloat16 is not judged there.
"""

from __future__ import annotations

import os

import torch
from cases import case, drawn, need, rewrite, shapes, wide

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"

if os.environ.get("TRITON_INTERPRET") == "1":
    import triton
    import triton.language as tl

    @triton.jit
    def _squares(x, out, columns, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row, places, total = tl.program_id(0), tl.arange(0, BLOCK), 0.0
        for begin in range(0, columns, BLOCK):
            part = tl.load(x + row * stride + begin + places, mask=begin + places < columns, other=0.0).to(tl.float32)
            total += tl.sum(part * part, 0)
        tl.store(out + row, total)

    @case("sums of squares of rows, in Triton: a row begins where the one before ends", "kernel-stride", PROGRAM,
          lambda x: x.detach().square().sum(1), drawn((5, 11)))  # fmt: skip
    def where_the_one_before_ends(wrong: bool, x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        x = x.detach()
        x = x if wrong and x.stride(1) == 1 else x.contiguous()
        out = torch.zeros(len(x), dtype=x.dtype)
        if x.numel():
            _squares[(len(x),)](x, out, x.shape[1], x.shape[1] if wrong else x.stride(0), 8)
        return out

    @triton.jit
    def _gate(x, out, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + places, mask=places < size).to(tl.float32)
        tl.store(out + places, values / (1 + tl.exp(-values)), mask=places < size)

    @case("silu in blocks of sixteen, in Triton: as many as are full", "kernel-edge", PROGRAM, lambda x: F.silu(x.detach()), drawn((4, 8)))
    def as_many_as_are_full(wrong: bool, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().contiguous()
        out = torch.zeros_like(x)
        blocks = x.numel() // 16 if wrong else triton.cdiv(x.numel(), 16)
        if blocks:
            _gate[(blocks,)](x, out, x.numel(), 16)
        return out

    @triton.jit
    def _shares(x, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row, places = tl.program_id(0), tl.arange(0, BLOCK)
        top, total = -float("inf"), 0.0
        for begin in range(0, columns, BLOCK):
            part = tl.load(x + row * columns + begin + places, mask=begin + places < columns, other=-float("inf")).to(tl.float32)
            new = tl.maximum(top, tl.max(part, 0))
            total = total * tl.exp(top - new) + tl.sum(tl.exp(part - new), 0)
            top = new
        for begin in range(0, columns, BLOCK):
            inside = begin + places < columns
            part = tl.load(x + row * columns + begin + places, mask=inside).to(tl.float32)
            tl.store(out + row * columns + begin + places, tl.exp(part - top) / total, mask=inside)

    @rewrite("softmax in two passes of eight columns, in Triton", wide(lambda x: x.detach().softmax(1)), shapes((4, 13)), gradients=False)
    def two_passes_of_eight(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            _shares[(len(x),)](x, out, x.shape[1], 8)
        return out

    @rewrite("silu in blocks of sixteen, in Triton", wide(lambda x: F.silu(x.detach())), shapes((3, 9)), gradients=False)
    def blocks_of_sixteen(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            _gate[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), 16)
        return out
