"""Replays CUDA's fused attention kernels from their definition, since no float32 kernel returns the same tensors.

They compute softmax(Q Kᵀ · scale + bias) V on (batch, heads, length, width), as torch.nn.functional.scaled_dot_product_attention does.
The CPU's kernel accepts float32 and is not replayed here.

Rows that see nothing, such as those of padding on the left, are a decision of the run, and references follow it. A mask of the least float32 hides a
position if float32 absorbs the score that is added to it. In a row that hides all positions this way, float32 gives the mean of all values, whatever
the scores. In a low format the mask is -Inf, and fused kernels give zeros. Neither says anything about the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops

if TYPE_CHECKING:
    from precheck.observe.shadow.replaying.replay import OpCall


class Unfollowable(RuntimeError):
    """The result of a call cannot be computed from its arguments alone."""


def _scores(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float | None) -> torch.Tensor:
    factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query @ _repeated(key, query).transpose(-2, -1) * factor
    if causal:  # aligned to the upper left corner, as in torch
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores if bias is None else scores + bias


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = _scores(query, key, bias, causal, scale)
    return torch.softmax(scores, -1) @ _repeated(value, query), torch.logsumexp(scores, -1)


def _forward(op: OpCall) -> list[torch.Tensor]:
    given = _given(op)
    output, lse = _attended(given("query"), given("key"), given("value"), given("attn_bias"), bool(given("is_causal")), given("scale"))
    return [output, lse.unsqueeze(-1) if "cudnn" in op.plan.packet else lse]  # as cuDNN's kernel does


def _backward(op: OpCall) -> list[torch.Tensor]:
    given = _given(op)
    gradient = given("grad_out") if "grad_out" in op.plan.names else given("grad_out_")
    query, key, value, bias, scale = given("query"), given("key"), given("value"), given("attn_bias"), given("scale")
    factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    weights = torch.softmax(_scores(query, key, bias, bool(given("is_causal")), scale), -1)
    to_weights = gradient @ _repeated(value, query).transpose(-2, -1)
    to_scores = weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True))
    to_query = to_scores @ _repeated(key, query) * factor
    to_key = _summed(to_scores.transpose(-2, -1) @ query * factor, key)
    to_value = _summed(weights.transpose(-2, -1) @ gradient, value)
    to_bias = [to_scores.sum_to_size(bias.shape)] if isinstance(bias, torch.Tensor) and bias.is_floating_point() else []
    return [to_query, to_key, to_value, *to_bias]


def _given(op: OpCall) -> Callable[[str], Any]:
    """The arguments of a kernel by name. Raises Unfollowable if it drops weights."""
    if op.argument("dropout_p"):
        raise Unfollowable("attention with dropout keeps its mask to itself")
    return op.argument


def _repeated(shared: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values of grouped-query attention, repeated for each head of the query."""
    repeats = query.size(1) // shared.size(1)
    return shared.repeat_interleave(repeats, 1) if repeats > 1 else shared


def _summed(gradient: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """The gradient of keys or values, summed over their repetitions."""
    heads = shared.size(1)
    return gradient if gradient.size(1) == heads else gradient.unflatten(1, (heads, -1)).sum(2)


_KERNELS = ("flash", "efficient", "cudnn")
REPLAYED: dict[str, Callable[[OpCall], list[torch.Tensor]]] = {
    **{f"_scaled_dot_product_{kernel}_attention": _forward for kernel in _KERNELS},
    **{f"_scaled_dot_product_{kernel}_attention_backward": _backward for kernel in _KERNELS},
}

_MASKS = ("attn_mask", "attn_bias")


def unseeing_rows(call: OpCall) -> torch.Tensor | None:
    """The rows (..., queries, 1) that see nothing in a call of an attention kernel, or of its softmax. None if there are none."""
    name, along = _masked(call)
    if not name:
        return None
    rows: torch.Tensor = (call.argument(name) == -math.inf).all(along, keepdim=True)
    return None if rows.is_cpu and not bool(rows.any()) else rows  # other devices are not waited for


def without_rows(call: OpCall, rows: torch.Tensor) -> OpCall:
    """The call with -Inf in those rows in which its format absorbs every score."""
    name, along = _masked(call)
    mask = call.argument(name) if name else None
    if mask is None or rows.shape != mask.narrow(along, 0, 1).shape:
        return call
    changed = mask.masked_fill(rows & _absorbs(call, mask, along), -math.inf)
    args = tuple(changed if given == name else arg for given, arg in zip(call.plan.names, call.args, strict=False))
    return call._replace(args=args, kwargs={given: changed if given == name else value for given, value in call.kwargs.items()})


def _absorbs(call: OpCall, mask: torch.Tensor, along: int) -> torch.Tensor:
    """In which rows no score is left. Half a spacing of the mask is above the difference of any two, or all of a row with several are the same."""
    if call.base == "_safe_softmax":
        return (mask.amax(along, keepdim=True) == mask.amin(along, keepdim=True)) & (mask.shape[along] > 1)
    query, key, scale = (call.argument(name) for name in ("query", "key", "scale"))
    largest = query.norm(dim=-1).amax() * key.norm(dim=-1).amax() * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
    absorbing: torch.Tensor = mask.amax(along, keepdim=True) * (torch.finfo(mask.dtype).eps / 4) < -2 * largest.abs()
    return absorbing


def _masked(call: OpCall) -> tuple[str, int]:
    """The argument that hides positions, and its dimension of positions. "" if the call has none."""
    if call.base == "_safe_softmax":
        return "self", call.argument("dim")
    if call.base in ops.ATTENTION:
        for name in _MASKS:
            mask = call.argument(name)
            if isinstance(mask, torch.Tensor) and mask.is_floating_point():
                return name, -1
    return "", -1
