"""Surveys, estimates, alignments, conversions and sequences that look like the bugs of surveys, estimates, alignments, conversions and sequences."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def rate_of_a_recording() -> torch.Tensor:
    """A sample rate in float32 from nanoseconds that are integers until their first is taken away."""
    stamps = 1_718_020_845_250_000_000 + torch.arange(6000) * 25_000_000
    times = (stamps - stamps[0]).to(WIDE) / 1e9
    rate = (len(times) - 1) / (times.max() - times.min())
    return 1 + (0.8 / (torch.arange(1, 200) * rate / len(times))) ** 1.7


def bodies_near_the_ground() -> torch.Tensor:
    """Position Verlet in float32 of bodies two metres above the ground, a step a frame."""
    position, pull = torch.stack([4 * normal(12), 1 + 2 * uniform(12), 4 * normal(12, seed=1)], -1), torch.tensor([0.0, -9.81, 0.0])
    before, step = position - 0.2 * normal(12, 3, seed=2) / 60, 1 / 60
    start = position.clone()
    for _ in range(60):
        position, before = position + (position - before) * 0.9999 + pull * step**2, position
    return (start - position)[:, 1]


def stars_far_apart() -> torch.Tensor:
    """The arc cosine in float32 of the products of stars that are ten degrees apart and more."""
    around, height = 2 * math.pi * uniform(300), 1.6 * uniform(300, seed=1) - 0.8
    stars = torch.stack([(1 - height**2).sqrt() * around.cos(), (1 - height**2).sqrt() * around.sin(), height], -1)
    return torch.arccos((stars * torch.tensor([0.0, 0.0, 1.0])).sum(-1).clamp(-1, 1))


def windows_of_daylight() -> torch.Tensor:
    """A running sum in float32 that gains a pixel and loses one, over an image that is evenly lit."""
    image = 0.4 + 0.5 * uniform(12, 200)
    running, means = image[:, :15].sum(1), []
    for column in range(185):
        running = running + (image[:, column + 15] - image[:, column])
        means.append(running / 15)
    return torch.log2(torch.stack(means, 1))


def posterior_by_episodes() -> torch.Tensor:
    """A posterior in float32 over phases, multiplied by each outcome's likelihood and made to sum to one again."""
    phases = torch.linspace(0.02, math.pi - 0.02, 300)
    ones, posterior, means = torch.cos(phases / 2).square(), torch.full((300,), 1 / 300), []
    for outcome in (uniform(200) < math.cos(0.6) ** 2).tolist():
        posterior = posterior * (ones if outcome else 1 - ones)
        posterior = posterior / posterior.sum()
        means.append((posterior * phases).sum())
    return torch.stack(means)


def actions_unsquashed() -> torch.Tensor:
    """The inverse hyperbolic tangent in float32 of actions in the middle of their range."""
    mean, raw = 0.8 * normal(200, 6), 0.8 * normal(200, 6) + 0.3 * normal(200, 6, seed=1)
    again = torch.atanh(torch.tanh(raw).clamp(-1 + 1e-6, 1 - 1e-6))
    return torch.distributions.Normal(mean, 0.3).log_prob(again).sum(-1)


def short_answers() -> torch.Tensor:
    """Exponents in float32 of the log-probabilities of answers of a few tokens, shared out among the choices."""
    answers = -3 - 12 * uniform(60, 1) + 1.5 * normal(60, 4, seed=2)
    return answers.exp()[:, 0] / answers.exp().sum(-1)


def blurred_plan() -> torch.Tensor:
    """Sinkhorn's iteration in float32, without logarithms, with a regularisation of a half."""
    one, other = normal(40, 2), normal(40, 2, seed=1)
    cost = torch.cdist(one, other)
    plan = torch.exp(-cost / (0.5 * cost.mean()))
    for _ in range(60):
        plan = plan / plan.sum(1, keepdim=True)
        plan = plan / plan.sum(0, keepdim=True)
    return plan @ other


def features_of_speech() -> torch.Tensor:
    """Variances in float32 as mean of squares less square of means, of bins whose spread is half their mean."""
    features = -6 + 3 * normal(300, 40)
    mean = features.mean(0)
    return (features - mean) / ((features.square().mean(0) - mean.square()).sqrt() + 1e-5)


def lengths_in_half() -> torch.Tensor:
    """Lengths of sentences in half, which holds every integer up to 2048, as a mask of places."""
    lengths = torch.tensor([1731, 2047, 905]).to(HALF)
    padding = torch.arange(int(lengths.max()))[None] >= lengths[:, None]
    scores = normal(3, 2047).half().masked_fill(padding, -torch.inf)
    return functional.softmax(scores, -1).float()


def mild_attention_of_a_graph() -> torch.Tensor:
    """Exponents in half of scores that stay below four, shared out among eight neighbours each."""
    source, target = (torch.arange(480) * 37 + 11) % 60, torch.arange(480) // 8
    hidden = normal(60, 16).half()
    scores = functional.leaky_relu(1.2 * normal(480, seed=1), 0.2).clamp(max=4).half()
    attention = scores.exp()
    total = torch.zeros(60, dtype=HALF).index_add_(0, target, attention)
    return torch.zeros_like(hidden).index_add_(0, target, (attention / total[target])[:, None] * hidden[source]).float()


