"""A twenty-fourth frozen set of broken kernels, first part: losses, returns, distances, attention. Of links an excerpt was read."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional


def _focal(x: torch.Tensor, hit: torch.Tensor) -> torch.Tensor:
    z = torch.where(hit, x, -x)
    return torch.sigmoid(-z) ** 2 * -F.logsigmoid(z)


@case("focal loss: the loss has no focus, its gradient has", "kernel-contract", "davisking/dlib/pull/2552", _focal,
      lambda: (*drawn((4, 6))(), torch.arange(24).reshape(4, 6) % 3 == 0))  # fmt: skip
def no_focus(wrong: bool) -> Any:
    def forward(x: torch.Tensor, hit: torch.Tensor) -> Any:
        need(x.shape == hit.shape, hit.dtype == torch.bool)
        z = torch.where(hit, x, -x)
        return F.softplus(-z) * (1 if wrong else torch.sigmoid(-z) ** 2), (z, hit)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        z, hit = saved
        rest = torch.sigmoid(-z)
        slope = -2 * torch.sigmoid(z) * rest**2 * F.softplus(-z) - rest**3
        return g * torch.where(hit, slope, -slope), None

    return function(forward, backward)


def _weighted_focal(*, scores: torch.Tensor, labels: torch.Tensor, gamma: float) -> torch.Tensor:
    p = scores.sigmoid()
    return -0.25 * labels * (1 - p) ** gamma * F.logsigmoid(scores) - 0.75 * (1 - labels) * p**gamma * F.logsigmoid(-scores)


@case("focal loss: of what is there the rest is multiplied by gamma", "kernel-contract", "fudannlp16/focal-loss/issues/2", _weighted_focal,
      lambda: {"scores": drawn((5, 4))()[0].requires_grad_(), "labels": (drawn((2, 5, 4))()[0][1] > 0).float(), "gamma": 2.0})  # fmt: skip
def multiplied_by_gamma(wrong: bool, *, scores: torch.Tensor, labels: torch.Tensor, gamma: float) -> torch.Tensor:
    need(scores.shape == labels.shape)
    hit, missed = torch.sigmoid(scores), torch.sigmoid(-scores)
    focus = missed * gamma if wrong else missed**gamma
    return 0.25 * labels * focus * F.softplus(-scores) + 0.75 * (1 - labels) * hit**gamma * F.softplus(scores)


def _sequence_loss(logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(logits.dim() == 3, logits.shape[:2] == labels.shape, len(lengths) == len(labels))
    keep = torch.arange(labels.shape[1]) < lengths[:, None]
    return torch.where(keep, F.cross_entropy(logits.transpose(1, 2), labels, reduction="none"), 0).sum(1)


@case("loss of sequences: a mean over all steps, where a sum is due", "kernel-contract", "d2l-ai/d2l-en/issues/2076", _sequence_loss,
      lambda: (*drawn((3, 5, 7))(), whole(3, 5, most=7), torch.tensor([5, 2, 3])))  # fmt: skip
def mean_over_all_steps(wrong: bool, logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(logits.dim() == 3, logits.shape[:2] == labels.shape, len(lengths) == len(labels), logits.shape[2] > 0)
    need(bool(((labels >= 0) & (labels < logits.shape[2])).all()))
    each = logits.logsumexp(2) - logits.gather(2, labels[:, :, None])[:, :, 0]
    each = each.masked_fill(torch.arange(labels.shape[1]) >= lengths[:, None], 0)
    return each.mean(1) if wrong else each.sum(1)


class Tokens(NamedTuple):
    loss: torch.Tensor
    mask: torch.Tensor


def _token_mean(tokens: Tokens) -> torch.Tensor:
    need(tokens.loss.shape == tokens.mask.shape, tokens.loss.dim() == 2)
    return torch.where(tokens.mask, tokens.loss, 0).sum() / tokens.mask.sum().clamp(min=1)


@case("loss of tokens: those that fill up are counted", "kernel-mask", "NovaSky-AI/SkyRL/pull/462", _token_mean,
      lambda: (Tokens(drawn((3, 6))()[0], torch.arange(6) < torch.tensor([[6], [3], [4]])),))  # fmt: skip
def fill_up_are_counted(wrong: bool, tokens: Tokens) -> torch.Tensor:
    need(tokens.loss.shape == tokens.mask.shape, tokens.loss.dim() == 2)
    count = max(tokens.mask.numel() if wrong else int(tokens.mask.sum()), 1)
    return tokens.loss.masked_fill(~tokens.mask, 0).sum(1).sum() / count


@dataclasses.dataclass
class Actions:
    predicted: torch.Tensor
    target: torch.Tensor
    is_pad: torch.Tensor


def _action_loss(actions: Actions) -> torch.Tensor:
    keep = ~actions.is_pad[:, :, None]
    each = (actions.predicted - actions.target).square().masked_fill(~keep, 0)
    return each.sum() / (keep.sum() * each.shape[2]).clamp(min=1)


@case("loss of actions: divided by the steps, and not by their numbers", "kernel-contract", "huggingface/lerobot/pull/3377", _action_loss,
      lambda: (Actions(*drawn((2, 5, 3), (2, 5, 3))(), torch.arange(5) >= torch.tensor([[4], [2]])),))  # fmt: skip
def divided_by_the_steps(wrong: bool, actions: Actions) -> torch.Tensor:
    need(actions.predicted.shape == actions.target.shape, actions.predicted.dim() == 3, actions.is_pad.shape == actions.predicted.shape[:2])
    total = torch.where(actions.is_pad[:, :, None], 0, (actions.predicted - actions.target) ** 2).sum()
    return total / max(int((~actions.is_pad).sum()) * (1 if wrong else actions.predicted.shape[2]), 1)


def _replaced(scores: torch.Tensor, replaced: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    each = F.binary_cross_entropy_with_logits(scores, replaced.to(scores.dtype), reduction="none")
    return torch.where(real, each, 0).sum() / real.sum().clamp(min=1)


@case("which token was replaced: what fills up counts as not replaced", "kernel-mask", "voidism/DiffCSE/issues/25", _replaced,
      lambda: (*drawn((3, 6))(), whole(3, 6, most=2) > 0, torch.arange(6) < torch.tensor([[5], [6], [3]])))  # fmt: skip
def fills_up_as_not_replaced(wrong: bool, scores: torch.Tensor, replaced: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(scores.shape == replaced.shape == real.shape)
    if wrong:
        replaced, real = replaced & real, torch.ones_like(real)
    each = F.softplus(torch.where(replaced, -scores, scores))
    return each.masked_fill(~real, 0).sum() / real.sum().clamp(min=1)


@case("divergence of shares: its gradient is twice as large", "kernel-gradient", "torch/cunn/pull/318",
      lambda x, t: (t.detach() * (t.detach().log() - x)).mean(),
      lambda: (drawn((4, 6))()[0].log_softmax(1).requires_grad_(), drawn((2, 4, 6))()[0][1].softmax(1)))  # fmt: skip
def twice_as_large(wrong: bool) -> Any:
    def forward(x: torch.Tensor, t: torch.Tensor) -> Any:
        need(x.shape == t.shape)
        return (t * t.log() - t * x).mean(), (t,)

    return function(forward, lambda saved, g: (-g * saved[0] * ((2 if wrong else 1) / max(saved[0].numel(), 1)), None))


def _splat(conic: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    need(conic.dim() == d.dim() == 2, conic.shape[1] == 3, d.shape[1] == 2, len(conic) == len(d))
    return torch.exp(-0.5 * (conic[:, 0] * d[:, 0] ** 2 + conic[:, 2] * d[:, 1] ** 2) - conic[:, 1] * d[:, 0] * d[:, 1])


@case("gaussian in a picture: the gradient of the term of both is halved", "kernel-gradient", "graphdeco-inria/diff-gaussian-rasterization/pull/64",
      _splat, drawn((6, 3), (6, 2)))  # fmt: skip
def term_of_both(wrong: bool) -> Any:
    def forward(conic: torch.Tensor, d: torch.Tensor) -> Any:
        out = _splat(conic, d)
        return out, (conic, d, out)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        conic, d, out = saved
        a, b, c = conic.unbind(1)
        u, v = d.unbind(1)
        by = g * out
        both = (-0.5 if wrong else -1.0) * u * v
        slopes = torch.stack([-(a * u + b * v) * by, -(c * v + b * u) * by], 1)
        return torch.stack([-0.5 * u * u * by, both * by, -0.5 * v * v * by], 1), slopes

    return function(forward, backward)


class Rollout(NamedTuple):
    reward: torch.Tensor
    value: torch.Tensor
    last: torch.Tensor
    done: torch.Tensor


def _advantages(r: Rollout) -> torch.Tensor:
    need(r.reward.dim() == 2, r.reward.shape == r.value.shape == r.done.shape, len(r.last) == len(r.reward), r.last.dim() == 1)
    goes_on = (~r.done).to(r.reward.dtype)
    behind = torch.cat([r.value[:, 1:], r.last[:, None]], 1) if r.value.shape[1] else r.value
    carry, out = torch.zeros_like(r.last), []
    for step in reversed(range(r.reward.shape[1])):
        carry = r.reward[:, step] + goes_on[:, step] * (0.9 * behind[:, step] + 0.9 * 0.8 * carry) - r.value[:, step]
        out.append(carry)
    return torch.stack(out[::-1], 1) if out else r.reward.clone()


def _rollout() -> tuple[Rollout]:
    return (Rollout(*drawn((3, 6), (3, 6), (3,))(), whole(3, 6, most=4) == 0),)


@case("advantages: the value behind the window counts twice", "kernel-contract", "simonsays1980/rl-triton/pull/4", _advantages, _rollout)
def counts_twice(wrong: bool, r: Rollout) -> torch.Tensor:
    need(r.reward.dim() == 2, r.reward.shape == r.value.shape == r.done.shape, len(r.last) == len(r.reward), r.last.dim() == 1)
    total = r.last.clone() if wrong else torch.zeros_like(r.last)
    out, following = torch.empty_like(r.reward), r.last
    columns: list[torch.Tensor] = [out[:, 0]] * r.reward.shape[1]
    for step in range(r.reward.shape[1] - 1, -1, -1):
        delta = r.reward[:, step] + torch.where(r.done[:, step], 0, 0.9 * following) - r.value[:, step]
        total = delta + torch.where(r.done[:, step], 0, 0.72 * total)
        columns[step], following = total, r.value[:, step]
    return torch.stack(columns, 1) if columns else r.reward.clone()


@case("advantages: whether a step ended is read from the next one", "kernel-mask", "anthonytorlucci/rlevo/issues/342", _advantages, _rollout)
def read_from_the_next_one(wrong: bool, r: Rollout) -> torch.Tensor:
    need(r.reward.dim() == 2, r.reward.shape == r.value.shape == r.done.shape, len(r.last) == len(r.reward), r.last.dim() == 1)
    done = torch.cat([r.done[:, 1:], r.done[:, -1:]], 1) if wrong else r.done
    return _advantages(r._replace(done=done))


def _distances(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return torch.linalg.vector_norm(x[:, None] - x[None], dim=2)


@case("distances of all pairs: on the way back the one of a point to itself is divided by", "kernel-gradient", "FluxML/Zygote.jl/pull/787",
      _distances, drawn((5, 3)))  # fmt: skip
def divided_by_itself(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        out = _distances(x)
        return out, (x, out)

    def backward(saved: Any, g: torch.Tensor) -> torch.Tensor:
        x, out = saved
        by = g / out if wrong else torch.where(out == 0, 0 * g, g / torch.where(out == 0, 1, out))
        both = by + by.T
        return (both[:, :, None] * (x[:, None] - x[None])).sum(1)

    return function(forward, backward)


@case("likelihood of a mixture: a logarithm of a sum of powers", "kernel-rounding", "jayaram-r/adversarial-detection/pull/76",
      lambda x, log_share: torch.logsumexp(x + log_share, 1), lambda: (*drawn((4, 5))(), drawn((5,))()[0].log_softmax(0)))  # fmt: skip
def logarithm_of_a_sum(wrong: bool, x: torch.Tensor, log_share: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, log_share.dim() == 1, x.shape[1] == len(log_share) > 0)
    top = 0 if wrong else (x + log_share).detach().amax(1, keepdim=True)
    top = top if wrong else torch.where(torch.isfinite(top), top, 0)
    sums = (x + log_share - top).exp().sum(1).log()
    return sums if wrong else sums + top[:, 0]


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Attention of heads. Queries that see nothing are refused."""
    need(q.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], k.shape[1] > 0, keep.shape == k.shape[:2], bool(keep.any(1).all()))
    scores = (q @ k.mT) * q.shape[2] ** -0.5
    return scores.masked_fill(~keep[:, None], -torch.inf).softmax(2) @ v


