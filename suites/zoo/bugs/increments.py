"""Small increments of optimizers and averages: an average of weights, micro-batches, a centred RMSprop, clipping, steps without a master."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32
SINGLE = "32-true"


def network(seed: int = 0) -> nn.Sequential:
    """Two layers whose weights come from the zoo's own numbers."""
    model = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 8))
    with torch.no_grad():
        for index, each in enumerate(model.parameters()):
            each.copy_(normal(*each.shape, seed=seed + index) / 4)
    return model


class Average:
    """A moving average of a model's weights, which is sampled from."""

    def __init__(self, model: nn.Module, decay: float, dtype: torch.dtype) -> None:
        self.model, self.decay = copy.deepcopy(model).to(dtype).requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.mul_(self.decay).add_(theirs.to(mine.dtype), alpha=1 - self.decay)  # culprit: average-in-the-weights-format


def averaged(dtype: torch.dtype) -> torch.Tensor:
    """How far the average of the first layer has come in 80 steps under autocast."""
    model, teacher = network(), network(seed=9)
    average, start = Average(model, 0.999, dtype), model[0].weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(80):
        batch = normal(32, 16, seed=100 + step)
        with torch.autocast("cpu", LOW):
            loss = functional.mse_loss(model(batch).float(), teacher(batch).float().detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
    return average.model[0].weight.float() - start


def accumulated(dtype: torch.dtype) -> torch.Tensor:
    """The gradient of 320 micro-batches of a model in bfloat16, added up in a buffer of that dtype."""
    model = network().to(LOW)
    buffers = [torch.zeros_like(each, dtype=dtype) for each in model.parameters()]
    micro_batches = 320
    for step in range(micro_batches):
        batch = (0.5 + normal(8, 16, seed=300 + step)).to(LOW)
        loss = model(batch).float().square().mean() / micro_batches
        model.zero_grad()
        loss.backward()
        for buffer, each in zip(buffers, model.parameters(), strict=True):
            buffer.add_(each.grad.to(dtype))  # culprit: buffer-of-micro-batches
    return buffers[0].float()


class CentredRMSprop:
    """Steps divided by the spread of a gradient around its mean."""

    def __init__(self, weight: torch.Tensor, lr: float, by_deviation: bool) -> None:
        self.weight, self.lr, self.alpha, self.eps, self.by_deviation = weight, lr, 0.9, 1e-8, by_deviation
        kept = torch.float64 if by_deviation else WIDE
        self.square, self.mean = torch.zeros_like(weight, dtype=kept), torch.zeros_like(weight, dtype=kept)

    def step(self, gradient: torch.Tensor) -> None:
        if self.by_deviation:
            self.square = self.alpha * (self.square + (1 - self.alpha) * (gradient - self.mean).square())
            variance = self.square
        else:
            self.square = self.alpha * self.square + (1 - self.alpha) * gradient.square()  # culprit: centred-spread
        self.mean = self.alpha * self.mean + (1 - self.alpha) * gradient
        if not self.by_deviation:
            variance = self.square - self.mean.square()  # culprit: centred-spread
        self.weight = self.weight - self.lr * (gradient - self.mean) / torch.sqrt(variance + self.eps)  # culprit: centred-spread


def centred(by_deviation: bool) -> torch.Tensor:
    """Where 240 steps on a loss with a steep slope and little noise lead."""
    optimizer = CentredRMSprop(torch.zeros(6, 12), 1e-3, by_deviation)
    slope = 4000 + 4000 * uniform(6, 12)
    for step in range(240):
        optimizer.step(slope + 2 * normal(6, 12, seed=step))
    return optimizer.weight


def forecasters(unscaled: bool) -> torch.Tensor:
    """How far the weights of a forecaster go in four steps with a GradScaler and a norm of one."""
    model, teacher = network(), network(seed=5)
    start = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for step in range(4):
        batch = normal(32, 16, seed=500 + step)
        optimizer.zero_grad()
        with torch.autocast("cpu", HALF):
            loss = functional.l1_loss(model(batch), teacher(batch).detach())
        scaler.scale(loss).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # culprit: norm-of-the-scaled
        scaler.step(optimizer)
        scaler.update()
    return model[0].weight.detach() - start


class GainedLayer(nn.Module):
    """A norm with a gain of one at first, and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.projection = nn.Parameter(torch.ones(24)), nn.Linear(24, 12, bias=False)
        with torch.no_grad():
            self.projection.weight.copy_(normal(12, 24, seed=8) / 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        return self.projection(normed.to(x.dtype) * self.gain)


def learned(dtype: torch.dtype) -> torch.Tensor:
    """How far sixty steps of AdamW move the gain of a norm, in a model that is cast to that dtype before it is trained."""
    model, teacher = GainedLayer().to(LOW).to(dtype), normal(12, 24, seed=5) / 5  # culprit: whole-model-cast
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.05)
    for step in range(60):
        batch = normal(32, 24, seed=700 + step)
        loss = functional.mse_loss(model(batch.to(dtype)).float(), batch @ teacher.T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # culprit: whole-model-cast
    return model.gain.detach().float() - 1


BUGS = (
    Bug("average-in-the-weights-format", "THUDM/SwissArmyTransformer#159", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: averaged(LOW), lambda: averaged(WIDE), phase="data", step=36),
    Bug("buffer-of-micro-batches", "ISEEKYAN/Megatron-LM#149", ("accumulated-drift", "absorption"), "aten.add_.Tensor", lambda: accumulated(LOW),
        lambda: accumulated(WIDE)),
    Bug("centred-spread", "CanReader/FastNN#12", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: centred(False),
        lambda: centred(True), precision=SINGLE),
    Bug("norm-of-the-scaled", "NCAR/miles-credit#141", ("scaler-order",), "", lambda: forecasters(False), lambda: forecasters(True), phase="scaler"),
    Bug("whole-model-cast", "hp-l33/AiM#10", ("lost-update", "absorption"), "",
        lambda: learned(LOW), lambda: learned(WIDE), phase="optimizer"),
)  # fmt: skip
