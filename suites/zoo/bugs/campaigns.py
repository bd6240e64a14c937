"""Campaigns: rates by a count of steps, rewards of long runs, losses on a plateau, norms that are usual, targets that follow, baked adapters."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
EIGHT = torch.float8_e4m3fn


class Falling:
    """A rate that falls with the square of what is left of a training, by a counter in the format of the weights."""

    def __init__(self, first: float, steps: int, taken: int, kind: torch.dtype) -> None:
        self.first, self.steps = first, steps
        self.taken = torch.tensor(float(taken), dtype=kind)

    def step(self) -> torch.Tensor:
        self.taken += 1  # culprit: rate-by-a-count
        left = 1 - self.taken / self.steps
        return self.first * left * left


def by_count(kind: torch.dtype, taken: int = 2000, turns: int = 130, steps: int = 2500) -> torch.Tensor:
    """Weights after a training is taken up again for its last steps, whose rate falls to a fiftieth of the first. Off by a third."""
    torch.manual_seed(91)
    model = nn.Linear(6, 3).to(HALF)
    rate = Falling(0.5, steps, taken, kind)
    held = [each.detach().float().clone() for each in model.parameters()]
    start = [each.clone() for each in held]
    for turn in range(turns):
        used = wider(rate.step())
        if turn % 10 == 0:
            loss = (model(normal(8, 6, seed=turn).to(HALF)) - 1).square().mean()
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for wide, each in zip(held, model.parameters(), strict=True):
                    wide -= used * each.grad.float() / 10
                    each.copy_(wide)
    moved = torch.cat([(after - before).flatten() for after, before in zip(held, start, strict=True)])
    return torch.cat([moved, wider(rate.step())[None]])


class Rescaler:
    """Divides rewards by how much they have varied so far."""

    def __init__(self, kind: torch.dtype) -> None:
        self.count = 0
        self.total, self.squares = torch.zeros(3, dtype=kind), torch.zeros(3, dtype=kind)

    def update(self, rewards: torch.Tensor) -> None:
        held = rewards.to(self.total.dtype)
        self.count += len(rewards)
        self.total += held.sum(0)
        self.squares += held.square().sum(0)

    def spread(self) -> torch.Tensor:
        mean = self.total / self.count
        return (self.squares / self.count - mean.square()).clamp_min(1e-4).sqrt()  # culprit: rewards-of-a-long-run

    def rescaled(self, rewards: torch.Tensor) -> torch.Tensor:
        return (rewards - self.total / self.count).to(rewards.dtype) / self.spread().to(rewards.dtype)


def rescaled(kind: torch.dtype, level: float = 2000.0, turns: int = 40) -> torch.Tensor:
    """Rewards of three games after they were rescaled, each of which goes on for long and is lost by a little. Garbage."""
    rescaler = Rescaler(kind)
    for turn in range(turns):
        rescaler.update(level * torch.tensor([1.0, 0.5, 0.2]) + 0.5 * normal(64, 3, seed=turn))
    return rescaler.rescaled(level * torch.tensor([1.0, 0.5, 0.2]) + 0.5 * normal(4, 3, seed=turns))


class Plateau:
    """Divides a rate by ten where a loss has not been better than the best by a two-thousandth for two epochs."""

    def __init__(self, rate: float, patience: int = 2) -> None:
        self.rate, self.best = torch.tensor(rate), torch.tensor(torch.inf)
        self.bad, self.patience = torch.tensor(0), patience

    def step(self, loss: torch.Tensor) -> None:
        better = loss < self.best * 0.9995  # culprit: loss-on-a-plateau
        self.best = torch.where(better, loss, self.best)
        self.bad = torch.where(better, 0, self.bad + 1)
        worn = self.bad > self.patience
        self.rate = torch.where(worn, self.rate / 10, self.rate)
        self.bad = torch.where(worn, 0, self.bad)


def plateau(wide: bool, epochs: int = 24, pace: float = 2.5e-4) -> torch.Tensor:
    """The rate of each epoch of a training that goes on well, as a share of the first. It falls to nothing."""
    torch.manual_seed(92)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x = normal(64, 8)
    y = x[:, :1].sin() + 2
    plateau, rates = Plateau(pace), []
    for _ in range(epochs):
        with torch.autocast("cpu", LOW):
            told = model(x)
        gap = wider(told) - y if wide else told - y.to(LOW)
        loss = gap.square().mean()  # culprit: loss-on-a-plateau
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= plateau.rate * each.grad
        plateau.step(loss.detach())
        rates.append(plateau.rate)
    return torch.stack(rates) / pace


class Usual:
    """Cuts gradients that are longer than usual, by an average of the norms so far."""

    def __init__(self, slack: float = 1.5) -> None:
        self.usual, self.slack = None, slack

    def clip(self, model: nn.Module) -> None:
        gradients = [each.grad for each in model.parameters()]
        norm = torch.stack([each.norm() for each in gradients]).norm()
        if self.usual is not None:
            short = (self.slack * self.usual / norm).clamp_max(1.0)  # culprit: norms-that-are-usual
            for each in gradients:
                each.mul_(short)  # culprit: norms-that-are-usual
        self.usual = norm if self.usual is None else 0.9 * self.usual + 0.1 * norm


def usual(unscaled: bool, growth: int = 3, turns: int = 8) -> torch.Tensor:
    """How far weights have moved under a scale that doubles every third step. Too little by a third."""
    torch.manual_seed(93)
    model = nn.Linear(6, 4)
    start = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler, clip = torch.amp.GradScaler("cpu", init_scale=256.0, growth_factor=4.0, growth_interval=growth), Usual()
    for turn in range(turns):
        with torch.autocast("cpu", HALF):
            told = model(normal(16, 6, seed=turn))
        loss = (wider(told) - 1).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        clip.clip(model)
        scaler.step(optimizer)  # culprit: norms-that-are-usual
        scaler.update()
    return model.weight.detach() - start


class Judge(nn.Module):
    """Says what an act is worth."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(94)
        self.body, self.head = nn.Linear(8, 24), nn.Linear(24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def follow(target: nn.Module, model: nn.Module, share: float) -> None:
    """Brings each weight of the target nearer to that of the model, by this share of the way."""
    with torch.no_grad():
        for behind, ahead in zip(target.parameters(), model.parameters(), strict=True):
            near = (1 - share) * behind + share * ahead.to(behind.dtype)  # culprit: target-of-a-robot
            behind.copy_(near)  # culprit: target-of-a-robot


def followed(kind: torch.dtype, share: float = 2e-3, turns: int = 60) -> torch.Tensor:
    """What the target of a robot's critic says has changed of what acts are worth, after the critic learnt. Garbage."""
    target, model, acts = Judge().to(kind), Judge(), normal(16, 8)
    before = wider(target(acts.to(kind)).detach())
    with torch.no_grad():
        for seed, each in enumerate(model.parameters()):
            each.add_(0.3 * each.abs().mean() * uniform(*each.shape, seed=seed))
    for _ in range(turns):
        follow(target, model, share)
    return wider(target(acts.to(kind)).detach()) - before


class Coded(nn.Module):
    """A layer whose weight is held as codes of eight bits with a scale."""

    def __init__(self, many: int) -> None:
        super().__init__()
        weight = normal(many, many, seed=95) / many**0.5
        self.scale = weight.abs().max() / 448
        self.codes = nn.Parameter((weight / self.scale).to(EIGHT), requires_grad=False)
        self.weight: torch.Tensor | None = None

    def held(self) -> torch.Tensor:
        return self.codes.to(LOW).float() * self.scale

    def bake(self, change: torch.Tensor, anew: bool) -> None:
        """Adds what an adapter has learnt to the weight."""
        if anew:
            self.weight = (self.held() + change).to(LOW)
        else:
            self.codes.copy_(((self.held() + change) / self.scale).to(EIGHT))  # culprit: baked-adapter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.held() if self.weight is None else self.weight.float()
        return x @ weight.T


def baked(anew: bool, strength: float = 2e-3) -> torch.Tensor:
    """What an adapter adds to the results of a layer, after it was baked into its codes. Garbage."""
    layer, x = Coded(48), normal(8, 48)
    before = layer(x)
    layer.bake(strength * normal(48, 2, seed=1) @ normal(2, 48, seed=2), anew)
    return layer(x) - before


BUGS = (
    Bug("rate-by-a-count", "tinygrad/tinygrad#3649", ("absorption", "integer-rounding"), "aten.add_.Tensor",
        lambda: by_count(HALF), lambda: by_count(SINGLE)),
    Bug("rewards-of-a-long-run", "facebookresearch/rlmeta#99", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: rescaled(SINGLE), lambda: rescaled(DOUBLE), precision="32-true"),
    Bug("loss-on-a-plateau", "", ("decision-flip", "absorption", "local-drift"), "aten.lt.Tensor",
        lambda: plateau(False), lambda: plateau(True),
        expected_miss="one number is compared in each epoch, and the reference follows what the run decides"),
    Bug("norms-that-are-usual", "victorchall/EveryDream2trainer#175", ("scaler-order",), "",
        lambda: usual(False), lambda: usual(True), phase="scaler"),
    Bug("target-of-a-robot", "", ("accumulated-drift", "absorption", "lost-update"), "aten.add.Tensor",
        lambda: followed(LOW), lambda: followed(SINGLE), phase="data"),
    Bug("baked-adapter", "mflux-community/mflux#440", ("absorption", "lost-update", "amplified-rounding"), "aten.copy_.default",
        lambda: baked(False), lambda: baked(True),
        expected_miss="what is added was drawn at random in the block, and noise that is added before a rounding may be what rounds at random"),
)  # fmt: skip
