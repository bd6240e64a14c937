"""Fleets: a basis of gradients, a lesson of a near teacher, tables of confusions, noise of gradients, scales of returns, pondering."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Whitened(torch.optim.Optimizer):
    """Whitens the gradient of each matrix from both sides, by factors that each correct the other."""

    def __init__(self, parameters: list[nn.Parameter], kept: torch.dtype) -> None:
        super().__init__(parameters, {"lr": 0.02, "kept": kept})

    @staticmethod
    def root(factor: torch.Tensor, power: float) -> torch.Tensor:
        values, vectors = torch.linalg.eigh(wider(factor))
        return vectors * values.clamp_min(1e-6 * values[-1]).pow(power) @ vectors.T

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                state, gradient = self.state[each], each.grad
                if not state:
                    state["left"] = 1e-6 * torch.eye(len(each), dtype=group["kept"])
                    state["right"] = 1e-6 * torch.eye(each.shape[1], dtype=group["kept"])
                left, right = self.root(state["left"], -1), self.root(state["right"], -1)
                outer = gradient @ right @ gradient.T / len(right), gradient.T @ left @ gradient / len(left)
                for name, new in zip(("left", "right"), outer, strict=True):
                    state[name] = 0.9 * state[name] + (0.1 * new).to(group["kept"])  # culprit: basis-of-a-preconditioner
                each -= group["lr"] * self.root(state["left"], -0.5) @ gradient @ self.root(state["right"], -0.5)


def whitened(kept: torch.dtype, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How a matrix moved in six steps where its inputs are small. Off by two thirds."""
    torch.manual_seed(23)
    weight = nn.Parameter((0.1 * torch.randn(8, 12)).to(dtype))
    start = weight.detach()[:, 6:].clone()
    optimizer = Whitened([weight], kept)
    sizes = torch.logspace(0, -2.2, 12)
    for turn in range(6):
        told = (normal(64, 12, seed=turn) * sizes).to(dtype)
        loss = (told @ weight.T - told[:, :8] * 3).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return weight.detach()[:, 6:] - start


class Pupil(nn.Module):
    """A network of two layers that sorts into ten classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(24)
        self.body, self.head = nn.Linear(16, 48), nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def lesson(pupil: torch.Tensor, teacher: torch.Tensor, heat: float) -> torch.Tensor:
    """How far the pupil's classes are from the teacher's, each picture by itself."""
    mine, theirs = torch.log_softmax(pupil / heat, -1), torch.log_softmax(teacher / heat, -1)
    return heat**2 * (theirs.exp() * (theirs - mine)).sum(-1)  # culprit: lesson-of-a-near-teacher


def near_teacher(wide: bool, dtype: torch.dtype = LOW) -> torch.Tensor:
    """The losses of 30 pictures, and what they teach: the pupil began as the teacher, less a little. Garbage."""
    teacher, pupil = Pupil(), Pupil()
    with torch.no_grad():
        for each in pupil.parameters():
            each += 0.01 * normal(*each.shape, seed=each.numel())
    teacher, pupil = teacher.to(dtype), pupil.to(dtype)
    seen = normal(30, 16).to(dtype)
    with torch.no_grad():
        right = teacher(seen)
    mine = pupil(seen)
    if wide:
        mine, right = wider(mine), wider(right)
    told = lesson(mine, right, 4.0)
    told.mean().backward()
    return wider(told.detach())


class Confusions:
    """How many pixels of each class were taken for each other one."""

    def __init__(self, classes: int, dtype: torch.dtype) -> None:
        self.table = torch.zeros(classes, classes, dtype=dtype)

    def update(self, taken: torch.Tensor, are: torch.Tensor) -> None:
        sorts = [nn.functional.one_hot(each.flatten(), len(self.table)).to(self.table.dtype) for each in (are, taken)]
        self.table += sorts[0].T @ sorts[1]  # culprit: table-of-confusions

    def overlap(self) -> torch.Tensor:
        table = wider(self.table)
        both = table.diagonal()
        return both / (table.sum(0) + table.sum(1) - both)


def confusions(dtype: torch.dtype) -> torch.Tensor:
    """How well each of five classes was found in 500 pictures of sixteen pixels. Off by 7 %."""
    metric, net = Confusions(5, dtype), Pupil()
    seen, blur = normal(500, 16, 16), normal(500, 16, 5, seed=1)
    with torch.no_grad():
        for picture, noise in zip(seen, blur, strict=True):
            are = (picture[:, :5] + 0.8 * noise).argmax(1)
            metric.update((picture[:, :5] + 0.05 * net(picture)[:, :5]).argmax(1), are)
    return metric.overlap()


class NoiseScale:
    """How large a batch is worth its while, by the norms of gradients of small batches and of all of them together."""

    def __init__(self, model: nn.Module, small: int) -> None:
        self.model, self.small = model, small

    def gradient(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = (self.model(x) - y).square().mean()
        return torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(self.model.parameters()))])

    def measure(self, x: torch.Tensor, y: torch.Tensor, wide: bool) -> torch.Tensor:
        parts = torch.stack([self.gradient(*each) for each in zip(x.split(self.small), y.split(self.small), strict=True)])
        parts = wider(parts) if wide else parts
        of_small, of_all = parts.square().sum(1).mean(), parts.mean(0).square().sum()  # culprit: noise-of-gradients
        ratio = self.small / len(x)
        signal = (of_all - ratio * of_small) / (1 - ratio)
        noise = (of_small - of_all) * self.small / (1 - ratio)  # culprit: noise-of-gradients
        return torch.stack([wider(noise) / wider(signal)])


def noise_scale(wide: bool, dtype: torch.dtype = LOW) -> torch.Tensor:
    """Of a network in three turns, far from what it is to learn. Off by 4 %."""
    seen = []
    for turn in range(3):
        torch.manual_seed(25 + turn)
        model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 1)).to(dtype)
        x = normal(256, 10, seed=turn)
        seen.append(NoiseScale(model, 32).measure(x.to(dtype), (100 + x[:, :1]).to(dtype), wide))
    return torch.cat(seen)


class Returns:
    """Keeps the mean and the spread of returns, by which a critic's head is scaled such that what it says stays."""

    def __init__(self, head: nn.Linear, centred: bool) -> None:
        self.head, self.centred = head, centred
        self.mean, self.second = torch.zeros((), dtype=head.weight.dtype), torch.ones((), dtype=head.weight.dtype)

    def deviation(self) -> torch.Tensor:
        if self.centred:
            return self.second.sqrt()
        return (self.second - self.mean.square()).clamp_min(1e-8).sqrt()  # culprit: scale-of-returns

    @torch.no_grad()
    def update(self, returns: torch.Tensor, share: float) -> None:
        before, mean = self.deviation(), self.mean
        self.mean = mean + share * (returns.mean() - mean)
        if self.centred:
            spread = (returns - returns.mean()).square().mean()
            self.second = (1 - share) * self.second + share * spread + share * (1 - share) * (returns.mean() - mean).square()
        else:
            self.second = self.second + share * (returns.square().mean() - self.second)  # culprit: scale-of-returns
        after = self.deviation()
        self.head.weight *= before / after
        self.head.bias.copy_((before * self.head.bias + mean - self.mean) / after)


