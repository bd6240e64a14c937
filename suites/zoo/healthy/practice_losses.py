"""Losses, returns and samplers as careful people write them: low features and networks, and float32 where numbers are summed or compared."""

from __future__ import annotations

import itertools
import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from .practice_training import LOW, perceptron


def pairs_by_a_sigmoid() -> torch.Tensor:
    """SigLIP: features of an encoder in bfloat16, their unit vectors and all logits in float32, with a learned scale and bias."""
    images, texts = perceptron(24, 32, 16).to(LOW), perceptron(20, 32, 16, seed=1).to(LOW)
    scale, bias = nn.Parameter(torch.tensor(math.log(10.0))), nn.Parameter(torch.tensor(-10.0))
    first = functional.normalize(images(normal(12, 24).to(LOW)).float(), dim=-1)
    second = functional.normalize(texts(normal(12, 20, seed=2).to(LOW)).float(), dim=-1)
    logits = first @ second.mT * scale.exp() + bias
    signs = 2 * torch.eye(12) - 1
    loss = -functional.logsigmoid(signs * logits).sum(-1).mean()
    loss.backward()
    return torch.stack([loss.detach(), scale.grad, bias.grad])


def contrast_of_labelled_views() -> torch.Tensor:
    """The supervised contrastive loss: products under autocast, scores taken off their largest and summed in float32."""
    encoder, labels = perceptron(16, 32, 24), (5 * uniform(24)).long()
    with torch.autocast("cpu", dtype=LOW):
        features = encoder(normal(24, 16, seed=1))
    features = functional.normalize(features.float(), dim=-1)
    scores = features @ features.mT / 0.1
    others = ~torch.eye(24, dtype=torch.bool)
    scores = scores - scores.amax(1, keepdim=True).detach()
    log_chance = scores - torch.logsumexp(scores.masked_fill(~others, -torch.inf), 1, keepdim=True)
    same = (labels[:, None] == labels) & others
    loss = -(log_chance * same).sum(1)[same.any(1)] / same.sum(1)[same.any(1)]
    loss.mean().backward()
    return torch.cat([loss.detach(), encoder[0].weight.grad.flatten()])


