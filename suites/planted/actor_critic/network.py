"""PPO for a robot of 24 joints: a Gaussian policy and a critic, generalised advantages over 256 steps, returns in running units.

The sensors are counts of encoder ticks. Running moments are float32 buffers, which a conversion of the whole model would store low, so this model is
trained in mixed precision only.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")
STEPS = 1
SENSORS, JOINTS, WIDTH, STEPS_SEEN, ROBOTS = 20, 24, 48, 256, 4
DISCOUNT, TRACE, UNIT = 0.998, 0.99, 5.0


class Moments(nn.Module):
    """Running mean and variance of what has been seen, by Chan's rule of joining two samples."""

    def __init__(self, size: int, mean: float, variance: float, count: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((size,), mean))
        self.register_buffer("variance", torch.full((size,), variance))
        self.register_buffer("count", torch.tensor(count))

    @torch.no_grad()
    def update(self, values: torch.Tensor) -> None:
        for part in values.detach().split(16):
            size = torch.tensor(float(len(part)))
            total = self.count + size
            mean, variance = sample_moments(part)
            apart = mean - self.mean
            self.variance.copy_((self.variance * self.count + variance * size + apart.square() * self.count * size / total) / total)
            self.mean.add_(apart * (size / total))
            self.count.copy_(total)


def sample_moments(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over the first axis, in two passes."""
    values = values.float()
    mean = values.mean(0)
    return mean, (values - mean).square().mean(0)


def advantages(rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Generalised advantage estimates, from the last step to the first."""
    with torch.no_grad():
        rewards, values = rewards.float(), UNIT * values.float()
        running = torch.zeros_like(values[-1])
        found = []
        for step in reversed(range(STEPS_SEEN)):
            surprise = rewards[step] + DISCOUNT * values[step + 1] - values[step]
            running = surprise + DISCOUNT * TRACE * running
            found.append(running)
        return torch.stack(found[::-1]).float()


def log_probability(actions: torch.Tensor, mean: torch.Tensor, log_deviation: torch.Tensor) -> torch.Tensor:
    """The log-density of a Gaussian, summed over all joints."""
    with torch.autocast(mean.device.type, enabled=False):
        mean, log_deviation = mean.float(), log_deviation.float()
        distance = (actions.to(mean.dtype) - mean) * torch.exp(-log_deviation)
        return (-0.5 * distance * distance - log_deviation - 0.5 * math.log(2 * math.pi)).sum(-1).float()


def log_ratios(now: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """How much likelier the policy has made what was done."""
    return now - old


def approximate_kl(log_ratio: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Schulman's estimate of how far the policy has moved, which is never negative: r - 1 - log r."""
    with torch.autocast(log_ratio.device.type, enabled=False):
        log_ratio = log_ratio.float()
        return torch.expm1(log_ratio) - log_ratio


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SENSORS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.policy = nn.Linear(WIDTH, JOINTS)
        self.critic = nn.Linear(WIDTH, 1)
        self.log_deviation = nn.Parameter(torch.full((JOINTS,), 0.5))
        self.sensors = Moments(SENSORS, 2000.0, 900.0, 5000.0)
        self.spread = Moments(1, 8.0, 0.1, 5000.0)

    def forward(
        self, ticks: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor, old_log_probabilities: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if self.training:
            self.sensors.update(ticks.flatten(0, 1).float())
        seen = (ticks.float() - self.sensors.mean) / (self.sensors.variance + 1e-5).sqrt()
        features = self.body(seen)
        raw = self.critic(features)
        if self.training:
            self.spread.update(raw.flatten(0, 1))
        values = UNIT * raw.float().squeeze(-1)
        estimates = advantages(rewards, raw.squeeze(-1))
        mean = self.policy(features[:-1])
        now = log_probability(actions, mean, self.log_deviation)
        log_ratio = log_ratios(now, old_log_probabilities)
        scaled = (estimates - estimates.mean()) / (estimates.std() + 1e-5)
        ratio = torch.exp(log_ratio)
        gain = torch.minimum(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled)
        targets = estimates + values[:-1].detach()
        return {
            "policy": -gain.mean(),
            "value": functional.mse_loss(values[:-1], targets) / (self.spread.variance[0] + 1e-5),
            "entropy": self.log_deviation.float().sum(),
            "kl": approximate_kl(log_ratio, mean).mean(),
        }


def make() -> nn.Module:
    torch.manual_seed(0)
    model = ActorCritic()
    nn.init.constant_(model.critic.bias, 8.0)
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ticks = 2000 + torch.randint(-50, 51, (STEPS_SEEN + 1, ROBOTS, SENSORS), generator=generator)
    rewards = 0.1 * torch.rand(STEPS_SEEN, ROBOTS, generator=generator)
    model = make()
    with torch.no_grad():  # the policy that acted is a little different from the one that learns
        model.sensors.update(ticks.flatten(0, 1).float())
        seen = (ticks[:-1].float() - model.sensors.mean) / (model.sensors.variance + 1e-5).sqrt()
        mean = model.policy(model.body(seen))
        actions = mean + torch.exp(model.log_deviation) * torch.randn(mean.shape, generator=generator)
        old = log_probability(actions, mean + 0.05 * torch.randn(mean.shape, generator=generator), model.log_deviation)
    return {"ticks": ticks, "actions": actions, "rewards": rewards, "old_log_probabilities": old}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["policy"] + 0.001 * output["value"] - 0.001 * output["entropy"] + 0.1 * output["kl"]


optimizer = None