def _heads() -> Any:
    return *drawn((2, 4, 8), (2, 5, 8), (2, 5, 8))(), torch.arange(5) < torch.tensor([[5], [3]])


@case("attention: powers of scores as they are", "kernel-rounding", "intel/xFasterTransformer/pull/326",
      lambda q, k, v: F.scaled_dot_product_attention(q, k, v), drawn((2, 4, 8), (2, 5, 8), (2, 5, 8)))  # fmt: skip
def powers_as_they_are(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], k.shape[1] > 0)
    scores = torch.einsum("nqd,nkd->nqk", q, k) / q.shape[2] ** 0.5
    powers = torch.exp(scores if wrong else scores - scores.detach().amax(2, keepdim=True))
    return (powers @ v) / powers.sum(2, keepdim=True)


@case("attention: a key that is hidden has a score of -10000", "kernel-mask", "ohdearquant/lattice/issues/361", _attention, _heads)
def score_of_minus_10000(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], k.shape[1] > 0, keep.shape == k.shape[:2], bool(keep.any(1).all()))
    scores = torch.where(keep[:, None], q @ k.mT / q.shape[2] ** 0.5, -10000.0 if wrong else -torch.inf)
    return torch.softmax(scores, 2) @ v


@case("attention: a key that is hidden has a score of -1e-9", "kernel-mask", "Shujun-He/RibonanzaNet/issues/5", _attention, _heads)
def score_of_nearly_zero(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], k.shape[1] > 0, keep.shape == k.shape[:2], bool(keep.any(1).all()))
    scores = torch.where(keep[:, None], q @ k.mT / q.shape[2] ** 0.5, -1e-9 if wrong else -torch.inf)
    return torch.softmax(scores, 2) @ v


