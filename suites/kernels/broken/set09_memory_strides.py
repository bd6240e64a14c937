"""The ninth frozen set of broken kernels, second part: memory that is old, inputs that are changed, strides, gradients.

One class was mended: rows that are not written in large sizes alone are an edge, as in the fourth set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed

F = torch.nn.functional


@case("relu6: as many elements as the first call had", "kernel-stale", "JuliaGPU/CUDAnative.jl/issues/297", F.relu6, drawn((6, 10)))
def first_length(wrong: bool) -> Callable[..., Any]:
    held: dict[str, int] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1)
        length = held.setdefault("length", len(flat)) if wrong else len(flat)
        return torch.cat([flat[:length].clamp(0, 6), flat[length:]]).view(x.shape)

    return kernel


@case("shares by sigmoids: rows behind the 64th are never written", "kernel-edge", "kvcache-ai/sglang/pull/68",
      lambda x: x.sigmoid() / x.sigmoid().sum(-1, keepdim=True), drawn((20, 7)))  # fmt: skip
def never_written(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2 and x.shape[1])
        shares = x.sigmoid()
        shares = shares / shares.sum(-1, keepdim=True)
        made = torch.empty_like(x)
        some = slice(0, 64 if wrong else len(x))
        made[some] = shares[some]
        return made, (x, shares)

    def backward(saved: Any, gradient: torch.Tensor) -> torch.Tensor:
        x, shares = saved
        return (gradient - (gradient * shares).sum(-1, keepdim=True)) * shares * (1 - x.sigmoid())

    return function(forward, backward)


@case("softmax: a result is kept, and found again by the input's shape and first number", "kernel-stale",
      "flashinfer-ai/flashinfer-bench-starter-kit/issues/21", lambda x: x.softmax(-1), drawn((6, 12)))  # fmt: skip
def found_again(wrong: bool) -> Callable[..., Any]:
    held: dict[Any, torch.Tensor] = {}

    def forward(x: torch.Tensor) -> Any:
        need(x.dim() and x.shape[-1] and x.numel())
        key = (x.shape, float(x.reshape(-1)[0]))
        if not wrong or key not in held:
            powers = (x - x.amax(-1, keepdim=True)).exp()
            held[key] = powers / powers.sum(-1, keepdim=True)
        return held[key].clone(), (held[key].clone(),)

    def backward(saved: Any, gradient: torch.Tensor) -> torch.Tensor:
        (shares,) = saved
        return (gradient - (gradient * shares).sum(-1, keepdim=True)) * shares

    return function(forward, backward)


@case(
    "gate: its gradient is memory that nobody wrote",
    "kernel-stale",
    "state-spaces/mamba/issues/342",
    lambda x, z: x * F.silu(z),
    drawn((5, 9), (5, 9)),
)
def nobody_wrote(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, z: torch.Tensor) -> Any:
        need(x.shape == z.shape)
        return x * z * z.sigmoid(), (x, z)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, z = saved
        open_ = z.sigmoid()
        made = torch.empty_like(z)
        if not wrong:
            made.copy_(gradient * x * open_ * (1 + z * (1 - open_)))
        return gradient * z * open_, made

    return function(forward, backward)


def _chosen() -> tuple[torch.Tensor, ...]:
    return *drawn((7, 6), (4, 6, 5))(), torch.tensor([0, 3, 3, 1, 0, 3, 1])


@case("experts: the gradient of one that has no row is never written", "kernel-stale", "meta-pytorch/MSLK/pull/158",
      lambda x, w, to: torch.einsum("ri,rio->ro", x, w[to]), _chosen)  # fmt: skip
def no_row(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor, to: torch.Tensor) -> Any:
        need(x.dim() == 2 and w.dim() == 3 and to.shape == x.shape[:1] and x.shape[1] == w.shape[1])
        made = torch.zeros(len(x), w.shape[2])
        for number, each in enumerate(w):
            made[to == number] = x[to == number] @ each
        return made, (x, w, to)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w, to = saved
        dw = torch.empty_like(w) if wrong else torch.zeros_like(w)
        for number in to.unique().tolist():
            dw[number] = x[to == number].T @ gradient[to == number]
        return torch.einsum("ro,rio->ri", gradient, w[to]), dw, None

    return function(forward, backward)


@case("rows turned over: a copy was spared, and source and target are one", "kernel-mutation", "pytorch/pytorch/issues/198031",
      lambda x: x.flip(0), drawn((7, 5)))  # fmt: skip
def copy_spared(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim())
        made = x.detach() if wrong else torch.empty_like(x)
        for row in range(len(x)):
            made[len(x) - 1 - row] = x[row]
        return made.clone(), ()

    return function(forward, lambda saved, gradient: gradient.flip(0))


@case("product: the way back stores its gradient over the input", "kernel-mutation", "axolotl-ai-cloud/axolotl/pull/3892", torch.matmul,
      drawn((6, 8), (8, 5)))  # fmt: skip
def over_input(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2 and w.dim() == 2 and x.shape[1] == w.shape[0])
        return x @ w, (x, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w = saved
        dw = x.T @ gradient
        return (x.detach().copy_(gradient @ w.T).clone() if wrong else gradient @ w.T), dw

    return function(forward, backward)


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Heads, each divided by its length. Shape (tokens, heads, size)."""
    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


