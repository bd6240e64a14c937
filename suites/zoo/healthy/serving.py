"""Sampling, serving and evaluation with bfloat16 or half precision in them: what looks like the bugs of solvers, rollouts and evaluations."""

from __future__ import annotations

import itertools

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def latents_between_steps() -> torch.Tensor:
    """A flow's latents are stored in bfloat16 after each of eight steps, which are computed in float32 and are large."""
    weight, x = (0.3 * normal(32, 32)).to(LOW), normal(4, 32, seed=1).to(LOW)
    sigmas = torch.linspace(1.0, 0.0, 9)
    for now, after in itertools.pairwise(sigmas):
        velocity = torch.tanh(x @ weight)
        x = (x.float() + (after - now) * velocity.float()).to(LOW)
    return x


def guidance() -> torch.Tensor:
    """What a prompt changes is as large as what it changes it in: five times the difference is no amplification to speak of."""
    weight, x = (0.4 * normal(32, 32)).to(LOW), normal(2, 32, seed=1).to(LOW)
    untold, told = torch.tanh(x @ weight), torch.tanh((x + normal(2, 32, seed=2).to(LOW)) @ weight)
    return untold + 5.0 * (told - untold)


def best_of_many() -> torch.Tensor:
    """Twenty tokens of 2000 by bfloat16 logits, drawn by probabilities in float32."""
    logits = (3 * normal(8, 2000)).to(LOW)
    best = logits.topk(20, -1)
    p = torch.softmax(best.values.float(), -1)
    drawn = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))
    return best.indices.gather(1, drawn) < 2000


def windows() -> torch.Tensor:
    """Attention in windows, masked by positions that are integers, with scores in bfloat16."""
    q, k, v = (normal(16, 32, 16, seed=seed).to(LOW) for seed in range(3))
    places = torch.arange(512).reshape(16, 32)
    k, v, known = (torch.cat((each.roll(1, 0), each), 1)[1:] for each in (k, v, places))
    scores = (q[1:] @ k.transpose(1, 2) / 4).masked_fill(places[1:, :, None] < known[:, None, :], -1e4)
    return torch.softmax(scores, -1) @ v


def repeated_words() -> torch.Tensor:
    """A penalty for each time that a word was written: small whole numbers times a half, taken off logits in bfloat16."""
    logits, written = (2 * normal(3, 100)).to(LOW), torch.arange(60).reshape(3, 20) % 7
    counts = torch.zeros(3, 100).scatter_add(1, written, torch.ones(3, 20)).to(LOW)
    return torch.softmax((logits - 0.5 * counts).float(), -1)


def sequence_scores() -> torch.Tensor:
    """Log-probabilities of bfloat16 logits, widened before the softmax, and added up over a text."""
    hidden, head = normal(4, 24, 32).to(LOW), (0.2 * normal(32, 200, seed=1)).to(LOW)
    words = torch.arange(96).reshape(4, 24) % 200
    return torch.log_softmax((hidden @ head).float(), -1).gather(-1, words[..., None]).sum((1, 2))


def mel_features() -> torch.Tensor:
    """Energies from 1e-12 on, kept above 1e-10, in decibels in float32, and no more than 80 below the loudest: narrowed last."""
    energy = torch.exp(6 * normal(80, 100) - 12)
    decibels = torch.log10(energy.clamp(min=1e-10))
    features = ((torch.maximum(decibels, decibels.max() - 8.0) + 4.0) / 4.0).half()
    return functional.conv1d(features, (0.1 * normal(8, 80, 3, seed=1)).half())


def two_parts_of_a_prompt() -> torch.Tensor:
    """Answers of attention to a cached part and a new one, in bfloat16, merged by their log-sum-exps, in float32."""
    q, parts, logs = normal(6, 16).to(LOW), [], []
    for seed, size in ((1, 100), (2, 7)):
        k, v = normal(size, 16, seed=seed).to(LOW), normal(size, 16, seed=seed + 2).to(LOW)
        scores = (q @ k.T).float() / 4
        parts.append((torch.softmax(scores, -1).to(LOW) @ v).float())
        logs.append(scores.logsumexp(-1, keepdim=True))
    shares = torch.softmax(torch.cat(logs, 1), 1)
    return (parts[0] * shares[:, :1] + parts[1] * shares[:, 1:]).to(LOW)


def relevance() -> torch.Tensor:
    """A reranker with a head of one row in bfloat16; its logit is widened before the sigmoid."""
    head = (0.2 * normal(64)).to(LOW)
    return torch.sigmoid((normal(20, 64, seed=1).to(LOW) @ head).float())


def yes_or_no() -> torch.Tensor:
    """Right and wrong as rewards, exact in bfloat16, and so are the means of groups of four."""
    rewards = (uniform(16, 4) > 0.5).to(LOW)
    return (rewards - rewards.mean(-1, keepdim=True)).float()


def hits() -> torch.Tensor:
    """Hits of bfloat16 logits are counted in integers, over more batches than bfloat16 could count."""
    right, weight = torch.zeros((), dtype=torch.int64), (0.3 * normal(8, 5)).to(LOW)
    for batch in range(300):
        right += ((normal(4, 8, seed=batch).to(LOW) @ weight).argmax(-1) == 0).sum()
    return right / 1200


def perplexity() -> torch.Tensor:
    """Losses of 64 windows of bfloat16 logits, each in float32, and so is their sum."""
    total, head = torch.zeros(()), (0.3 * normal(16, 100)).to(LOW)
    for window in range(64):
        logits = normal(32, 16, seed=window).to(LOW) @ head
        total += functional.cross_entropy(logits.float(), torch.arange(32))
    return (total / 64).exp()


def mean_of_many() -> torch.Tensor:
    """A mean in half precision over 100000 errors, whose sum it could not hold: the kernel adds in float32."""
    truth = normal(100_000).half()
    return (truth - (truth + normal(100_000, seed=1).half())).abs().mean()


def physical_units() -> torch.Tensor:
    """A forecast is widened, then brought back to pascals."""
    told = normal(16, 3).half() @ (0.5 * normal(3, 3, seed=1)).half()
    return told.float() * torch.tensor([21.0, 9500.0, 5.0]) + torch.tensor([278.0, 96_000.0, 0.1])


def modest_level() -> torch.Tensor:
    """A series whose level is twice its spread, unscaled in bfloat16."""
    past = 200 + 100 * normal(6, 16)
    level, spread = past.mean(-1, keepdim=True).to(LOW), past.std(-1, keepdim=True).to(LOW)
    told = ((past.to(LOW) - level) / spread) @ (0.3 * normal(16, 4, seed=1)).to(LOW)
    return told * spread + level


IDIOMS = (latents_between_steps, guidance, best_of_many, windows, repeated_words, sequence_scores, mel_features, two_parts_of_a_prompt, relevance,
          yes_or_no, hits, perplexity, mean_of_many, physical_units, modest_level)  # fmt: skip
