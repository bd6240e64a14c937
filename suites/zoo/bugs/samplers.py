"""Samplers: noise that is nought, a draft's temperature, a wide sum of weights, a confident alignment, guidance by way of the picture."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def sample(probabilities: torch.Tensor, seed: int) -> torch.Tensor:
    """A token of each row by exponential noise, as multinomial sampling without a wait for the device."""
    noise = torch.empty_like(probabilities).exponential_(1, generator=torch.Generator().manual_seed(seed))  # culprit: token-without-a-chance
    return (probabilities / noise).argmax(-1)  # culprit: token-without-a-chance


def tokens_in_support(dtype: torch.dtype) -> torch.Tensor:
    """Whether each sampled token is the one that top-1 left a probability."""
    logits = normal(40, 50304).to(dtype)
    best = logits.topk(1).indices
    kept = torch.full_like(logits, float("-inf")).scatter(-1, best, logits.gather(-1, best))
    probabilities = torch.softmax(kept, -1)
    return torch.stack([(sample(probabilities, seed)[:, None] == best).float() for seed in range(20, 24)])


def draft_probabilities(logits: torch.Tensor, temperature: float, single: bool) -> torch.Tensor:
    """The distribution that a draft model's next tokens are sampled from."""
    scaled = logits.float() / temperature if single else logits / temperature  # culprit: temperature-of-a-draft
    return torch.softmax(scaled, -1)  # culprit: temperature-of-a-draft


def accepted(single: bool) -> torch.Tensor:
    """How likely each of a draft's favourite tokens is, before a verifier that works in float32 accepts or rejects it."""
    logits = (24 + (20 * normal(16, 400)).round() / 8).clamp(max=31).to(LOW)
    probabilities = draft_probabilities(logits, 0.3, single)
    return probabilities.float().gather(-1, logits.topk(3).indices)


def log_sum(weights: torch.Tensor) -> torch.Tensor:
    """The sum in the log semiring over the last axis."""
    largest = weights.amax(-1, keepdim=True)
    return (weights - largest).exp().sum(-1).log() + largest[..., 0]  # culprit: sum-of-many-paths


def paths(dtype: torch.dtype) -> torch.Tensor:
    """The weight of all paths of a lattice of 90 000 edges, near alike."""
    return log_sum((0.02 * normal(3, 90000)).to(HALF).to(dtype)).float()


def alignment_loss(logits: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """The negative log-likelihood of a word over all alignments with blanks, by the forward recursion."""
    scores = torch.log_softmax(logits, -1)  # culprit: confident-alignment
    states = [0] + [each for label in labels for each in (label, 0)]
    alpha = torch.full((len(states),), -1e30, dtype=logits.dtype)
    alpha[:2] = scores[0, states[:2]]
    skips = torch.tensor([place >= 2 and each != 0 and each != states[place - 2] for place, each in enumerate(states)])
    for row in scores[1:]:
        one, two = alpha.roll(1), alpha.roll(2)
        one[0] = -1e30
        total = torch.logaddexp(alpha, one)  # culprit: confident-alignment
        total = torch.where(skips, torch.logaddexp(total, two), total)  # culprit: confident-alignment
        alpha = total + row[states]  # culprit: confident-alignment
    return -torch.logaddexp(alpha[-1], alpha[-2])  # culprit: confident-alignment


def confident(dtype: torch.dtype) -> torch.Tensor:
    """Losses of eight words that a network is all but certain of."""
    labels, frames, losses = [3, 5, 2, 7], 24, []
    best = torch.tensor([0, 0, 3, 3, 3, 0, 0, 5, 5, 0, 0, 0, 2, 2, 2, 2, 0, 0, 7, 7, 7, 0, 0, 0])
    for seed in range(8):
        logits = normal(frames, 9, seed=seed)
        logits[torch.arange(frames), best] += 21.0
        losses.append(alignment_loss(logits.to(dtype), labels))
    return torch.stack(losses)


def guided(latents: torch.Tensor, noise: list[torch.Tensor], sigma: float, direct: bool) -> torch.Tensor:
    """Noise under two guidances, mixed as noise or as the pictures that it would leave."""
    if not direct:
        noise = [latents - sigma * each for each in noise]  # culprit: noise-by-way-of-the-picture
    text, image, free = noise
    mixed = free + 7.5 * (text - image) + 1.5 * (image - free)
    return mixed if direct else (mixed - latents) / -sigma  # culprit: noise-by-way-of-the-picture


def last_steps(direct: bool) -> torch.Tensor:
    """The noise of the last three steps of a picture, whose noise has become small."""
    latents, free = (2 * normal(4, 24, 24)).to(LOW), normal(4, 24, 24, seed=1).to(LOW)
    image, text = ((free.float() + 0.5 * normal(4, 24, 24, seed=seed)).to(LOW) for seed in (2, 3))
    return torch.stack([guided(latents, [text, image, free], sigma, direct).float() for sigma in (0.125, 0.0625, 0.03125)])


BUGS = (
    Bug("token-without-a-chance", "Lightning-AI/litgpt#2325", ("amplified-rounding", "nan", "underflow", "overflow"), "aten.exponential_.default",
        lambda: tokens_in_support(HALF), lambda: tokens_in_support(WIDE)),
    Bug("temperature-of-a-draft", "deepseek-ai/DeepSpec#31", ("amplified-rounding", "local-drift"), "aten.div.Tensor", lambda: accepted(False),
        lambda: accepted(True)),
    Bug("sum-of-many-paths", "google-research/last#43", ("overflow",), "aten.sum.dim_IntList", lambda: paths(HALF), lambda: paths(WIDE)),
    Bug("confident-alignment", "google-deepmind/optax#1772", ("cancellation", "amplified-rounding", "underflow", "absorption"),
        "aten.add.Tensor", lambda: confident(WIDE), lambda: confident(DOUBLE), precision="32-true"),
    Bug("noise-by-way-of-the-picture", "huggingface/diffusers#7006", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: last_steps(False), lambda: last_steps(True),
        wrong_line="the differences of pictures are named, and not the line that made pictures of noise"),
)  # fmt: skip