def velocity_of_a_straight_flow() -> torch.Tensor:
    """Flow matching: times by a logistic of normal numbers, both ends in float32, a network in bfloat16, a weighted loss in float32."""
    model = perceptron(17, 64, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(4):
        data, noise = normal(32, 16, seed=step) + 2, normal(32, 16, seed=30 + step)
        time = torch.sigmoid(normal(32, 1, seed=60 + step))
        between = (1 - time) * noise + time * data
        with torch.autocast("cpu", dtype=LOW):
            velocity = model(torch.cat([between, time], -1))
        loss = (velocity.float() - (data - noise)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def sampler_of_second_order() -> torch.Tensor:
    """DPM-Solver++ in two steps: levels and states in float32, a denoiser in bfloat16, coefficients by expm1 of small differences."""
    model = perceptron(17, 48, 16).to(LOW)
    levels = torch.linspace(5.0 ** (1 / 7), 0.02 ** (1 / 7), 9).pow(7)
    x, before, last = 5 * normal(8, 16), None, 0.0
    for now, then in itertools.pairwise(levels):
        scaled = (x / (1 + now**2).sqrt()).to(LOW)
        skip, gain = 1 / (1 + now**2), now / (1 + now**2).sqrt()
        clean = skip * x + gain * model(torch.cat([scaled, (now.log() / 4).expand(8, 1).to(LOW)], -1)).float()
        step = float(now.log() - then.log())
        blended = clean if before is None else clean + (clean - before) * step / (2 * last)
        x = then / now * x - math.expm1(-step) * blended
        before, last = clean, step
    return x


def sampler_with_churn() -> torch.Tensor:
    """Heun's sampler with a little fresh noise in each step: levels and states in float32 beside a low network."""
    model = perceptron(9, 32, 8).to(LOW)

    def denoised(x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        low = torch.cat([x / (0.25 + level**2).sqrt(), (level.log() / 4).expand(len(x), 1)], -1).to(LOW)
        return 0.25 / (level**2 + 0.25) * x + level * 0.5 / (level**2 + 0.25).sqrt() * model(low).float()

    levels = torch.cat([torch.linspace(3.0, 0.05, 6), torch.zeros(1)])
    x = 3 * normal(10, 8)
    for place in range(6):
        now, then = levels[place], levels[place + 1]
        up = now * 1.1
        x = x + (up**2 - now**2).sqrt() * normal(10, 8, seed=place + 1)
        slope = (x - denoised(x, up)) / up
        ahead = x + (then - up) * slope
        if then > 0:
            slope = (slope + (ahead - denoised(ahead, then)) / then) / 2
        x = x + (then - up) * slope
    return x


def advantages_of_a_group() -> torch.Tensor:
    """GRPO: advantages of each question's answers in float32, log chances in float32 from low logits, ratios that are clipped."""
    hidden, head = normal(12, 9, 16).to(LOW), (normal(40, 16, seed=1) / 4).to(LOW).requires_grad_()
    tokens = (40 * uniform(12, 9)).long()
    rewards = (uniform(4, 3, seed=3) > 0.5).float() + 0.1 * uniform(4, 3, seed=4)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    logps = torch.log_softmax((hidden @ head.mT).float(), -1).gather(-1, tokens[..., None])[..., 0]
    old = logps.detach() + 0.1 * normal(12, 9, seed=5)
    ratio = (logps - old).exp()
    term = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
    mask = (torch.arange(9) < (3 + 6 * uniform(12, seed=6)).long()[:, None]).float()
    loss = -((term * mask).sum(1) / mask.sum(1)).mean()
    loss.backward()
    return torch.cat([loss.detach().view(1), head.grad.float().flatten()])


def advantages_by_shrinking_sums() -> torch.Tensor:
    """GAE: values of a critic in bfloat16, cast before the sums, advantages standardised over what is not padding."""
    critic = perceptron(12, 32, 1).to(LOW)
    with torch.no_grad():
        values = critic(normal(40, 9, 12).to(LOW)).squeeze(-1).float()
    rewards, dones = uniform(40, 8), uniform(40, 8, seed=1) < 0.05
    total, found = torch.zeros(40), []
    for step in reversed(range(8)):
        going = 1 - dones[:, step].float()
        delta = rewards[:, step] + 0.99 * values[:, step + 1] * going - values[:, step]
        total = delta + 0.99 * 0.95 * going * total
        found.append(total)
    advantages = torch.stack(found[::-1], 1)
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def returns_of_an_older_policy() -> torch.Tensor:
    """V-trace: ratios by differences of log chances in float32, truncated, and a recursion backwards in float32."""
    logits = 2 * normal(2, 6, 10, 5).to(LOW)
    actions = (5 * uniform(6, 10)).long()
    now, old = torch.log_softmax(logits.float(), -1).gather(-1, actions.expand(2, 6, 10)[..., None])[..., 0]
    ratio = (now - old).exp()
    values, rewards = normal(6, 11, seed=2).to(LOW).float(), uniform(6, 10, seed=3)
    kept = ratio.clamp(max=1.0)
    deltas = kept * (rewards + 0.97 * values[:, 1:] - values[:, :-1])
    total, found = torch.zeros(6), []
    for step in reversed(range(10)):
        total = deltas[:, step] + 0.97 * kept[:, step] * total
        found.append(total + values[:, step])
    return torch.stack(found[::-1], 1)


def classes_of_returns() -> torch.Tensor:
    """C51: chances in float32, their places shifted by a reward and shared among the two nearest places."""
    places, step = torch.linspace(-2, 2, 21), 0.2
    chances = torch.softmax(normal(16, 21).to(LOW).float(), -1)
    target = (normal(16, 1, seed=1) + 0.9 * places).clamp(-2, 2)
    upto = (target + 2) / step
    low = upto.floor().clamp(0, 19)
    share = upto - low
    projected = torch.zeros(16, 21)
    projected.scatter_add_(1, low.long(), chances * (1 - share))
    projected.scatter_add_(1, low.long() + 1, chances * share)
    logits = (normal(16, 21, seed=2).to(LOW)).float()
    return -(projected * torch.log_softmax(logits, -1)).sum(-1)


def quantiles_by_hubers_loss() -> torch.Tensor:
    """QR-DQN: quantiles of two networks in bfloat16, all differences and the loss in float32."""
    online, frozen = perceptron(10, 32, 16).to(LOW), perceptron(10, 32, 16, seed=3).to(LOW)
    now = online(normal(12, 10).to(LOW)).float()
    with torch.no_grad():
        target = uniform(12, 1) + 0.9 * frozen(normal(12, 10, seed=1).to(LOW)).float()
    apart = target[:, None, :] - now[:, :, None]
    middle = (torch.arange(16) + 0.5)[:, None] / 16
    huber = torch.where(apart.abs() <= 1, 0.5 * apart.square(), apart.abs() - 0.5)
    loss = ((middle - (apart.detach() < 0).float()).abs() * huber).mean(-1).sum(-1)
    loss.mean().backward()
    return torch.cat([loss.detach(), online[0].weight.grad.float().flatten()])


def preferred_by_odds() -> torch.Tensor:
    """ORPO: odds by log1p of minus a chance, from means of log chances in float32 over what is no padding."""
    logits = 2 * normal(2, 6, 12, 30).to(LOW)
    tokens = logits.float().argmax(-1)
    tokens[1] = (30 * uniform(6, 12)).long()
    logps = torch.log_softmax(logits.float(), -1).gather(-1, tokens[..., None])[..., 0]
    mask = (torch.arange(12) < torch.tensor([12, 9, 7, 12, 4, 10])[:, None]).float()
    chosen, rejected = (logps * mask).sum(-1) / mask.sum(-1)
    odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return -chosen - 0.1 * functional.logsigmoid(odds)


def middle_of_two_teachers() -> torch.Tensor:
    """The Jensen-Shannon divergence of a student and a teacher, logits cast first, mixed in logarithms."""
    student, teacher = (2 * normal(20, 50).to(LOW)).requires_grad_(), (2 * normal(20, 50, seed=1)).to(LOW)
    p, q = torch.log_softmax(student.float() / 2, -1), torch.log_softmax(teacher.float() / 2, -1)
    mixed = torch.logaddexp(p, q) - math.log(2)
    loss = 0.5 * ((p.exp() * (p - mixed)).sum(-1) + (q.exp() * (q - mixed)).sum(-1))
    loss.mean().backward()
    return torch.cat([loss.detach(), student.grad.float().flatten()])


def alignments_by_hand() -> torch.Tensor:
    """CTC: paths added up by logarithms in float32, over log chances from bfloat16 logits."""
    logits = (normal(20, 12) @ (normal(12, 8, seed=1) / 2)).to(LOW)
    logps = torch.log_softmax(logits.float(), -1)
    word = torch.tensor([0, 3, 0, 5, 0, 5, 0, 1, 0])
    leaps = torch.zeros(9, dtype=torch.bool)
    leaps[2:] = (word[2:] != 0) & (word[2:] != word[:-2])
    alpha = torch.full((9,), -torch.inf)
    alpha[:2] = logps[0, word[:2]]
    for frame in logps[1:]:
        one = torch.cat([torch.full((1,), -torch.inf), alpha[:-1]])
        two = torch.cat([torch.full((2,), -torch.inf), alpha[:-2]]).masked_fill(~leaps, -torch.inf)
        alpha = torch.logsumexp(torch.stack([alpha, one, two]), 0) + frame[word]
    return -torch.logaddexp(alpha[-1], alpha[-2])


IDIOMS = (
    pairs_by_a_sigmoid, contrast_of_labelled_views, velocity_of_a_straight_flow, sampler_of_second_order, sampler_with_churn,
    advantages_of_a_group, advantages_by_shrinking_sums, returns_of_an_older_policy, classes_of_returns, quantiles_by_hubers_loss,
    preferred_by_odds, middle_of_two_teachers, alignments_by_hand,
)  # fmt: skip
