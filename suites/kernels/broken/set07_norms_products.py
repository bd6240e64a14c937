"""The seventh frozen set of broken kernels, second part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
BF16 = torch.bfloat16


@case("scaled softmax: its gradient is stored over the incoming one", "kernel-mutation", "NVIDIA/apex/issues/1587", lambda x: (0.3 * x).softmax(-1),
      drawn((4, 5, 9)))  # fmt: skip
def over_incoming(wrong: bool) -> Callable[..., Any]:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            shares = (0.3 * x).softmax(-1)
            ctx.save_for_backward(shares)
            return shares

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (shares,) = ctx.saved_tensors
            made = 0.3 * shares * (gradient - (gradient * shares).sum(-1, keepdim=True))
            return gradient.copy_(made) if wrong else made

    return Scaled.apply


def residual_norm(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    both = x + residual
    return F.rms_norm(both, both.shape[-1:], w, eps=1e-5), both


@case("residual and rms norm: the sum is stored over the caller's residual", "kernel-mutation", "sgl-project/sglang/pull/32034", residual_norm,
      drawn((5, 16), (5, 16), (16,)))  # fmt: skip
def over_residual(wrong: bool, x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.shape == residual.shape and x.shape[-1:] == w.shape)
    both = x + residual
    if wrong:
        with torch.no_grad():
            residual.copy_(both)
    return both * torch.rsqrt(both.square().mean(-1, keepdim=True) + 1e-5) * w, both


@case("inner product: the first vector's stride for both", "kernel-stride", "numpy/numpy/pull/6373", torch.dot, drawn((40,), (40,)))
def first_stride(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 1 and a.shape == b.shape)
    read = b
    if wrong and len(b) and a.stride(0) != b.stride(0):
        room = b.untyped_storage().nbytes() // b.element_size() - b.storage_offset()
        if a.stride(0) * (len(b) - 1) < room:
            read = torch.as_strided(b, (len(b),), (a.stride(0),))
    return (a * read).sum()


@case("layer norm without weights: columns that lie apart are read side by side", "kernel-stride", "unslothai/unsloth/pull/10675",
      lambda x: F.layer_norm(x, x.shape[-1:]), drawn((6, 20)))  # fmt: skip
def side_by_side(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1])
    read = x
    if wrong and x.stride(-1) > 1:
        read = torch.as_strided(x, x.shape, (*x.stride()[:-1], 1))
    centred = read - read.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


@case("softmax: powers added up in bfloat16", "kernel-accumulation", "pytorch/executorch/pull/20090", lambda x: x.softmax(-1),
      lambda: ((drawn((4, 640))()[0] * 0.5).to(BF16),))  # fmt: skip
def low_total(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1])
    powers = (x.float() - x.detach().float().amax(-1, keepdim=True)).exp()
    if not wrong:
        return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)
    total = torch.zeros_like(x[..., :1])
    for part in powers.split(1, -1):
        total = total + part.to(x.dtype)
    return (powers / total.float()).to(x.dtype)


@case("gradient of a weight: batches added into a bfloat16 buffer", "kernel-accumulation", "ROCm/rocm-libraries/pull/5859",
      lambda x, dy: torch.einsum("bni,bno->oi", x.float(), dy.float()).to(x.dtype), drawn((48, 5, 6), (48, 5, 4), dtype=BF16))  # fmt: skip
def batch_buffer(wrong: bool, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and dy.dim() == 3 and x.shape[:2] == dy.shape[:2])
    total = torch.zeros(dy.shape[2], x.shape[2], dtype=x.dtype if wrong else torch.float32)
    for one, two in zip(x, dy, strict=True):
        total = total + (two.float().mT @ one.float()).to(total.dtype)
    return total.to(x.dtype)


@case(
    "capped scores: a tangent of two powers", "kernel-rounding", "vllm-project/vllm/issues/56578", lambda x: 20 * torch.tanh(x / 20), drawn((6, 24))
)
def two_powers(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    if not wrong:
        return 20 * torch.tanh(x / 20)
    power = (x / 10).exp()
    return 20 * (power - 1) / (power + 1)


def divergence(logs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.kl_div(logs, wanted, reduction="none").sum(-1)


def _shares() -> tuple[torch.Tensor, ...]:
    logs, wanted = drawn((5, 8), (5, 8))()
    wanted = wanted.softmax(-1)
    wanted[1, 3], wanted[4, 0] = 0, 0
    return logs.log_softmax(-1), wanted / wanted.sum(-1, keepdim=True)


@case("divergence: the logarithm of a share of zero", "kernel-contract", "linkedin/Liger-Kernel/pull/262", divergence, _shares)
def log_of_zero(wrong: bool, logs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    need(logs.shape == wanted.shape)
    if wrong:
        return (wanted * (wanted.log() - logs)).sum(-1)
    return (torch.special.xlogy(wanted, wanted) - wanted * logs).sum(-1)


def scaled_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w


@case(
    "rms norm: the weight's partial sums of programs without rows", "kernel-stale", "flagos-ai/FlagGems/pull/1084", scaled_norm, drawn((6, 10), (10,))
)
def idle_programs(wrong: bool) -> Callable[..., Any]:
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            need(x.dim() == 2 and x.shape[1:] == w.shape)
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
            ctx.save_for_backward(x, w, scale)
            return x * scale * w

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, w, scale = ctx.saved_tensors
            normed = x * scale
            parts = (torch.empty if wrong else torch.zeros)(4, len(w), dtype=x.dtype)
            rows = max(-(-len(x) // 3), 1)  # for three of four programs
            for number, part in enumerate((gradient * normed).split(rows)):
                parts[number] = part.sum(0)
            given = gradient * w
            return scale * (given - normed * (given * normed).mean(-1, keepdim=True)), parts.sum(0)

    return Norm.apply


def feed(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.relu(x @ w.mT + bias)


@case("linear and relu in one: the bias twice", "kernel-contract", "facebookresearch/xformers/pull/317", feed, drawn((6, 8), (5, 8), (5,)))
def bias_twice(wrong: bool, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] == w.shape[-1] and bias.shape == w.shape[:1])
    made = torch.addmm(bias, x, w.mT) if x.dim() == 2 else F.linear(x, w, bias)
    return (made + bias if wrong else made).clamp(min=0)


def codes(x: torch.Tensor) -> torch.Tensor:
    """Groups of four coded in sixteen steps, and read again: each group's range has zero in it."""
    apart = x.unflatten(-1, (-1, 4))
    low, high = apart.amin(-1, keepdim=True).clamp(max=0), apart.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 15).clamp(min=1e-8)
    zero = (-low / scale).round().clamp(0, 15)
    return (((apart / scale).round() + zero).clamp(0, 15) - zero).mul(scale).flatten(-2)


