"""Surgeries on steps: rectified steps, slow weights, snapshots of gradients, tasks that disagree, chains of weights, springs of old tasks."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Rectified(torch.optim.Optimizer):
    """Adam whose first steps are held back as long as little is known of the spread of gradients.

    What is known is told by `length`, the number of gradients that the mean of squares is worth. As long as it is four or
    less, the step is one of plain momentum.
    """

    def __init__(self, parameters: list[nn.Parameter], rate: float, betas: tuple[float, float], kind: torch.dtype) -> None:
        super().__init__(parameters, {"rate": rate, "betas": betas, "kind": kind})

    @staticmethod
    def rectify(turn: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The share of a full step, nought where too little is known; and how much of the mean of squares is filled."""
        longest = 2 / (1 - beta) - 1
        power = beta**turn
        length = longest - 2 * turn * power / (1 - power)  # culprit: rectified-steps
        share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)  # culprit: rectified-steps
        return torch.where(length > 4, share.clamp_min(0).sqrt(), torch.zeros_like(share)), 1 - power

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state["turn"] = torch.zeros((), dtype=group["kind"])
                    state["mean"], state["square"] = torch.zeros_like(each), torch.zeros_like(each)
                state["turn"] += 1
                state["mean"].lerp_(each.grad, 1 - first)
                state["square"].mul_(second).addcmul_(each.grad, each.grad, value=1 - second)
                share, filled = (told.to(each.dtype) for told in self.rectify(state["turn"], second))
                mean = state["mean"] / (1 - first ** state["turn"]).to(each.dtype)
                adapted = mean / ((state["square"] / filled).sqrt() + 1e-8)
                each -= group["rate"] * torch.where(share > 0, share * adapted, mean)


class Regressor(nn.Module):
    """Three layers, with a norm between the first two."""

    def __init__(self, wide: int = 32) -> None:
        super().__init__()
        torch.manual_seed(31)
        self.body, self.norm, self.middle, self.head = nn.Linear(12, wide), nn.LayerNorm(wide), nn.Linear(wide, wide), nn.Linear(wide, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.body(x)))
        return self.head(torch.relu(self.middle(hidden)))


def lesson(turn: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """64 inputs, and what is to be said of them."""
    x = normal(64, 12, seed=turn)
    return x.to(dtype), torch.sin(x[:, :4] + x[:, 4:8]).to(dtype)


def rectified(kind: torch.dtype, beta: float = 0.9999, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How far a head's weights moved in eight steps. Off by a half."""
    model = Regressor().to(dtype)
    start = model.head.weight.detach().clone()
    optimizer = Rectified(list(model.parameters()), 0.05, (0.9, beta), kind)
    for turn in range(8):
        x, y = lesson(turn, dtype)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.head.weight.detach() - start


class Lookahead:
    """Goes five steps ahead, then a part of the way back to weights that move slowly, which are kept in another format."""

    def __init__(self, optimizer: torch.optim.Optimizer, kept: torch.dtype, share: float = 0.5) -> None:
        self.optimizer, self.share, self.turn = optimizer, share, 0
        self.fast = [each for group in optimizer.param_groups for each in group["params"]]
        self.slow = [each.detach().to(kept, copy=True) for each in self.fast]

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.turn += 1
        if self.turn % 5 == 0:
            for slow, fast in zip(self.slow, self.fast, strict=True):
                slow.add_(fast - slow, alpha=self.share)  # culprit: weights-that-look-ahead
                fast.copy_(slow)


def looked_ahead(kept: torch.dtype, rate: float = 2e-4, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How far a layer's weights moved in thirty steps. It does not move."""
    model = Regressor().to(dtype)
    start = model.middle.weight.detach().to(kept, copy=True).to(dtype)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9), kept)
    for turn in range(30):
        x, y = lesson(turn, dtype)
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model.middle.weight.detach() - start


def snapshot(kind: torch.dtype, away: float = 0.001, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How far a fit moved in forty steps, each by what its batch says now less what it said at the snapshot. Off by 40 %."""
    x, noise = normal(640, 16).to(dtype), normal(640, 1, seed=1).to(dtype)
    right = normal(16, 1, seed=2).to(dtype)
    y = x @ right + 3 * noise
    fit = torch.linalg.lstsq(x, y).solution
    kept = fit + away * normal(16, 1, seed=3).to(dtype)
    weight = kept.clone()

    def slope(rows: slice, at: torch.Tensor) -> torch.Tensor:
        return (x[rows].T @ (x[rows] @ at - y[rows]) / len(x[rows])).to(kind)  # culprit: snapshot-of-a-gradient

    whole = slope(slice(0, 640), kept)
    for turn in range(40):
        rows = slice(turn * 16, turn * 16 + 16)
        change = slope(rows, weight) - slope(rows, kept)  # culprit: snapshot-of-a-gradient
        weight = weight - 0.05 * (change + whole).to(dtype)
    return weight - kept


class TwoTasks(nn.Module):
    """A trunk with two heads, which want opposite things of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(33)
        self.trunk, self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 8), nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.trunk(x))
        return self.first(hidden), self.second(hidden)


