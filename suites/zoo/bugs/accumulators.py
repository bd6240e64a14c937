"""Sums that stand still, kernels that sum low, and recurrences that wander off."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform


def averaged(dtype: torch.dtype) -> torch.Tensor:
    """A moving average of weights, decay 0.999: a step of 5e-5 is less than half a spacing of bfloat16 at one."""
    weight, average = torch.full((64,), 1.05).to(torch.bfloat16), torch.ones(64).to(dtype)
    for _ in range(300):
        average.mul_(0.999).add_(weight.to(dtype), alpha=0.001)  # culprit: frozen-average
    return average.float() - 1


def micro_batches(dtype: torch.dtype) -> torch.Tensor:
    """Gradients of 400 micro-batches added up where autograd keeps them."""
    weight = nn.Parameter(torch.ones(32).to(dtype))
    for x in 0.01 + 0.02 * uniform(400, 32):
        (weight.to(torch.bfloat16) * x.to(torch.bfloat16)).float().sum().backward()  # culprit: gradient-sum
    return weight.grad


class Counting(torch.optim.Optimizer):
    """Adam's bias correction with a step counter in the dtype of the weights: it stops at 256."""

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__([weight], {})
        self.count, self.weight = torch.zeros((), dtype=dtype), weight

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        self.count += 1  # culprit: step-counter
        self.weight.sub_(1e-3 / (1 - 0.999 ** self.count.float()))


def corrected(dtype: torch.dtype) -> torch.Tensor:
    optimizer = Counting(nn.Parameter(torch.ones(4)), dtype)
    for _ in range(330):
        optimizer.step()
    return optimizer.count.float()


def epoch_mean(dtype: torch.dtype) -> torch.Tensor:
    """The accuracy of 900 batches, each 1, added up in the dtype that the model has: 256 + 1 is 256."""
    total = torch.zeros((), dtype=dtype)
    for value in torch.ones(900).to(torch.bfloat16):
        total += value.to(dtype)  # culprit: epoch-mean
    return total / 900


def shares(dtype: torch.dtype) -> torch.Tensor:
    """A softmax whose sum is taken one by one, as portable kernels do: of 600 equal terms only 256 are counted."""
    powers = torch.zeros(600).to(torch.bfloat16).exp()
    total = torch.zeros((), dtype=dtype)
    for value in powers:
        total = total + value.to(dtype)  # culprit: portable-softmax
    return powers.to(dtype) / total


def merged(dtype: torch.dtype) -> torch.Tensor:
    """A low-rank update added to a released weight: most of it is less than half a spacing."""
    base = (0.05 * normal(96, 96)).to(torch.bfloat16)
    delta = (0.001 * normal(96, 8, seed=1)) @ (0.02 * normal(8, 96, seed=2))
    weight = base.to(dtype, copy=True)
    weight += delta.to(dtype)  # culprit: merged-adapter
    return weight.float() - base.float()


def pooled(dtype: torch.dtype) -> torch.Tensor:
    """Points dropped into the cells of a grid; the kernel adds one by one, in the grid's dtype."""
    cells = torch.arange(4096) % 2
    points = torch.round(64 * uniform(4096, 4)) / 64  # bfloat16 holds them exactly
    grid = torch.index_put(torch.zeros(2, 4).to(dtype), (cells,), points.to(dtype), accumulate=True)  # culprit: scattered-mean
    return grid.float() / 2048


def class_counts(dtype: torch.dtype) -> torch.Tensor:
    """Pixels of each class, counted where the weights' dtype is at hand."""
    labels = torch.arange(6000) % 3
    counts = torch.index_put(torch.zeros(3).to(dtype), (labels,), torch.ones(6000).to(dtype), accumulate=True)  # culprit: class-counts
    return counts.float()


def midpoints(dtype: torch.dtype) -> torch.Tensor:
    """The mean of the ranges of 512 batches of keys, kept as a mean: from some 340 on, five is less than half a spacing of the sum."""
    mean = torch.zeros(8).to(dtype)
    for count, batch in enumerate(5 + normal(512, 16, 8)):
        keys = batch.to(torch.bfloat16)
        mean = (mean * count + (keys.amax(0) + keys.amin(0)).to(dtype) / 2) / (count + 1)  # culprit: running-midpoint
    return mean


