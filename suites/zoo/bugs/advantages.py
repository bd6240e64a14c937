"""Policies and their optimizers: advantages, moments of observations, values behind a transform, a schedule-free step, sharpness, clipping."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Rollout:
    """What a policy has met in a rollout: rewards, values and ends of episodes, kept in the policy's format or in float32."""

    def __init__(self, steps: int, workers: int, dtype: torch.dtype) -> None:
        self.rewards, self.values, self.alive = (torch.zeros(steps, workers, dtype=dtype) for _ in range(3))

    def add(self, step: int, reward: torch.Tensor, value: torch.Tensor, alive: torch.Tensor) -> None:
        self.rewards[step] = reward
        self.values[step] = value  # culprit: rollout-in-the-policys-format
        self.alive[step] = alive.to(self.alive.dtype)

    def advantages(self, last: torch.Tensor, discount: float, trace: float) -> torch.Tensor:
        """Generalised advantages, from the end to the start."""
        advantage, following, found = torch.zeros_like(self.values[0]), last.to(self.values.dtype), []
        for step in reversed(range(len(self.rewards))):
            better = self.rewards[step] + discount * following * self.alive[step] - self.values[step]  # culprit: rollout-in-the-policys-format
            advantage = better + discount * trace * self.alive[step] * advantage
            following = self.values[step]
            found.append(advantage)
        return torch.stack(found[::-1])


def advantages(dtype: torch.dtype) -> torch.Tensor:
    """Normalised advantages of 64 steps of eight workers, whose values are some hundred and whose rewards are near one."""
    rollout, critic = Rollout(64, 8, dtype), 180 + 12 * normal(65, 8).cumsum(0) / 8
    for step in range(64):
        alive = (uniform(8, seed=90 + step) > 0.02).float()
        reward = critic[step] - 0.995 * critic[step + 1] * alive + 0.4 * normal(8, seed=10 + step)
        rollout.add(step, reward, critic[step], alive)
    found = rollout.advantages(critic[64], 0.995, 0.95).float()
    return (found - found.mean()) / (found.std() + 1e-8)


class RunningMoments(nn.Module):
    """Means and variances of all observations so far, by the rule for two samples that are put together."""

    mean: torch.Tensor
    variance: torch.Tensor
    count: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.to(self.mean.dtype)
        mean, variance, count = batch.mean(0), batch.var(0, unbiased=False), len(batch)
        away, total = mean - self.mean, self.count + count
        squares = self.variance * self.count + variance * count  # culprit: moments-with-the-agent
        squares = squares + away.square() * (self.count * count / total)  # culprit: moments-with-the-agent
        self.mean, self.variance, self.count = self.mean + away * (count / total), squares / total, total
        return (batch - self.mean) / (self.variance + 1e-4).sqrt()


def observed(half: bool) -> torch.Tensor:
    """Observations of the last of thirty batches as the agent sees them, which is cast to half with all that belongs to it."""
    moments = RunningMoments(12)
    if half:
        moments.half()
    spread, centre = 4 + 14 * uniform(12), 10 * normal(12, seed=1)
    for step in range(30):
        seen = moments(centre + spread * normal(128, 12, seed=20 + step))
    return seen.float()


class ValueHead(nn.Module):
    """A value that a network says behind a transform which makes large ones small, and that a search takes back."""

    def __init__(self, width: int, single: bool, slope: float = 0.001) -> None:
        super().__init__()
        self.head, self.single, self.slope = nn.Linear(width, 1), single, slope

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        said = self.head(hidden).squeeze(-1)
        said = said.float() if self.single else said
        inner = torch.sqrt(1 + 4 * self.slope * (said.abs() + 1 + self.slope))  # culprit: value-behind-a-transform
        root = (inner - 1) / (2 * self.slope)  # culprit: value-behind-a-transform
        return said.sign() * (root.square() - 1)


def searched_values(single: bool) -> torch.Tensor:
    """Targets of two steps of 48 states: rewards and the discounted value of the state that follows, under autocast."""
    model, rewards = ValueHead(16, single), uniform(2, 48, seed=3)
    with torch.no_grad():
        model.head.weight.copy_(normal(1, 16) / 2)
        model.head.bias.fill_(6.0)
        with torch.autocast("cpu", LOW):
            value = model(normal(48, 16, seed=2))
    return rewards[0] + 0.997 * rewards[1] + 0.997**2 * value.float()


class ScheduleFree:
    """Steps of a point z, and an average of all z; gradients are taken between the two, and the weights hold that place."""

    def __init__(self, weight: torch.Tensor, lr: float, beta: float) -> None:
        self.weight, self.base, self.lr, self.beta, self.step_count = weight, weight.clone(), lr, beta, 0

    def step(self, gradient: torch.Tensor) -> None:
        self.step_count += 1
        gradient, share = gradient.to(self.weight.dtype), 1 / self.step_count
        self.weight.lerp_(self.base, share)  # culprit: average-without-a-schedule
        self.weight.add_(gradient, alpha=self.lr * (self.beta * (1 - share) - 1))  # culprit: average-without-a-schedule
        self.base.sub_(gradient, alpha=self.lr)  # culprit: average-without-a-schedule

    def average(self) -> torch.Tensor:
        """The weights to test and to keep."""
        return torch.lerp(self.weight.float(), self.base.float(), 1 - 1 / self.beta)