def product_of_few_blocks() -> torch.Tensor:
    """Attention over four blocks, whose running product is half and whose values have no mean."""
    query, key, value = normal(24, 32).half(), normal(256, 32, seed=1).half(), normal(256, 16, seed=2).half()
    highest, total, product = torch.full((24, 1), -torch.inf), torch.zeros(24, 1), torch.zeros(24, 16, dtype=HALF)
    for keys, values in zip(key.split(64), value.split(64), strict=True):
        scores = (query @ keys.T).float() / 32**0.5
        higher = torch.maximum(highest, scores.amax(1, keepdim=True))
        weights, rescale = torch.exp(scores - higher), torch.exp(highest - higher)
        total = total * rescale + weights.sum(1, keepdim=True)
        product = product * rescale.half() + weights.half() @ values
        highest = higher
    return product.float() / total


def scales_of_loud_channels() -> torch.Tensor:
    """Codes of eight bits and scales in half, of channels whose largest weight is a half."""
    weight, batch = 0.2 * normal(24, 32), normal(64, 32, seed=1)
    scale = (weight.abs().amax(1, keepdim=True) / 127).half()
    codes = (weight / scale.float()).round().clamp(-127, 127).to(torch.int8)
    return batch @ (codes.float() * scale.float()).T


def clipped_by_torch() -> torch.Tensor:
    """Gradients in half clipped by torch's own norm, which is a few hundred."""
    layer = nn.Linear(12, 32)
    with torch.no_grad():
        layer.weight.copy_(0.3 * normal(32, 12))
        layer.bias.zero_()
    layer.half()
    outputs = layer(normal(50, 12, seed=1).half())
    (outputs - 6).square().mean().mul(16).backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    assert layer.weight.grad is not None
    return layer.weight.grad.float()


def variance_of_small_images() -> torch.Tensor:
    """A batch norm's sum of squares in half, of 256 values about one."""
    x = normal(4, 6, 8, 8).half()
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = (x - mean).square().sum((0, 2, 3), keepdim=True) / 256
    return ((x - mean) * torch.rsqrt(variance + 1e-3)).float()


def moments_restored_once() -> torch.Tensor:
    """Moments that a checkpoint held in bfloat16 and that go on in float32."""
    weight, mean, square = normal(10, 10), 0.2 * normal(10, 10, seed=1), 1 + uniform(10, 10, seed=2)
    mean, square = mean.to(LOW).float(), square.to(LOW).float()
    start = weight.clone()
    for step in range(60):
        gradient = (0.4 + normal(10, 10, seed=10 + step)).to(LOW).float()
        mean.mul_(0.9).add_(gradient, alpha=0.1)
        square.mul_(0.999).add_(gradient.square(), alpha=0.001)
        weight.sub_(2e-3 * mean / (square.sqrt() + 1e-8))
    return weight - start


def gumbel_before_the_cast() -> torch.Tensor:
    """Noise of Gumbel in float32, which is half when it meets scores in half."""
    noise = -torch.log(-torch.log(uniform(12_000, seed=5).clamp(1e-7, 1 - 1e-7)))
    scores = torch.sigmoid(normal(12_000)).half()
    return (scores.log() + noise.half()).float()


def masses_of_slow_particles() -> torch.Tensor:
    """Invariant masses by an einsum under autocast, of particles whose momentum is a third of their mass."""
    mass, momentum = 1 + 2 * uniform(120, 4), 0.5 * normal(120, 4, 3)
    momenta = torch.cat([(momentum.square().sum(-1) + mass.square()).sqrt()[..., None], momentum], -1)
    with torch.autocast("cpu", HALF):
        squares = torch.einsum("nci,ij,ncj->nc", momenta, torch.diag(torch.tensor([1.0, -1.0, -1.0, -1.0])), momenta)
    return momenta / squares.float().abs().mean(-1, keepdim=True).clamp_min(1e-2).sqrt()[..., None]


def scan_that_forgets() -> torch.Tensor:
    """A recurrence in bfloat16 whose gates halve its state at each token."""
    gates, tokens = (0.3 + 0.4 * uniform(4, 200, 8)).to(LOW), normal(4, 200, 8, seed=1).to(LOW)
    state, states = torch.zeros(4, 8, dtype=LOW), []
    for gate, token in zip(gates.unbind(1), tokens.unbind(1), strict=True):
        state = gate * state + token
        states.append(state)
    return torch.stack(states, 1).float()


def losses_of_unsure_tokens() -> torch.Tensor:
    """Losses in bfloat16 as a logarithm of a sum less a logit, of a model that knows next to nothing yet."""
    logits, targets = (0.3 * normal(128, 256)).to(LOW), torch.arange(128) * 7 % 256
    highest = logits.max(-1, keepdim=True).values
    normaliser = (logits - highest).exp().sum(-1).log() + highest[:, 0]
    return (normaliser - logits.gather(-1, targets[:, None])[:, 0]).float()


EXACT = frozenset({"rate_of_a_recording", "bodies_near_the_ground", "stars_far_apart", "windows_of_daylight", "posterior_by_episodes",
                   "actions_unsquashed", "short_answers", "blurred_plan", "features_of_speech"})  # fmt: skip
IDIOMS = (
    rate_of_a_recording, bodies_near_the_ground, stars_far_apart, windows_of_daylight, posterior_by_episodes, actions_unsquashed, short_answers,
    blurred_plan, features_of_speech, lengths_in_half, mild_attention_of_a_graph, product_of_few_blocks, scales_of_loud_channels, clipped_by_torch,
    variance_of_small_images, moments_restored_once, gumbel_before_the_cast, masses_of_slow_particles, scan_that_forgets, losses_of_unsure_tokens,
)  # fmt: skip