def rotations(dtype: torch.dtype) -> torch.Tensor:
    """A state-space layer's oscillating modes, decoded step by step with the state rounded after each."""
    angles = torch.linspace(0.1, 1.0, 32)
    cosine, sine = angles.cos().to(dtype), angles.sin().to(dtype)
    real, imaginary = torch.ones(32).to(dtype), torch.zeros(32).to(dtype)
    for _ in range(400):
        real, imaginary = cosine * real - sine * imaginary, sine * real + cosine * imaginary  # culprit: rotated-state
    return torch.stack([real, imaginary])


def decays(dtype: torch.dtype) -> torch.Tensor:
    """Powers of retention's decay rates, each from the one before."""
    rates = (1 - torch.linspace(0.0202, 0.0208, 24)).to(dtype)
    power = torch.ones(24).to(dtype)
    for _ in range(500):
        power = power * rates  # culprit: decay-powers
    return power


def covariances(dtype: torch.dtype) -> torch.Tensor:
    """Curvature for a preconditioner: eigenvectors of what is a thousandth of the largest, or less, turn by what bfloat16 rounds away."""
    basis, _ = torch.linalg.qr(normal(64, 64))
    spectrum, covariance = torch.logspace(0, -2, 64), torch.zeros(64, 64).to(dtype)
    for batch in normal(20, 256, 64, seed=1):
        given = (batch * spectrum @ basis.T + 0.3).to(torch.bfloat16).to(dtype)
        covariance += given.mT @ given  # culprit: curvature-in-low
    values, vectors = torch.linalg.eigh(covariance.float() / 5120)
    return vectors @ ((vectors.T @ normal(64, seed=2)) / (values + 1e-3 * values.mean()))


BUGS = (
    Bug("curvature-in-low", "EleutherAI/bergson#239", ("amplified-rounding",), "aten.add_.Tensor", lambda: covariances(torch.bfloat16),
        lambda: covariances(torch.float32)),
    Bug("frozen-average", "d8ahazard/sd_dreambooth_extension#1415", ("absorption",), "aten.add_.Tensor", lambda: averaged(torch.bfloat16),
        lambda: averaged(torch.float32)),
    Bug("gradient-sum", "NVIDIA/Megatron-LM#372", ("absorption",), "aten.add_.Tensor", lambda: micro_batches(torch.bfloat16),
        lambda: micro_batches(torch.float32), phase="backward"),
    Bug("step-counter", "pytorch/ao#4915", ("absorption", "integer-rounding"), "aten.add_.Tensor", lambda: corrected(torch.bfloat16),
        lambda: corrected(torch.float32), phase="optimizer", step=256 + 8),
    Bug("epoch-mean", "Lightning-AI/pytorch-lightning#18620", ("absorption",), "aten.add_.Tensor", lambda: epoch_mean(torch.bfloat16),
        lambda: epoch_mean(torch.float32), note="a number for the log: a warning would do as well"),
    Bug("portable-softmax", "pytorch/executorch#20089", ("absorption",), "aten.add.Tensor", lambda: shares(torch.bfloat16),
        lambda: shares(torch.float32)),
    Bug("merged-adapter", "huggingface/peft#1388", ("absorption",), "aten.add_.Tensor", lambda: merged(torch.bfloat16),
        lambda: merged(torch.float32)),
    Bug("scattered-mean", "rusty1s/pytorch_scatter#269", ("local-drift",), "aten.index_put.default", lambda: pooled(torch.bfloat16),
        lambda: pooled(torch.float32), kernel=True),
    Bug("class-counts", "", ("local-drift", "integer-rounding"), "aten.index_put.default", lambda: class_counts(torch.bfloat16),
        lambda: class_counts(torch.float32), kernel=True),
    Bug("running-midpoint", "NVIDIA/Model-Optimizer#738", ("absorption",), "aten.add.Tensor", lambda: midpoints(torch.bfloat16),
        lambda: midpoints(torch.float32)),
    Bug("rotated-state", "ml-explore/mlx-lm#988", ("accumulated-drift",), "aten.mul.Tensor", lambda: rotations(torch.bfloat16),
        lambda: rotations(torch.float32)),
    Bug("decay-powers", "", ("accumulated-drift",), "aten.mul.Tensor", lambda: decays(torch.bfloat16), lambda: decays(torch.float32)),
)  # fmt: skip
