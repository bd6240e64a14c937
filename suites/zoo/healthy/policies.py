"""Reinforcement, contrast and distillation: advantages, averages and negatives, as they are written with care."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.rounds import LOW, perceptron, rounds


def whitened_advantages() -> torch.Tensor:
    """Advantages that sum to zero, by a deviation of three plus 1e-8, in float32."""
    states, rewards, actions = normal(32, 6), 1 + 0.1 * normal(32, seed=1), torch.arange(32) % 4
    body = perceptron(6, 32, 5, act=nn.Tanh)

    def loss() -> torch.Tensor:
        logits, values = body(states).float().split([4, 1], -1)
        known, advantage, advantages = values.detach().squeeze(-1), torch.zeros(()), []
        for step in reversed(range(31)):
            advantage = rewards[step] + 0.99 * known[step + 1] - known[step] + 0.94 * advantage
            advantages.append(advantage)
        wanted = torch.stack(advantages[::-1])
        scaled = (wanted - wanted.mean()) / (wanted.std() + 1e-8)
        log_p = functional.log_softmax(logits[:-1], -1)
        picked = log_p.gather(1, actions[:-1, None]).squeeze(1)
        surprise = 0.01 * (log_p.exp() * log_p).sum(-1).mean()
        return -(picked * scaled).mean() + 0.5 * functional.mse_loss(values[:-1, 0], wanted + known[:-1]) + surprise

    return rounds(body, loss, torch.optim.RMSprop(body.parameters(), lr=7e-4, eps=1e-5), clip=0.5)


def followed_target() -> torch.Tensor:
    """A target network that takes 0.5 % of a small difference a step: tiny, and float32."""
    online, target, states = perceptron(6, 32, 4), perceptron(6, 32, 4), normal(32, 6)

    def loss() -> torch.Tensor:
        with torch.no_grad():
            aim = 1 + 0.99 * target(states).float().amax(-1)
            for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
                mine.lerp_(theirs, 0.005)
        return functional.smooth_l1_loss(online(states)[:, 0].float(), aim)

    rounds(online, loss, torch.optim.Adam(online.parameters(), lr=1e-3), steps=10)
    return torch.cat([each.detach().flatten() for each in target.parameters()])


def squashed_actions() -> torch.Tensor:
    """tanh saturates, and its log-determinant comes from a softplus instead."""
    mean, spread = perceptron(6, 32, 4).to(LOW)(normal(32, 6).to(LOW)).float().chunk(2, -1)
    spread, noise = spread.clamp(-5, 2).exp(), normal(32, 2, seed=1)
    u = 8 * mean + spread * noise
    log_p = (-0.5 * noise**2 - spread.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
    return log_p - (2 * (math.log(2) - u - functional.softplus(-2 * u))).sum(-1)


def views() -> torch.Tensor:
    x = normal(16, 12)
    return torch.cat([x + 0.05 * normal(16, 12, seed=1), x + 0.05 * normal(16, 12, seed=2)])


def contrasted_views() -> torch.Tensor:
    """Similarities over 0.07, in float32, with -Inf on the diagonal."""
    net = perceptron(12, 64, 24)

    def loss() -> torch.Tensor:
        z = net(views())
        with torch.autocast("cpu", enabled=False):
            z = functional.normalize(z.float(), dim=-1)
            alike = (z @ z.T / 0.07).fill_diagonal_(float("-inf"))
            return functional.cross_entropy(alike, torch.cat([torch.arange(16, 32), torch.arange(16)]))

    return rounds(net, loss, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


def centred_teacher() -> torch.Tensor:
    """A teacher that follows by 0.4 % and its centre by 10 %, both float32; its logits are over 0.04."""
    student, teacher, centre = perceptron(12, 64, 24), perceptron(12, 64, 24), torch.zeros(24)

    def loss() -> torch.Tensor:
        out = student(views()).float()
        with torch.no_grad():
            aim = teacher(views().flip(0)).float()
            soft = torch.softmax((aim - centre) / 0.04, -1)
            centre.mul_(0.9).add_(0.1 * aim.mean(0))
            for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.mul_(0.996).add_(theirs, alpha=0.004)
        return -(soft * functional.log_softmax(out / 0.1, -1)).sum(-1).mean()

    return rounds(student, loss, torch.optim.AdamW(student.parameters(), lr=5e-4))


def decorrelated_features() -> torch.Tensor:
    """1 - correlation of nearly equal views: a small difference in float32, outside autocast."""
    net = perceptron(12, 64, 24)

    def loss() -> torch.Tensor:
        a, b = net(views()).float().chunk(2)
        a, b = ((each - each.mean(0)) / (each.std(0) + 1e-6) for each in (a, b))
        with torch.autocast("cpu", enabled=False):
            shared = a.T @ b / len(a)
        rest = shared - torch.diag(shared.diagonal())
        return (1 - shared.diagonal()).square().sum() + 5e-3 * rest.square().sum()

    return rounds(net, loss, torch.optim.SGD(net.parameters(), lr=1e-3))


def gradient_penalty() -> torch.Tensor:
    """Second derivatives, in float32, beside a critic under autocast."""
    critic, real, fake = perceptron(8, 32, 1, act=nn.Softplus), normal(16, 8), normal(16, 8, seed=1)

    def loss() -> torch.Tensor:
        apart = critic(fake).float().mean() - critic(real).float().mean()
        with torch.autocast("cpu", enabled=False):
            mixed = (0.3 * real + 0.7 * fake).requires_grad_()
            (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
            return apart + 10 * ((slope.norm(dim=-1) - 1) ** 2).mean()

    return rounds(critic, loss, torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9)))


def accepted_drafts() -> torch.Tensor:
    """max(p - q, 0) of two similar distributions is meant to be small; half of it is clamped."""
    draft = 3 * normal(16, 100)
    target = (draft + 0.25 * normal(16, 100, seed=1)).to(LOW)
    q, p = torch.softmax(draft.to(LOW).float(), -1), torch.softmax(target.float(), -1)
    rest = (p - q).clamp(min=0)
    return torch.where(uniform(16, 1) < 0.5, p, rest / rest.sum(-1, keepdim=True).clamp(min=1e-9))


IDIOMS = (whitened_advantages, followed_target, squashed_actions, contrasted_views, centred_teacher, decorrelated_features, gradient_penalty,
          accepted_drafts)  # fmt: skip