def schedule_free(master: bool) -> torch.Tensor:
    """How far the average has come in 120 steps of a layer that computes in bfloat16, with masters in float32 or without."""
    start, goal = normal(12, 24).to(LOW), normal(12, 24).to(LOW).float() + 0.3 * normal(12, 24, seed=1)
    optimizer = ScheduleFree(start.float() if master else start.clone(), 0.02, 0.9)
    for step in range(120):
        layer = optimizer.weight.detach().to(LOW).requires_grad_()
        x = normal(32, 24, seed=40 + step)
        loss = (functional.linear(x.to(LOW), layer).float() - x @ goal.T).square().sum(-1).mean() / 2
        optimizer.step(torch.autograd.grad(loss, layer)[0])
    return optimizer.average() - start.float()


class SharpnessAware:
    """Adapters in half, which are moved uphill for a second gradient and then back."""

    def __init__(self, weights: list[torch.Tensor], radius: float, saved: bool) -> None:
        self.weights, self.radius, self.saved = weights, radius, saved
        self.moves: list[torch.Tensor] = []

    def ascend(self, gradients: list[torch.Tensor]) -> None:
        scale = self.radius / torch.stack([each.float().norm() for each in gradients]).norm()
        self.moves = [each.clone() for each in self.weights] if self.saved else [(each.float() * scale).half() for each in gradients]
        for weight, each in zip(self.weights, gradients, strict=True):
            weight.add_((each.float() * scale).to(weight.dtype))  # culprit: back-from-uphill

    def descend(self, gradients: list[torch.Tensor], lr: float) -> None:
        for weight, move, each in zip(self.weights, self.moves, gradients, strict=True):
            if self.saved:
                weight.copy_(move)
            else:
                weight.sub_(move)  # culprit: back-from-uphill
            weight.sub_((lr * each.float()).to(weight.dtype))


def sharpness_aware(saved: bool) -> torch.Tensor:
    """The second factor of an adapter, which starts small, after twelve steps with a loss scale of 256."""
    first, second = (normal(4, 16) / 4).half(), (2e-4 * normal(8, 4, seed=1)).half()
    optimizer, x, y = SharpnessAware([second], 2.0, saved), normal(96, 16, seed=2).half(), 0.02 * normal(96, 8, seed=3)

    def gradients() -> list[torch.Tensor]:
        leaf = second.detach().requires_grad_()
        made = functional.linear(functional.linear(x, first), leaf)
        loss = 256 * (made.float() - y).square().mean()
        return [torch.autograd.grad(loss, leaf)[0].float() / 256]

    for _ in range(12):
        optimizer.ascend(gradients())
        optimizer.descend(gradients(), 2e-4)
    return second.float()


def shard_norm(gradients: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The norm of all gradients, whose squares are added up shard by shard."""
    total = torch.zeros((), dtype=dtype)
    for each in gradients:
        local = each.float().norm().to(dtype)
        total += local**2  # culprit: norm-of-many-shards
    return total.sqrt()


def clipped_shards(dtype: torch.dtype) -> torch.Tensor:
    """Gradients in bfloat16 of 700 shards, scaled to a norm of one."""
    gradients = [((0.2 + uniform(1, seed=shard)) * normal(16, seed=2000 + shard) / 4).to(LOW) for shard in range(700)]
    norm = shard_norm(gradients, dtype)
    factor = (1.0 / (norm.float() + 1e-6)).clamp(max=1.0)
    return torch.cat([each.float() * factor for each in gradients])


BUGS = (
    Bug("rollout-in-the-policys-format", "PufferAI/PufferLib#479", ("amplified-rounding", "cancellation"), "aten.sub.Tensor",
        lambda: advantages(LOW), lambda: advantages(WIDE)),
    Bug("moments-with-the-agent", "DLR-RM/stable-baselines3#1954", ("overflow",), "aten.add.Tensor", lambda: observed(True), lambda: observed(False),
        module="RunningMoments"),
    Bug("value-behind-a-transform", "HorizonRobotics/alf#1140", ("amplified-rounding", "cancellation"), "aten.sub.Tensor",
        lambda: searched_values(False), lambda: searched_values(True)),
    Bug("average-without-a-schedule", "LoganBooker/prodigy-plus-schedule-free#33", ("absorption", "lost-update", "accumulated-drift"),
        "aten.add_.Tensor", lambda: schedule_free(False), lambda: schedule_free(True)),
    Bug("back-from-uphill", "openvinotoolkit/model_preparation_algorithm#28", ("amplified-rounding", "absorption", "cancellation"),
        "aten.add_.Tensor", lambda: sharpness_aware(False), lambda: sharpness_aware(True)),
    Bug("norm-of-many-shards", "facebookresearch/fairscale#1092", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: clipped_shards(LOW), lambda: clipped_shards(WIDE)),
)  # fmt: skip
