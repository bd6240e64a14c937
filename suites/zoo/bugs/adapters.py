"""Adapters and optimizers: small numbers added to large ones, hyper-parameters and counters in the weights' dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Ramped(nn.Module):
    """A low-rank update that is faded in over 1000 calls, counted in a buffer that .to(bfloat16) reaches: it stops at 256."""

    def __init__(self, buffered: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(normal(8, 2))
        self.calls: Any = torch.zeros(())
        if buffered:
            del self.calls
            self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1  # culprit: ramp-up
        return (self.calls / 1000).clamp(max=1.0).to(x.dtype) * (x @ self.a @ self.a.T)


def ramped(buffered: bool) -> torch.Tensor:
    model, x = Ramped(buffered).to(LOW), torch.ones(1, 8).to(LOW)
    with torch.no_grad():
        for _ in range(400):
            out = model(x)
    return out


def balanced(dtype: torch.dtype) -> torch.Tensor:
    """Biases of experts follow the sign of their load by 0.001 a step, and no further than 0.5."""
    load = torch.tensor([900.0, 100.0, 50.0, 950.0])
    bias = torch.zeros(4).to(dtype)
    for _ in range(900):
        bias += 1e-3 * torch.sign(load.mean() - load)  # culprit: expert-bias
    return bias.float()


def moving_mean(dtype: torch.dtype) -> torch.Tensor:
    """A batch norm's moving mean in half: it stops where a thousandth of what is missing is less than half a spacing."""
    batches = 10 + normal(700, 16)
    mean = torch.tensor(7.5).to(dtype)
    for batch in batches:
        mean.sub_((mean - batch.mean().to(dtype)) * 0.001)  # culprit: moving-mean
    return mean.float()


def decayed_rate(dtype: torch.dtype) -> torch.Tensor:
    """A learning rate that is a tensor, less 0.1 % a step."""
    rate = torch.tensor(0.1).to(dtype)
    for _ in range(600):
        rate.mul_(0.999)  # culprit: constant-rate
    return rate.float()


def tokens_per_expert(dtype: torch.dtype) -> torch.Tensor:
    """Counts of 64 ranks, added as an all-reduce does; the mean is taken off to see who has too many."""
    counts = (608 + 64 * uniform(64, 8)).floor()
    counts[:, 0], counts[:, 1] = 640, 641
    local, total = counts.to(dtype), torch.zeros(8).to(dtype)  # culprit: expert-counts
    for each in local:
        total = total + each  # culprit: expert-counts
    return (total - total.mean()).sign().float()


class Adam(torch.optim.Optimizer):
    """Its betas travel as tensors of the parameter's dtype: 0.999 is one, and 1 - 1 is divided by."""

    def __init__(self, weight: nn.Parameter, dtype: torch.dtype) -> None:
        super().__init__([weight], {})
        self.weight, self.dtype, self.steps, self.m, self.v = weight, dtype, 0, torch.zeros(16), torch.zeros(16)

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        self.steps += 1
        b1, b2 = (torch.tensor(beta).to(self.dtype) for beta in (0.9, 0.999))  # culprit: tensor-betas
        g = self.weight.grad.float()
        self.m, self.v = b1 * self.m + (1 - b1) * g, b2 * self.v + (1 - b2) * g * g  # culprit: tensor-betas
        m, v = self.m / (1 - b1**self.steps), self.v / (1 - b2**self.steps)  # culprit: tensor-betas
        self.weight.sub_((0.01 * m / (v.sqrt() + 1e-8)).to(self.weight.dtype))


def fitted(dtype: torch.dtype) -> torch.Tensor:
    weight = nn.Parameter(normal(16).to(LOW))
    optimizer = Adam(weight, dtype)
    for _ in range(4):
        optimizer.zero_grad()
        (weight.float() - 2).square().sum().backward()
        optimizer.step()
    return weight.float()


def decayed_weights(fused: bool) -> torch.Tensor:
    """Decoupled weight decay of 1e-4 a step before a stochastically rounded update: 0.9999 w is w."""
    weight, draws = (1.02 + 0.9 * uniform(512)).to(LOW), torch.Generator().manual_seed(0)
    for g in normal(200, 512).sign():
        decayed = weight.float() * (1 - 1e-4) if fused else (weight * (1 - 1e-4)).float()  # culprit: no-decay
        noise = torch.randint(0, 1 << 16, (512,), dtype=torch.int32, generator=draws)
        weight = (((decayed - 1e-4 * g).view(torch.int32) + noise) & -65536).view(WIDE).to(LOW)
    return weight.float().mean() - 1.4