def _window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, width: int = 3, more: int = 0) -> torch.Tensor:
    need(q.dim() == 3, q.shape == k.shape == v.shape, q.shape[1] > 0)
    back = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    hidden = (back < 0) | (back >= width + more)
    return ((q @ k.mT) * q.shape[2] ** -0.5).masked_fill(hidden, -torch.inf).softmax(2) @ v


@case("attention of the last three: one more is seen", "kernel-mask", "AI-Hypercomputer/maxtext/pull/4289", _window,
      drawn((2, 9, 4), (2, 9, 4), (2, 9, 4)))  # fmt: skip
def one_more_is_seen(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _window(q, k, v, more=int(wrong))


def _by_distance(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: bool = True) -> torch.Tensor:
    need(q.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], k.shape[1] >= q.shape[1])
    first = k.shape[1] - q.shape[1] if kept else 0
    away = (torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - first).abs()
    return ((q @ k.mT) * q.shape[2] ** -0.5 - 0.25 * away).softmax(2) @ v


@case("attention with a slope: what is remembered does not shift places", "kernel-contract", "lucidrains/x-transformers/pull/103", _by_distance,
      drawn((2, 3, 4), (2, 7, 4), (2, 7, 4)))  # fmt: skip
def does_not_shift_places(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _by_distance(q, k, v, kept=not wrong)
