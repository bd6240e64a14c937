"""Steps, averages and measures that look like the bugs of trajectories, averages and perplexities."""

from __future__ import annotations

import copy
import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def few_timesteps() -> torch.Tensor:
    """A distilled sampler's four times, 1000 to 248, are numbers of bfloat16; sines and cosines of them are taken in float32."""
    speeds, weight, x = torch.exp(-math.log(10_000.0) * torch.arange(8) / 8), (0.2 * normal(16, 16)).to(LOW), normal(4, 16, seed=1)
    for now, after in ((1000, 752), (752, 500), (500, 248), (248, 0)):
        timestep = torch.full((4,), float(now)).to(LOW)
        angles = timestep.float()[:, None] * speeds
        told = torch.cat([angles.cos(), angles.sin()], -1).to(LOW)
        x = x + (after - now) / 1000 * torch.tanh((x.to(LOW) + told) @ weight).float()
    return x


def scored_as_kept() -> torch.Tensor:
    """Likelihoods of a sampler's steps, at the time and again later, both of the latents as bfloat16 keeps them."""
    weight, kept, ratios = 0.2 * normal(16, 16), [normal(8, 16, seed=1).to(LOW)], []
    for noise in normal(5, 8, 16, seed=2):
        mean = kept[-1].float() - 0.1 * torch.tanh(kept[-1].float() @ weight)
        kept.append((mean + 0.2 * noise).to(LOW))
        then = -((kept[-1].float() - mean) ** 2).mean(-1) / 0.08
        now = -((kept[-1].float() - (kept[-2].float() - 0.1 * torch.tanh(kept[-2].float() @ weight))) ** 2).mean(-1) / 0.08
        ratios.append(torch.exp(now - then))
    return torch.stack(ratios)


def logarithms_of_deviations() -> torch.Tensor:
    """The entropy of a Gaussian policy in half, from the logarithm of its deviation, which is what the head gives."""
    observations, head = normal(16, 12).half(), (0.1 * normal(12, 4, seed=1)).half()
    log_std = (observations @ head - 2.0).clamp(-5.0, 2.0)
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).mean(-1)


def log_probs_a_chunk_at_a_time() -> torch.Tensor:
    """Logits in bfloat16, log-probabilities put into a tensor in float32, chunk by chunk; a ratio of two of them."""
    hidden, words = normal(48, 24).to(LOW), (torch.arange(48) * 5) % 300
    found = []
    for seed in (1, 2):
        vocabulary, log_probs = (0.3 * normal(300, 24, seed=1) + 0.01 * normal(300, 24, seed=seed)).to(LOW), torch.zeros(48)
        for start in range(0, 48, 16):
            part = slice(start, start + 16)
            logits = (hidden[part] @ vocabulary.T).float()
            log_probs[part] = torch.log_softmax(logits, -1).gather(-1, words[part, None]).squeeze(-1)
        found.append(log_probs)
    return torch.exp(found[1] - found[0])


def steps_of_a_twentieth() -> torch.Tensor:
    """Weights of bfloat16 with no float32 behind them, under sign descent with steps many spacings long, which halve as it goes."""
    weight, target = (0.5 * normal(64)).to(LOW), 0.5 * normal(64, seed=1)
    for rate in (0.125, 0.125, 0.0625, 0.0625):
        weight = (weight.float() - rate * (weight.float() - target).sign()).to(LOW)
    return weight


def average_in_float32() -> torch.Tensor:
    """Weights of bfloat16, updated by masters, averaged in float32 at a decay of 0.999; the average is stored low once, at the end."""
    model = nn.Linear(16, 8, bias=False)
    with torch.no_grad():
        model.weight.copy_(normal(8, 16))
    masters, served = model.weight.detach().clone(), copy.deepcopy(model).to(LOW)
    average = masters.clone()
    with torch.no_grad():
        for gradient in normal(40, 8, 16, seed=1).sign():
            masters -= 1e-3 * gradient
            served.weight.copy_(masters)
            average.mul_(0.999).add_(served.weight.float(), alpha=1e-3)
    return average.to(LOW)


def short_memory() -> torch.Tensor:
    """A mean square over ten steps, in bfloat16: each step moves it by a tenth of what it is, far more than a spacing."""
    state = torch.full((32, 8), 1.0).to(LOW)
    for g in normal(40, 32, 8):
        state = (0.9 * state.float() + 0.1 * g * g).to(LOW)
    return state.float().mean(0).sqrt()


def mean_of_checkpoints() -> torch.Tensor:
    """The mean of five checkpoints in half, added up in float32 and stored in half."""
    start = 0.5 * normal(64)
    checkpoints = [(start + 0.02 * normal(64, seed=seed + 1)).half() for seed in range(5)]
    return torch.stack([each.float() for each in checkpoints]).mean(0).half()


def balanced_scales() -> torch.Tensor:
    """Scales of a layer's inputs, all within a factor of four, made to average one by the root of the largest times the least, in half."""
    weight, inputs = (0.05 * normal(16, 64)).half(), (1 + 0.5 * uniform(32, 64, seed=1)).half()
    scales = inputs.abs().mean(0).sqrt()
    scales = scales / (scales.max() * scales.min()).sqrt()
    return (inputs / scales) @ (weight * scales).T


def scales_of_groups() -> torch.Tensor:
    """Scales of groups of sixteen weights, in half; no group is faint, and a clamp at 1e-5 has nothing to do."""
    weight = 0.05 * normal(12, 4, 16)
    low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scale = ((high - low) / 15).to(HALF).clamp(min=1e-5)
    zero = (-low / scale).round()
    return scale * (((weight / scale).round() + zero).clamp(0, 15) - zero)


def perplexity_of_contexts() -> torch.Tensor:
    """Exp of the mean loss of six contexts: logits in bfloat16, widened before the loss; what is shown of it is rounded to bfloat16."""
    vocabulary = (0.3 * normal(400, 24, seed=9)).to(LOW)
    losses = []
    for seed in range(6):
        logits, tokens = (normal(48, 24, seed=seed).to(LOW) @ vocabulary.T).float(), (uniform(48, seed=seed + 20) * 400).long()
        losses.append(functional.cross_entropy(logits, tokens))
    return torch.exp(torch.stack(losses).mean()).to(LOW)


def losses_by_bucket() -> torch.Tensor:
    """Losses by position, added up in float32 over ten batches, and given out in bfloat16 as means."""
    vocabulary, sums = (0.3 * normal(300, 24, seed=9)).to(LOW), torch.zeros(2)
    for seed in range(10):
        logits, tokens = (normal(2, 32, 24, seed=seed).to(LOW) @ vocabulary.T).float(), (uniform(64, seed=seed + 20) * 300).long()
        losses = functional.cross_entropy(logits.flatten(0, 1), tokens, reduction="none").view(2, 2, 16)
        sums += losses.sum((0, 2))
    return (sums / 320).to(LOW)


def clear_winners() -> torch.Tensor:
    """Similarities in bfloat16 of queries with documents that have little in common, but for one; the first of them is given."""
    documents = functional.normalize(normal(100, 64), dim=-1).to(LOW)
    queries = functional.normalize(documents[40:60].float() + 0.02 * normal(20, 64, seed=1), dim=-1).to(LOW)
    return (queries @ documents.T).topk(1, -1).values


IDIOMS = (few_timesteps, scored_as_kept, logarithms_of_deviations, log_probs_a_chunk_at_a_time, steps_of_a_twentieth, average_in_float32,
          short_memory, mean_of_checkpoints, balanced_scales, scales_of_groups, perplexity_of_contexts, losses_by_bucket,
          clear_winners)  # fmt: skip