class Magnitudes(nn.Module):
    """DoRA: a trained magnitude for each row, near two, whose steps are an eighth of bfloat16's spacing there."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(8, 16) / 2, requires_grad=False)
        self.magnitude = nn.Parameter(torch.full((8,), 2.0625).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight * (self.magnitude.float() / self.weight.norm(dim=1))[:, None])


def trained(dtype: torch.dtype) -> torch.Tensor:
    model, x = Magnitudes(dtype), normal(32, 16, seed=1)
    goal = functional.linear(x, 1.2 * model.weight)
    optimizer = torch.optim.AdamW([model.magnitude], lr=1e-3, weight_decay=0.0)
    for _ in range(12):
        optimizer.zero_grad()
        functional.mse_loss(model(x), goal).backward()
        optimizer.step()  # culprit: frozen-magnitude
    return model.magnitude.detach().float() - 2.0625


def adapter(wide: bool) -> torch.Tensor:
    """A loader multiplies two factors of 5e-5, and by an alpha of 4096 when nothing is left."""
    up, down = (5e-5 * normal(16, 4)).half(), (5e-5 * normal(4, 16, seed=1)).half()
    return (up.float() @ down.float() if wide else up @ down).float() * 4096  # culprit: late-alpha


def rows(floor: float) -> torch.Tensor:
    """Magnitudes over row norms, of a base with a row of 1e-9 that is zero in half."""
    base = 0.02 * normal(8, 16)
    base[2] = 1e-9
    layer = nn.Linear(16, 8, bias=False)
    with torch.no_grad():
        layer.weight.copy_(base)
    layer = layer.half()  # culprit: dead-row
    return layer(normal(4, 16, seed=1).half()) * (0.08 / layer.weight.float().norm(dim=1).clamp(min=floor)).half()


def belief(dtype: torch.dtype) -> torch.Tensor:
    """AdaBelief's variance of 1e-7 times 0.001, and its eps of 1e-8: both zero in half."""
    p, m, s = (each.to(dtype) for each in (torch.ones(8), torch.zeros(8), torch.zeros(8)))
    for t in range(1, 5):
        g = (torch.linspace(1e-4, 8e-4, 8) * (1 + 0.1 * (-1) ** t)).to(dtype)  # culprit: believed-variance
        m = 0.9 * m + 0.1 * g
        s = 0.999 * s + 0.001 * (g - m) ** 2 + 1e-8  # culprit: believed-variance
        p = p - 1e-2 * (m / (1 - 0.9**t)) / ((s / (1 - 0.999**t)).sqrt() + 1e-8)  # culprit: believed-variance
    return p.float()


def last_rates(dtype: torch.dtype) -> torch.Tensor:
    """The end of a polynomial schedule: step 3999 of 4000 is a number that half does not hold, and one minus it cancels."""
    steps = torch.arange(3985.0, 4000.0).to(dtype)  # culprit: end-of-schedule
    return 10 * (1 - steps / 4000).float() ** 2  # culprit: end-of-schedule


BUGS = (
    Bug("ramp-up", "kyegomez/SingLoRA#6", ("absorption",), "aten.add_.Tensor", lambda: ramped(True), lambda: ramped(False), module="Ramped"),
    Bug("expert-bias", "NVIDIA/Megatron-LM#1482", ("absorption",), "aten.add_.Tensor", lambda: balanced(LOW), lambda: balanced(WIDE)),
    Bug("moving-mean", "tensorflow/tensorflow#8535", ("absorption",), "aten.sub_.Tensor", lambda: moving_mean(HALF), lambda: moving_mean(WIDE)),
    Bug("constant-rate", "PaddlePaddle/Paddle#34316", ("absorption",), "aten.mul_.Tensor", lambda: decayed_rate(LOW), lambda: decayed_rate(WIDE)),
    Bug("expert-counts", "NVIDIA/Megatron-LM#7081", ("integer-rounding",), "aten._to_copy.default", lambda: tokens_per_expert(LOW),
        lambda: tokens_per_expert(WIDE)),
    Bug("tensor-betas", "tenstorrent/tt-metal#55935", ("cancellation", "vanished-constant"), "aten.rsub.Scalar", lambda: fitted(LOW),
        lambda: fitted(WIDE), phase="optimizer"),
    Bug("no-decay", "Nerogar/OneTrainer#996", ("absorption",), "aten.mul.Tensor", lambda: decayed_weights(False), lambda: decayed_weights(True),
        expected_miss="each product is right to a rounding and a new tensor; the bits of a stochastic rounding start the shadow afresh"),
    Bug("frozen-magnitude", "huggingface/trl#7272", ("lost-update",), "", lambda: trained(LOW), lambda: trained(WIDE), phase="optimizer",
        module="Magnitudes"),
    Bug("late-alpha", "xmarre/ComfyUI-DoRA-Dynamic-LoRA-Loader#16", ("underflow",), "aten.mm.default", lambda: adapter(False),
        lambda: adapter(True)),
    Bug("dead-row", "huggingface/peft#3237", ("underflow",), "aten._to_copy.default", lambda: rows(0.0), lambda: rows(1e-4)),
    Bug("believed-variance", "juntang-zhuang/Adabelief-Optimizer#31", ("underflow", "vanished-constant", "amplified-rounding"),
        "aten.mul.Tensor", lambda: belief(HALF), lambda: belief(WIDE)),
    Bug("end-of-schedule", "tinygrad/tinygrad#4297", ("integer-rounding", "cancellation"), "aten._to_copy.default", lambda: last_rates(HALF),
        lambda: last_rates(WIDE)),
)  # fmt: skip
