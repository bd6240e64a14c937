"""An eighth frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional


def penalised(scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen, torch.where(scores > 0, scores / 1.3, scores * 1.3), scores)


def _seen() -> tuple[torch.Tensor, ...]:
    return drawn((5, 14))()[0], torch.rand(5, 14, generator=torch.Generator().manual_seed(4)) < 0.5


@case("repetition penalty: scores below zero are divided too", "kernel-contract", "huggingface/transformers/issues/2302", penalised, _seen)
def divided(wrong: bool, scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    need(scores.shape == seen.shape)
    factor = torch.where(scores > 0, 1 / 1.3, 1 / 1.3 if wrong else 1.3)
    return scores * torch.where(seen, factor, 1.0)


def coded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


@case("eight bits for each row: the largest number, not the largest magnitude", "kernel-contract", "NVIDIA/TransformerEngine/pull/534", coded,
      drawn((6, 18)))  # fmt: skip
def not_magnitude(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() and x.shape[-1])
    most = x.amax(-1, keepdim=True)
    scale = (most if wrong else torch.maximum(most, -x.amin(-1, keepdim=True))).clamp(min=1e-6) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


def gated(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Shares of the two experts that are best with the bias, which only chooses."""
    shares = scores.sigmoid()
    chosen = shares.gather(-1, (shares + bias).topk(2, -1).indices)
    return chosen / chosen.sum(-1, keepdim=True)


@case("gate: shares with the bias that should only choose", "kernel-contract", "vllm-project/vllm/pull/12002", gated, drawn((7, 9), (9,)))
def biased_shares(wrong: bool, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(scores.dim() and scores.shape[-1] >= 2 and scores.shape[-1:] == bias.shape)
    shares = torch.sigmoid(scores)
    places = (shares + bias).sort(-1, descending=True).indices[..., :2]
    chosen = (shares + bias if wrong else shares).take_along_dim(places, -1)
    return chosen / chosen.sum(-1, keepdim=True)


def with_sums(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention, and the logarithms of the sums of its powers."""
    scores = q @ k.mT / math.sqrt(max(q.shape[-1], 1))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@case("attention and the logarithms of its sums: those are of base two", "kernel-contract", "ROCm/aotriton/pull/108", with_sums,
      drawn((2, 6, 8), (2, 10, 8), (2, 10, 7)))  # fmt: skip
def base_two(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(q.shape[:-2] == k.shape[:-2] and k.shape[:-1] == v.shape[:-1] and q.shape[-1] == k.shape[-1] and k.shape[-2])
    scores = q @ k.mT * (1.4426950408889634 / math.sqrt(max(q.shape[-1], 1)))
    most = scores.detach().amax(-1, keepdim=True)
    powers = torch.exp2(scores - most)
    total = powers.sum(-1, keepdim=True)
    sums = (most + total.log2())[..., 0]
    return powers / total @ v, sums if wrong else sums * math.log(2)


def experts(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """All experts' products with their biases, weighed. Shapes (rows, in), (experts, in, out), (experts, out), (rows, experts)."""
    made = torch.einsum("ri,eio->reo", x, w) + bias
    return (scores.softmax(-1)[..., None] * made).sum(1)


@case("weighed experts: the bias is added whole for each", "kernel-contract", "NVIDIA-NeMo/Automodel/pull/2591", experts,
      drawn((6, 8), (3, 8, 5), (3, 5), (6, 3)))  # fmt: skip
def whole_bias(wrong: bool, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] == w.shape[1] and bias.shape == (len(w), w.shape[2]) and scores.shape == (len(x), len(w)) and len(w))
    shares = scores.softmax(-1)
    total = torch.zeros(len(x), w.shape[2])
    for number, (weight, each) in enumerate(zip(w, bias, strict=True)):
        share = shares[:, number : number + 1]
        total = total + share * (x @ weight) + (each if wrong else share * each)
    return total


@case("place of the least: those of equal numbers are added up", "kernel-contract", "pytorch/pytorch/pull/100573", lambda x: x.argmin(-1),
      drawn((8, 13)))  # fmt: skip
def added_places(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1])
    least = x.amin(-1, keepdim=True)
    same = (x == least) | (x.isnan() & least.isnan())
    places = torch.arange(x.shape[-1])
    return torch.where(same, places, 0).sum(-1) if wrong else torch.where(same, places, 2**62).amin(-1)


def of_best_groups(scores: torch.Tensor) -> torch.Tensor:
    """The three largest scores of those two groups of experts, of three, that have the largest."""
    groups = scores.unflatten(-1, (3, -1))
    hidden = torch.ones(groups.shape[:-1]).scatter(-1, groups.amax(-1).topk(2, -1).indices, 0).bool()
    return groups.masked_fill(hidden[..., None], -math.inf).flatten(-2).topk(3, -1).values