def disagreeing(wide: bool, scale: float = 1024.0, dtype: torch.dtype = HALF) -> torch.Tensor:
    """What two losses, scaled for half precision, leave of each other's gradients of the trunk. NaN."""
    model = TwoTasks().to(dtype)
    told = normal(32, 64).to(dtype)
    first, second = model(told)
    goal = normal(32, 8, seed=1).to(dtype)
    losses = (first - 4 * goal).square().mean() * scale, (second + 4 * goal).square().mean() * scale
    slopes = [torch.autograd.grad(loss, list(model.trunk.parameters()), retain_graph=True) for loss in losses]
    flat = [torch.cat([each.flatten() for each in slope]) for slope in slopes]
    if wide:
        flat = [wider(each) for each in flat]
    kept = []
    for mine, theirs in ((flat[0], -flat[0] + flat[1] / 8), (flat[1], flat[0])):
        agree = (mine * theirs).sum()  # culprit: tasks-that-disagree
        cut = agree.clamp_max(0) / theirs.square().sum()  # culprit: tasks-that-disagree
        kept.append(mine - cut * theirs)
    return wider(kept[0] + kept[1]) / scale


def chain(kept: torch.dtype, rate: float = 1e-5, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How far fits of a chain spread, which is moved by its gradient and by noise. Off by 90 %."""
    x = normal(200, 32).to(dtype)
    y = x @ torch.ones(32, 1, dtype=dtype) + normal(200, 1, seed=1).to(dtype)
    weight = (1 + 0.4 * normal(32, 1, seed=2)).to(kept)
    seen = []
    for turn in range(120):
        slope = x.T @ (x @ weight.to(dtype) - y)
        noise = normal(32, 1, seed=100 + turn).to(dtype)
        weight -= (rate / 2 * slope).to(kept)  # culprit: noise-of-a-chain
        weight += (math.sqrt(rate) * noise).to(kept)  # culprit: noise-of-a-chain
        seen.append(wider(weight.clone()))
    moved = torch.cat(seen, 1)
    return moved[:, -1:] - moved[:, :1]


class Springs:
    """Holds a network by springs to what it was after an old task: the stiffer, the more that task's answers hang on a weight."""

    def __init__(self, model: nn.Module, kind: torch.dtype) -> None:
        self.model, self.kind = model, kind
        self.rest = {name: each.detach().clone() for name, each in model.named_parameters()}
        self.stiff = {name: torch.zeros_like(each, dtype=kind) for name, each in model.named_parameters()}

    def learn(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Adds the squares of the slopes of an old task's log-likelihood, one batch after another."""
        for x, y in batches:
            self.model.zero_grad()
            (-0.5 * (self.model(x) - y).square().mean()).backward()
            for name, each in self.model.named_parameters():
                if each.grad is not None:
                    self.stiff[name] += each.grad.to(self.kind).square() / len(batches)  # culprit: springs-of-an-old-task
        self.model.zero_grad()

    def pull(self) -> torch.Tensor:
        """The energy in all springs."""
        parts = [(wider(self.stiff[name]) * (each - self.rest[name]).square()).sum() for name, each in self.model.named_parameters()]
        return torch.stack(parts).sum()


def trained(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], rate: float, springs: Springs | None = None) -> float:
    """The last loss of a task, of which each batch is seen once, with the pull of the springs if there are any."""
    optimizer, last = torch.optim.Adam(model.parameters(), lr=rate), 0.0
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        whole = loss if springs is None else loss + 1e9 * springs.pull()
        optimizer.zero_grad()
        whole.backward()
        optimizer.step()
        last = float(loss.detach())
    return last


def sprung(kind: torch.dtype, size: float = 1.0, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How far a network moves from what it was after its first task, in the second. Off by a third."""
    model = Regressor().to(dtype)
    old = [lesson(turn, dtype) for turn in range(24)]
    trained(model, old, 3e-3)
    springs = Springs(model, kind)
    springs.learn([(x, model(x).detach() + 0.002 * size * normal(64, 4, seed=turn).to(dtype)) for turn, (x, _) in enumerate(old)])
    new = [(x, -y) for x, y in (lesson(50 + turn, dtype) for turn in range(12))]
    trained(model, new, 1e-3, springs)
    return torch.cat([(each - springs.rest[name]).flatten() for name, each in model.named_parameters()]).detach()


BUGS = (
    Bug("rectified-steps", "ooples/AiDotNet.Tensors#960", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: rectified(SINGLE), lambda: rectified(DOUBLE), phase="optimizer", precision="32-true"),
    Bug("weights-that-look-ahead", "wandb/senpai#432", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: looked_ahead(LOW), lambda: looked_ahead(SINGLE), phase="data", step=31),
    Bug("snapshot-of-a-gradient", "apache/mxnet#12376", ("amplified-rounding", "cancellation"), "aten.div.Tensor",
        lambda: snapshot(LOW), lambda: snapshot(SINGLE)),
    Bug("tasks-that-disagree", "WeiChengTseng/Pytorch-PCGrad#9", ("overflow", "nan"), "aten.sum.default",
        lambda: disagreeing(False), lambda: disagreeing(True)),
    Bug("noise-of-a-chain", "normal-computing/posteriors#45", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: chain(LOW), lambda: chain(SINGLE)),
    Bug("springs-of-an-old-task", "talreiss/PANDA#3", ("underflow", "absorption"), "aten.pow.Tensor_Scalar",
        lambda: sprung(HALF), lambda: sprung(SINGLE), step=25),
)  # fmt: skip
