"""Samples, jets and sequences: noise of Gumbel for nodes, norms of four-momenta, a gated scan, tokens that a model is sure of."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def masked_centres(scores: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The loss of a recommender that masks the nodes with the highest scores, which noise of Gumbel disturbs."""
    drawn = uniform(*scores.shape, seed=5).to(dtype)  # culprit: noise-of-gumbel
    noise = -torch.log(-torch.log(drawn))  # culprit: noise-of-gumbel
    noised = scores.log() + noise.to(scores.dtype)
    return torch.stack([-scores.log().mean(), -noised.mean()])


def recommended(dtype: torch.dtype) -> torch.Tensor:
    """Twelve thousand users and items, by how well they agree with their neighbourhood."""
    embeddings = normal(12_000, 16).half()
    around = (embeddings + 0.7 * normal(12_000, 16, seed=1).half()).half()
    agreement = torch.sigmoid(nn.functional.cosine_similarity(embeddings.float(), around.float())).half()
    return masked_centres(agreement, dtype)


class EquivariantNorm(nn.Module):
    """Four-momenta of channels, divided by the square root of the mean of their invariant masses."""

    def __init__(self, at_least_single: bool) -> None:
        super().__init__()
        self.at_least_single = at_least_single
        self.register_buffer("metric", torch.diag(torch.tensor([1.0, -1.0, -1.0, -1.0])))

    def forward(self, momenta: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", HALF, enabled=not self.at_least_single):
            squares = torch.einsum("nci,ij,ncj->nc", momenta, self.metric, momenta)  # culprit: invariant-masses
            norm = squares.float().abs().mean(-1, keepdim=True).clamp_min(1e-2).sqrt()
        return momenta / norm[..., None]


def jets(at_least_single: bool) -> torch.Tensor:
    """Particles of 120 jets, of one to three units of mass and about forty of momentum, in four channels."""
    direction = nn.functional.normalize(normal(120, 4, 3), dim=-1)
    size, mass = 30 + 20 * uniform(120, 4, seed=1), 1 + 2 * uniform(120, 4, seed=2)
    momenta = torch.cat([(size.square() + mass.square()).sqrt()[..., None], size[..., None] * direction], -1)
    with torch.autocast("cpu", HALF):
        return EquivariantNorm(at_least_single)(momenta)


def scan(gates: torch.Tensor, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A linear recurrence along time, whose state is carried in that dtype."""
    state, states = torch.zeros_like(tokens[:, 0], dtype=dtype), []
    for gate, token in zip(gates.unbind(1), tokens.unbind(1), strict=True):
        state = gate.to(dtype) * state + token.to(dtype)  # culprit: gated-scan
        states.append(state.to(tokens.dtype))
    return torch.stack(states, 1)


def gated(dtype: torch.dtype) -> torch.Tensor:
    """The last states of eight channels after 512 tokens; the gates forget a hundredth or less a step."""
    gates, tokens = (0.989 + 0.009 * uniform(4, 512, 8)).to(LOW), (0.5 + normal(4, 512, 8, seed=1)).to(LOW)  # culprit: gated-scan
    return scan(gates, tokens, dtype)[:, -64:].float()


def token_losses(logits: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Negative logarithms of the probability of the next token."""
    logits = logits.to(dtype)
    highest = logits.max(-1, keepdim=True).values
    normaliser = (logits - highest).exp().sum(-1).log() + highest[:, 0]
    return normaliser - logits.gather(-1, targets[:, None])[:, 0]  # culprit: certain-tokens


def memorised(dtype: torch.dtype) -> torch.Tensor:
    """Losses of a model in bfloat16 on 128 tokens that it knows nearly by heart."""
    head, targets = (0.5 * normal(256, 48)).to(LOW), torch.arange(128) * 7 % 256
    hidden = (0.95 * head[targets].float() + 0.1 * normal(128, 48, seed=1)).to(LOW)
    return token_losses(hidden @ head.T, targets, dtype).float()


BUGS = (
    Bug("noise-of-gumbel", "HKUDS/SSLRec#26", ("amplified-rounding", "overflow", "nan"), "aten.log.default", lambda: recommended(HALF),
        lambda: recommended(WIDE)),
    Bug("invariant-masses", "heidelberg-hepml/lorentz-gatr#40", ("cancellation", "amplified-rounding"), "aten.bmm.default", lambda: jets(False),
        lambda: jets(True), module="EquivariantNorm"),
    Bug("gated-scan", "proger/accelerated-scan#4", ("amplified-rounding", "accumulated-drift", "absorption"), "aten._to_copy.default",
        lambda: gated(LOW), lambda: gated(WIDE)),
    Bug("certain-tokens", "marin-community/levanter#392", ("cancellation",), "aten.sub.Tensor", lambda: memorised(LOW), lambda: memorised(WIDE)),
)  # fmt: skip