def returns(centred: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How much returns near thirty thousand vary, which vary by two. Garbage."""
    torch.manual_seed(26)
    head = nn.Linear(6, 1).to(dtype)
    scaled = Returns(head, centred)
    for turn in range(60):
        scaled.update((30_000 + 2 * normal(128, seed=turn)).to(dtype), 0.4)
    return wider(scaled.deviation())[None]


class Ponder(nn.Module):
    """A cell that thinks about each input until it is sure, by a share in each turn."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(27)
        self.wide = wide
        self.cell, self.halt, self.out = nn.GRUCell(8, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, turns: int) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.zeros(len(x), 16, dtype=x.dtype)
        kind = torch.float32 if self.wide else x.dtype
        sure, thought, mixed = torch.zeros(len(x), dtype=kind), torch.zeros(len(x)), torch.zeros(len(x), 16, dtype=kind)
        for _ in range(turns):
            hidden = self.cell(x, hidden)
            more = torch.sigmoid(0.3 * self.halt(hidden).squeeze(-1) - 5).to(kind)
            awake = sure + more < 1 - 0.01
            sure = sure + torch.where(awake, more, torch.zeros_like(more))  # culprit: when-to-stop-thinking
            mixed = mixed + torch.where(awake, more, torch.zeros_like(more))[:, None] * hidden  # culprit: when-to-stop-thinking
            thought = thought + awake.float()
        return self.out(mixed.to(x.dtype)), thought


def pondered(wide: bool, dtype: torch.dtype = LOW) -> torch.Tensor:
    """How many turns the cell thinks about 50 inputs. It is surer than it says. Off by 12 %."""
    with torch.no_grad():
        return Ponder(wide).to(dtype)(normal(50, 8).to(dtype), 300)[1]


BUGS = (
    Bug("basis-of-a-preconditioner", "NVIDIA-NeMo/Emerging-Optimizers#281", ("amplified-rounding", "absorption", "accumulated-drift"),
        "aten._to_copy.default", lambda: whitened(LOW), lambda: whitened(SINGLE), phase="optimizer",
        expected_miss="factors are stored low in an optimizer, whose lines are not judged as a function; a step that is off by two thirds is a step"),
    Bug("lesson-of-a-near-teacher", "", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: near_teacher(False), lambda: near_teacher(True)),
    Bug("table-of-confusions", "", ("integer-rounding", "absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: confusions(LOW), lambda: confusions(SINGLE), phase="data"),
    Bug("noise-of-gradients", "", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: noise_scale(False), lambda: noise_scale(True)),
    Bug("scale-of-returns", "", ("cancellation", "amplified-rounding", "absorption"), "aten.sub.Tensor",
        lambda: returns(False), lambda: returns(True), precision="32-true"),
    Bug("when-to-stop-thinking", "", ("accumulated-drift", "absorption", "decision-flip"), "aten.add.Tensor",
        lambda: pondered(False), lambda: pondered(True),
        expected_miss="a difference in torch's own cell, near rest, is warned of, and explains whatever is made from it"),
)  # fmt: skip
