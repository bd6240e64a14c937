"""Foundries: gradients that are cut before they are unscaled, a loss that is told scaled, checkpoints that are averaged, counts of pixels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, SINGLE = torch.float16, torch.float32


class Denoiser(nn.Module):
    """Says what noise is in a picture."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(621)
        self.body, self.head = nn.Linear(12, 24), nn.Linear(24, 12)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(functional.silu(self.body(pictures)))


def denoised(unscaled: bool, most: float = 1.0) -> torch.Tensor:
    """How far a painter's weights have gone after eight steps with a limit on the gradient's norm. Hardly anywhere."""
    model = Denoiser()
    start = torch.cat([each.detach().flatten().clone() for each in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for turn in range(8):
        pictures, noise = normal(16, 12, seed=622 + turn), normal(16, 12, seed=640 + turn)
        with torch.autocast("cpu", HALF):
            told = model(pictures + noise)
        loss = functional.mse_loss(told.float(), noise)
        scaler.scale(loss).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), most)  # culprit: limit-on-a-painters-gradient
        scaler.step(optimizer)  # culprit: limit-on-a-painters-gradient
        scaler.update()
        optimizer.zero_grad()
    return torch.cat([each.detach().flatten() for each in model.parameters()]) - start


class AutoUnit:
    """A trainer that takes a step and gives back the loss for whoever writes it down."""

    def __init__(self, model: nn.Module, plain: bool) -> None:
        self.model, self.plain = model, plain
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train_step(self, pictures: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", HALF):
            told = self.model(pictures)
        loss = functional.mse_loss(told.float(), noise)
        if self.plain:
            scaled = self.scaler.scale(loss)
        else:
            loss = scaled = self.scaler.scale(loss)  # culprit: loss-of-a-trainer
        scaled.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss


def logged(plain: bool) -> torch.Tensor:
    """The losses of six steps, as a log has them. They are a thousand times too large."""
    unit, log = AutoUnit(Denoiser(), plain), []
    for turn in range(6):
        loss = unit.train_step(normal(16, 12, seed=660 + turn), normal(16, 12, seed=670 + turn))
        log.append(loss.item())  # culprit: loss-of-a-trainer
    return torch.tensor(log)


def average(checkpoints: list[dict[str, torch.Tensor]], kind: torch.dtype) -> dict[str, torch.Tensor]:
    """The mean of each variable over the last checkpoints of a translator."""
    means = {name: torch.zeros(value.shape, dtype=kind) for name, value in checkpoints[0].items()}
    for checkpoint in checkpoints:
        for name, value in checkpoint.items():
            means[name] += value / len(checkpoints)  # culprit: last-ten-checkpoints
    return means


def averaged(kind: torch.dtype) -> torch.Tensor:
    """How far the mean of ten checkpoints in half lies from the first of them."""
    start, pace = 0.5 + 0.4 * uniform(32, 24, seed=680), 4e-4 * (1 + 0.3 * normal(32, 24, seed=681))
    checkpoints = [{"kernel": (start + turn * pace).to(HALF)} for turn in range(10)]
    return wider(average(checkpoints, kind)["kernel"]) - checkpoints[0]["kernel"].float()


class ConfusionMatrix:
    """How many pixels of each class were taken for which."""

    def __init__(self, counts: torch.Tensor) -> None:
        self.counts = counts.clone()

    def batch_add(self, told: torch.Tensor, true: torch.Tensor) -> None:
        classes = len(self.counts)
        pairs = torch.bincount(true * classes + told, minlength=classes * classes)
        self.counts += pairs.view(classes, classes).to(self.counts.dtype)  # culprit: pixels-of-a-large-set


def counted(kind: torch.dtype) -> torch.Tensor:
    """By how much a matrix grows in the last sixty of very many small pictures. Rare mistakes are not counted."""
    before = (17_000_000 * (1 + uniform(4, 4, seed=682))).long() // 16 * 16
    matrix = ConfusionMatrix(before.to(kind))
    for seed in range(683, 743):
        true = (4 * uniform(20, seed=seed)).long()
        told = torch.where(uniform(20, seed=seed + 100) < 0.6, true, (4 * uniform(20, seed=seed + 200)).long())
        matrix.batch_add(told, true)
    return (matrix.counts - before.to(kind)).float()


BUGS = (
    Bug("limit-on-a-painters-gradient", "harubaru/waifu-diffusion#64", ("scaler-order",), "",
        lambda: denoised(unscaled=False), lambda: denoised(unscaled=True), phase="scaler"),
    Bug("loss-of-a-trainer", "meta-pytorch/tnt#354", ("scaler-order",), "",
        lambda: logged(plain=False), lambda: logged(plain=True), phase="scaler", severity="warning"),
    Bug("last-ten-checkpoints", "OpenNMT/OpenNMT-tf#173", ("amplified-rounding", "accumulated-drift", "absorption", "cancellation"),
        "aten.add_.Tensor",
        lambda: averaged(HALF), lambda: averaged(SINGLE)),
    Bug("pixels-of-a-large-set", "torch/optim#63", ("integer-rounding", "absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: counted(SINGLE), lambda: counted(torch.int64), precision="32-true"),
)  # fmt: skip