@case("rope by halves: queries that are a slice are read as if they were packed", "kernel-stride", "vllm-project/vllm/pull/17091",
      lambda x, cos, sin: x * cos[:, None] + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sin[:, None],
      drawn((6, 3, 8), (6, 8), (6, 8)))  # fmt: skip
def read_as_packed(wrong: bool, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and not (x.shape[2] % 2) and cos.shape == sin.shape and cos.shape == (x.shape[0], x.shape[2]))
    half, cos, sin = x.shape[2] // 2, cos[:, None], sin[:, None]
    read = as_if(x, packed(x.shape)) if wrong else x
    one, two = read[..., :half], read[..., half:]
    return torch.cat([one * cos[..., :half] - two * sin[..., :half], two * cos[..., half:] + one * sin[..., half:]], -1)


@case("rms norm's gradient: columns of the input are taken to lie side by side", "kernel-stride", "ByteDance-Seed/VeOmni/pull/958", scaled,
      drawn((6, 16), (16,)))  # fmt: skip
def side_by_side(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2 and x.shape[-1:] == w.shape and len(w))
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return x * scale * w, (x, w, scale)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w, scale = saved
        read = as_if(x, (x.stride(0), 1)) if wrong else x
        normed, given = read * scale, gradient * w
        return scale * (given - normed * (given * normed).mean(-1, keepdim=True)), (gradient * normed).sum(0)

    return function(forward, backward)


@case("queries and keys normalised in one: the strides of the queries' heads for both", "kernel-stride", "sgl-project/sglang/pull/20598",
      lambda q, k, w: (scaled(q, w), scaled(k, w)), drawn((5, 4, 8), (5, 2, 8), (8,)))  # fmt: skip
def strides_for_both(wrong: bool, q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(q.dim() == 3 and k.dim() == 3 and q.shape[2:] == w.shape and k.shape[2:] == w.shape and len(q) == len(k) and len(w))
    read = as_if(k, (k.stride(0), q.stride(1), k.stride(2))) if wrong else k
    return tuple(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w for x in (q, read))  # type: ignore[return-value]


def _labels() -> tuple[torch.Tensor, ...]:
    return *drawn((6, 11))(), torch.tensor([3, 10, 0, 7, 7, 1])


@case("cross entropy of each row: all gradients by the first row's", "kernel-gradient", "linkedin/Liger-Kernel/pull/680",
      lambda x, y: F.cross_entropy(x, y, reduction="none"), _labels)  # fmt: skip
def by_first(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2 and y.shape == x.shape[:1] and x.numel())
        logs = x.log_softmax(-1)
        return -logs.gather(1, y[:, None])[:, 0], (logs, y)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        logs, y = saved
        held = logs.exp()
        held[torch.arange(len(y)), y] -= 1
        return held * (gradient[0] if wrong else gradient[:, None]), None

    return function(forward, backward)


def _places() -> tuple[torch.Tensor, ...]:
    return *drawn((5, 7))(), torch.randint(0, 7, (5, 6), generator=torch.Generator().manual_seed(5))


@case(
    "gather: of places named twice the last gradient is kept",
    "kernel-gradient",
    "pytorch/pytorch/issues/1631",
    lambda x, at: x.gather(1, at),
    _places,
)
def last_kept(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, at: torch.Tensor) -> Any:
        need(x.dim() == 2 and at.dim() == 2 and len(at) <= len(x))
        return x.take_along_dim(at, 1) if len(x) == len(at) else x.gather(1, at), (x, at)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, at = saved
        made = torch.zeros_like(x)
        return (made.scatter_(1, at, gradient) if wrong else made.scatter_add_(1, at, gradient)), None

    return function(forward, backward)