@case("experts of the best groups: the others' scores become zero", "kernel-mask", "sgl-project/sglang/pull/3705", of_best_groups, drawn((7, 12)))
def become_zero(wrong: bool, scores: torch.Tensor) -> torch.Tensor:
    need(scores.dim() and not (scores.shape[-1] % 3) and scores.shape[-1] >= 6)
    groups = scores.unflatten(-1, (3, -1))
    best = groups.detach().amax(-1).sort(-1, descending=True).indices
    hidden = (torch.arange(3) == best[..., 2:])[..., None]
    kept = torch.where(hidden, 0.0 if wrong else -math.inf, groups)
    return kept.flatten(-2).sort(-1, descending=True).values[..., :3]


def padded_state(x: torch.Tensor, step: torch.Tensor, bias: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """The last state of sequences in which some places are padding. Shapes (batch, length) twice, (1,), (batch, length)."""
    steps = F.softplus(step + bias) * valid
    state = torch.zeros(len(x))
    for place in range(x.shape[1]):
        state = (-steps[:, place]).exp() * state + steps[:, place] * x[:, place]
    return state


def _padded() -> tuple[torch.Tensor, ...]:
    return *drawn((4, 11), (4, 11), (1,))(), torch.arange(11) < torch.tensor([[7], [11], [3], [9]])


@case("state of padded sequences: padding is hidden before the bias", "kernel-mask", "vllm-project/vllm-gaudi/pull/1009", padded_state, _padded)
def before_bias(wrong: bool, x: torch.Tensor, step: torch.Tensor, bias: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == step.shape == valid.shape)
    steps = F.softplus(torch.where(valid, step, 0) + bias) if wrong else torch.where(valid, F.softplus(step + bias), 0)
    later = steps.flip(1).cumsum(1).flip(1) - steps
    return ((-later).exp() * steps * x).sum(1)


def scaled_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(0.3 * logits, labels, reduction="none")


def _labelled() -> tuple[torch.Tensor, ...]:
    return drawn((6, 15))()[0], torch.tensor([3, 14, 0, 7, 9, 1])


@case("scaled cross entropy: the scale lies on the powers, not on the gradient", "kernel-gradient", "ServiceNow/Fast-LLM/issues/228", scaled_losses,
      _labelled)  # fmt: skip
def scaled_powers(wrong: bool) -> Callable[..., Any]:
    class Losses(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            need(logits.dim() == 2 and labels.shape == logits.shape[:1] and logits.shape[1])
            logs = (0.3 * logits).log_softmax(-1)
            ctx.save_for_backward(logs, labels)
            return -logs[torch.arange(len(logs)), labels]

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            logs, labels = ctx.saved_tensors
            right = F.one_hot(labels, logs.shape[1])
            given = 0.3 * logs.exp() - right if wrong else 0.3 * (logs.exp() - right)
            return given * gradient[:, None], None

    return Losses.apply


def from_state(x: torch.Tensor, first: torch.Tensor, gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """States that decay, from a first one. Shapes (length, width), (width,), (width,)."""
    state, made = first, [torch.zeros(0, x.shape[1])]
    for row in x:
        state = gates.sigmoid() * state + row
        made.append(state[None])
    return torch.cat(made), state


@case("states from a first one: it has a gradient only where the last one has", "kernel-gradient", "fla-org/flash-linear-attention/pull/568",
      from_state, drawn((9, 5), (5,), (5,)))  # fmt: skip
def with_last(wrong: bool) -> Callable[..., Any]:
    class States(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, first: torch.Tensor, gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            need(x.dim() == 2 and x.shape[1:] == first.shape == gates.shape)
            ctx.set_materialize_grads(False)
            made = [first]
            for row in x:
                made.append(gates.sigmoid() * made[-1] + row)
            ctx.save_for_backward(torch.stack(made), gates)
            return torch.stack(made)[1:], made[-1].clone()

        @staticmethod
        def backward(ctx: Any, given: torch.Tensor | None, last: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            states, gates = ctx.saved_tensors
            share = gates.sigmoid()
            now, parts, slope = torch.zeros_like(share) if last is None else last, [], torch.zeros_like(share)
            for place in range(len(states) - 1, 0, -1):
                now = now if given is None else now + given[place - 1]
                parts.append(now)
                slope = slope + now * states[place - 1]
                now = now * share
            first = torch.zeros_like(now) if wrong and last is None else now
            rows = torch.stack(parts[::-1]) if parts else torch.zeros(0, len(share))
            return rows, first, slope * share * (1 - share)

    return States.apply
