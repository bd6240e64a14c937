"""What it costs to judge ordinary operations with the default budget, in processor seconds of all threads.

    python suites/kernels/ordinary.py             # prints the table of README.md, in some ten minutes
    python suites/kernels/ordinary.py softmax     # those whose name has this
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import precheck

F = torch.nn.functional


def _softmax(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    powers = (wide - wide.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    apart = wide - wide.mean(-1, keepdim=True)
    return (apart * (apart.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.float() + bias.float()).to(x.dtype)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.float()).to(x.dtype)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


def _cross_entropy(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    most = wide.amax(-1, keepdim=True)
    sums = (wide - most).exp().sum(-1).log() + most[:, 0]
    return (sums - wide.gather(1, labels[:, None])[:, 0]).mean().to(x.dtype)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat([-two, one], -1) * sin


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] % 2:
        raise ValueError("an even width is needed")
    one, two = x.float().chunk(2, -1)
    (c1, c2), (s1, s2) = cos.float().chunk(2, -1), sin.float().chunk(2, -1)
    return torch.cat([one * c1 - two * s1, two * c2 + one * s2], -1).to(x.dtype)


def _swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    wide = gate.float()
    return (wide * wide.sigmoid() * x.float()).to(x.dtype)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    half = a.shape[1] // 2
    return (a[:, :half].float() @ b[:half].float() + a[:, half:].float() @ b[half:].float()).to(a.dtype)


ORDINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "softmax": (_softmax, lambda x: x.softmax(-1), ((2048, 4096),)),
    "layer norm": (_layer_norm, lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), ((4096, 2048), (2048,), (2048,))),
    "rms norm": (_rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), ((4096, 2048), (2048,))),
    "attention": (_attention, F.scaled_dot_product_attention, ((8, 8, 256, 64),) * 3),
    "cross entropy": (_cross_entropy, F.cross_entropy, ((2000, 32_000),)),
    "rotary": (_rotary, _turned, ((4, 16, 512, 64), (512, 64), (512, 64))),
    "swiglu": (_swiglu, lambda x, gate: F.silu(gate) * x, ((2048, 5632), (2048, 5632))),
    "matmul": (_matmul, torch.matmul, ((512, 512), (512, 512))),
}
"""A correct kernel, its reference, and the shapes of the example."""


def main() -> None:
    warnings.simplefilter("ignore")
    print("| operation | format | processor seconds | seconds | trials | kinds not tried | verdict |", "| --- " * 7 + "|", sep="\n", flush=True)
    for name, (candidate, reference, shapes) in ORDINARY.items():
        for dtype in (torch.float32, torch.bfloat16):
            if len(sys.argv) > 1 and sys.argv[1] not in name:
                continue
            generator = torch.Generator().manual_seed(0)
            inputs = tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
            if name == "cross entropy":
                inputs = (*inputs, torch.randint(shapes[0][1], shapes[0][:1], generator=generator))
            begun, processor = time.monotonic(), time.process_time()
            report = precheck.compare_kernels(candidate, reference, inputs)
            used, spent = time.process_time() - processor, time.monotonic() - begun
            untried = ", ".join(report.facts.get("not_tried", ())) or "none"
            row = (f"{name}, {shapes[0]}", str(dtype)[6:], f"{used:.0f}", f"{spent:.0f}", report.facts["trials"], untried, report.verdict)
            print("", *row, "", sep=" | ", flush=True)


if __name__ == "__main__":
    main()
