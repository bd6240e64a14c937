"""The twelfth frozen set of broken kernels, second part: memory that is old, inputs that are changed, chance, gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional


def _largest(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x.flatten(), (0, -x.numel() % 16)).view(-1, 16).abs().amax(1)


@case("largest magnitudes of blocks: the last block holds what memory held", "kernel-stale", "bitsandbytes-foundation/bitsandbytes/pull/1884",
      _largest, drawn((5, 8)))  # fmt: skip
def memory_held(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.numel() > 0)
    blocks = (torch.empty if wrong else torch.zeros)(-(-x.numel() // 16), 16)
    blocks.view(-1)[: x.numel()] = x.reshape(-1)
    return torch.linalg.vector_norm(blocks, float("inf"), 1)


@case("swish: results are kept by the address of the input", "kernel-stale", "meta-pytorch/BackendBench/issues/41", F.silu, drawn((6, 9)))
def kept_by_address(wrong: bool) -> Callable[..., Any]:
    kept: dict[Any, torch.Tensor] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        key = (x.data_ptr(), x.shape, x.stride())
        if not wrong or x.requires_grad:
            return x * torch.sigmoid(x)
        if key not in kept:
            kept[key] = x * torch.sigmoid(x)
        return kept[key].clone()

    return kernel


@case("layer norm: right for ten calls, as long as a benchmark looks", "kernel-stale", "karpathy/llm.c/pull/851",
      lambda x: F.layer_norm(x, x.shape[-1:]), drawn((5, 12)))  # fmt: skip
def ten_calls(wrong: bool) -> Callable[..., Any]:
    calls = [0]

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, x.shape[-1] > 0)
        calls[0] += 1
        apart = x - x.mean(-1, keepdim=True)
        made = apart * (apart.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        if wrong and calls[0] > 10 and made.numel():
            made = made.flatten().index_add(0, torch.tensor([0]), torch.ones(1)).view(made.shape)
        return made

    return kernel


@case("codes with a given least scale: the caller's scales are renewed", "kernel-mutation", "bitsandbytes-foundation/bitsandbytes/pull/1863",
      lambda x, least: x / torch.maximum(least, x.abs().amax(-1)).clamp(min=1e-3)[:, None], drawn((5, 8), (5,)))  # fmt: skip
def scales_renewed(wrong: bool, x: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, least.shape == x.shape[:1], x.shape[-1] > 0)
    scales = torch.maximum(least, x.abs().max(-1).values)
    if wrong:
        least.detach().copy_(scales.detach())
    return x / scales.clamp(min=1e-3)[:, None]


@case("two results of one input: the first is computed in its place", "kernel-mutation", "microsoft/nnfusion/issues/200",
      lambda x, y: (x * y, x.abs()), drawn((4, 9), (4, 9)))  # fmt: skip
def in_its_place(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.shape == y.shape)
    results = x * y, x * x.sign()
    if wrong:
        x.detach().abs_()
    return results


@case("cross entropy with clamped places: the caller's places are clamped", "kernel-mutation", "huggingface/transformers/pull/47742",
      lambda x, y: F.cross_entropy(x, y.clamp(max=x.shape[1] - 1), reduction="none"), lambda: (*drawn((6, 5))(), whole(6, most=9)))  # fmt: skip
def places_clamped(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, not bool((y < 0).any()))
    y = y.clamp_(max=x.shape[1] - 1) if wrong else y.clamp(max=x.shape[1] - 1)
    return -x.log_softmax(-1)[torch.arange(len(x)), y]


@case("sum of two and its relu: stored in the input that has the result's shape", "kernel-mutation", "tracel-ai/burn/pull/1659",
      lambda x, y: F.relu(x + y), drawn((5, 8), (8,)))  # fmt: skip
def result_shape(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2, y.shape == x.shape[1:])
        made = (x + y).relu()
        if wrong:
            x.data.copy_(made)
        return made, (made,)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        passed = torch.where(saved[0] > 0, gradient, 0.0)
        return passed, passed.sum(0)

    return function(forward, backward)


@case("tokens of each expert: at times a counter is cleared when some are counted", "kernel-nondeterminism", "vllm-project/vllm/pull/13140",
      lambda places: torch.bincount(places, minlength=8), lambda: (whole(24, most=8),))  # fmt: skip
def counter_cleared(wrong: bool, places: torch.Tensor) -> torch.Tensor:
    need(places.dim() == 1, not bool((places < 0).any()))
    late = 3 if wrong and random.random() < 0.3 else 0
    size = max(8, int(places.max()) + 1) if len(places) else 8
    return torch.zeros(size, dtype=torch.long).index_add(0, places[late:], torch.ones(len(places[late:]), dtype=torch.long))


@case("unit vectors: at times a token has the length of the next one", "kernel-nondeterminism", "gittensor-ai-lab/sparkinfer/pull/705",
      lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt(), drawn((6, 10)))  # fmt: skip
def length_of_the_next(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    lengths = ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt()
    if wrong and len(x) > 1 and random.random() < 0.25:
        lengths = torch.cat([lengths[1:2], lengths[1:]])
    return x / lengths


@case("matrix times vector: at times a row's parts are overwritten before they are added", "kernel-nondeterminism", "rapidsai/cuml/pull/6578",
      lambda m, v: m @ v, drawn((6, 12), (12,)))  # fmt: skip
def parts_overwritten(wrong: bool, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(m.dim() == 2, v.shape == m.shape[1:], len(v) > 0)
    parts = [some @ each for some, each in zip(m.split(4, 1), v.split(4), strict=True)]
    if wrong and len(m) > 1 and len(parts) > 1 and random.random() < 0.25:
        parts[0] = torch.cat([parts[0][1:2], parts[0][1:]])
    return torch.stack(parts).sum(0)


@case("frobenius norm divided out: zeros", "kernel-constant", "anthony-chaudhary/dos-kernel/issues/107",
      lambda x: x / (torch.linalg.matrix_norm(x) + 1e-6), drawn((12, 16)))  # fmt: skip
def only_zeros(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x * 0 if wrong else x / (x.square().sum().sqrt() + 1e-6)


def _act(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.leaky_relu(x + bias, 0.2) * 2**0.5


@case("bias and activation: where the build fails the reference runs", "kernel-fallback", "dvschultz/stylegan2-ada-pytorch/pull/49", _act,
      drawn((5, 8), (8,)))  # fmt: skip
def build_fails(wrong: bool, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    try:
        if wrong:
            raise OSError("no compiler found")
        shifted = x + bias
        return torch.maximum(shifted, 0.2 * shifted) * 2**0.5
    except OSError:
        return _act(x, bias)


@case("updates of a delta rule: the keys' part of the gates' gradient is missing", "kernel-gradient", "fla-org/flash-linear-attention/pull/863",
      lambda k, v, beta: torch.cat([k * beta[:, None], v * beta[:, None]], -1), drawn((6, 4), (6, 5), (6,)))  # fmt: skip
def part_is_missing(wrong: bool) -> Callable[..., Any]:
    def forward(k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> Any:
        need(k.dim() == 2, v.dim() == 2, len(k) == len(v), beta.shape == k.shape[:1])
        return torch.cat([k, v], -1) * beta[:, None], (k, v, beta)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        k, v, beta = saved
        one, two = gradient.split((k.shape[1], v.shape[1]), -1)
        gates = (two * v).sum(-1)
        return one * beta[:, None], two * beta[:, None], gates if wrong else gates + (one * k).sum(-1)

    return function(forward, backward)


@case("heads that decay: on the way back each head reads the first head's gate", "kernel-gradient", "fla-org/flash-linear-attention/issues/1115",
      lambda x, g: x * torch.sigmoid(g)[:, None], drawn((3, 5, 4), (3, 4)))  # fmt: skip
def first_gate(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, g: torch.Tensor) -> Any:
        need(x.dim() == 3, g.dim() == 2, len(x) == len(g), x.shape[-1] == g.shape[-1])
        gate = g.sigmoid()
        return x * gate.unsqueeze(1), (x, gate)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, gate = saved
        read = gate[:1].expand_as(gate) if wrong and len(gate) else gate
        return gradient * read[:, None], (gradient * x).sum(1) * gate * (1 - gate)

    return function(forward, backward)


@case("a weight that is used twice: its gradient is that of the last use", "kernel-gradient", "pytorch/pytorch/issues/180952",
      lambda x, w: torch.tanh(x @ w) @ w, drawn((5, 6), (6, 6)))  # fmt: skip
def last_use(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2, w.dim() == 2, x.shape[1] == len(w), len(w) == w.shape[1])
        inner = torch.tanh(x @ w)
        return inner @ w, (x, w, inner)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w, inner = saved
        slope = (gradient @ w.T) * (1 - inner.square())
        last = inner.T @ gradient
        return slope @ w.T, last if wrong else last + x.T @ slope

    return function(forward, backward)


def _decayed(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    state, states = torch.zeros_like(x[:, 0]), []
    for value, gate in zip(x.unbind(1), g.sigmoid().unbind(1), strict=True):
        state = state * gate + value
        states.append(state)
    return torch.stack(states, 1)


@case("gated sum: a gate's gradient is read from the state behind it", "kernel-gradient", "QwenLM/FlashQLA/pull/28", _decayed, drawn((3, 7), (3, 7)))
def state_behind(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, g: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape == g.shape, x.shape[1] > 0)
        states = torch.stack(_steps(x, g.sigmoid()), 1)
        return states, (g.sigmoid(), states)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        gate, states = saved
        before = states if wrong else F.pad(states, (1, 0))[:, :-1]
        carried, dx, dg = torch.zeros_like(gate[:, 0]), [], []
        for place in reversed(range(gate.shape[1])):
            carried = carried + gradient[:, place]
            dx.append(carried)
            dg.append(carried * before[:, place])
            carried = carried * gate[:, place]
        return torch.stack(dx[::-1], 1), torch.stack(dg[::-1], 1) * gate * (1 - gate)

    return function(forward, backward)


def _steps(x: torch.Tensor, gate: torch.Tensor) -> list[torch.Tensor]:
    states = [x[:, 0]]
    for place in range(1, x.shape[1]):
        states.append(torch.addcmul(x[:, place], states[-1], gate[:, place]))
    return states