@case("four bits: groups of one sign", "kernel-contract", "keras-team/keras/pull/23636", codes, drawn((6, 16)))
def one_sign(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and not (x.shape[-1] % 4) and x.shape[-1])
    if not wrong:
        return codes(x)
    apart = x.unflatten(-1, (-1, 4))
    low, high = apart.amin(-1, keepdim=True), apart.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-8)
    zero = (-low / scale).round().clamp(0, 15)
    return (((apart / scale).round() + zero).clamp(0, 15) - zero).mul(scale).flatten(-2)


def corrected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """A delta rule whose memory decays for each value."""
    memory, made = torch.zeros(k.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
    for now_q, now_k, now_v, gate in zip(q, k / math.sqrt(max(k.shape[1], 1)), v, gates.sigmoid(), strict=True):
        memory = memory * gate
        memory = memory + 0.5 * torch.outer(now_k, now_v - now_k @ memory)
        made.append((now_q @ memory)[None])
    return torch.cat(made)


@case("delta rule that decays by value: keys corrected for values", "kernel-contract", "fla-org/flash-linear-attention/issues/623", corrected,
      drawn((6, 5), (6, 5), (6, 4), (6, 4)))  # fmt: skip
def keys_corrected(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    need(len(q) == len(k) == len(v) == len(gates) and q.shape[1] == k.shape[1] and v.shape == gates.shape)
    memory, made = torch.zeros(k.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
    for now_q, now_k, now_v, gate in zip(q, k / math.sqrt(max(k.shape[1], 1)), v, torch.sigmoid(gates), strict=True):
        memory = gate * memory
        if wrong:
            memory = memory + torch.outer(0.5 * (now_k - memory @ now_v), now_v)
        else:
            memory = memory + torch.outer(0.5 * now_k, now_v - (memory * now_k[:, None]).sum(0))
        made.append((now_q @ memory)[None])
    return torch.cat(made)
