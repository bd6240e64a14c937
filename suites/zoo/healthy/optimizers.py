"""Optimizers, averages and coarse codes that round on purpose, or whose small numbers are float32."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.rounds import HALF, LOW, perceptron, rounds

INPUTS = normal(32, 12)
GOALS = torch.stack([INPUTS[:, 0] * INPUTS[:, 1], INPUTS[:, 2].sin(), INPUTS.mean(-1)], -1)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal in bfloat16, roughly, as is enough; weights are float32."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for weight in self.param_groups[0]["params"]:
            moment = self.state[weight].setdefault("moment", torch.zeros_like(weight)).mul_(0.95).add_(weight.grad)
            if weight.ndim == 2:
                x = (moment / (moment.norm() + 1e-7)).to(LOW)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                moment = x.float()
            weight.add_(moment, alpha=-0.01)


class Factored(torch.optim.Optimizer):
    """Adafactor: rows and columns of second moments, kept off zero by 1e-30, which any square absorbs."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for weight in self.param_groups[0]["params"]:
            state, square = self.state[weight], weight.grad**2 + 1e-30
            state["step"] = state.get("step", 0) + 1
            fresh = state["step"] ** -0.8
            if weight.ndim == 2:
                row = state.setdefault("row", torch.zeros(weight.shape[0])).lerp_(square.mean(1), fresh)
                column = state.setdefault("column", torch.zeros(weight.shape[1])).lerp_(square.mean(0), fresh)
                square = row[:, None] * column / row.mean()
            else:
                square = state.setdefault("square", torch.zeros_like(weight)).lerp_(square, fresh)
            update = weight.grad * square.rsqrt()
            weight.sub_(1e-2 * update / update.square().mean().sqrt().clamp(min=1.0))


def fitted(make: type[torch.optim.Optimizer]) -> torch.Tensor:
    net = perceptron(12, 32, 3)
    return rounds(net, lambda: functional.mse_loss(net(INPUTS).float(), GOALS), make(net.parameters(), {}), steps=3)


def rough_orthogonality() -> torch.Tensor:
    return fitted(Muon)


def factored_moments() -> torch.Tensor:
    return fitted(Factored)


def from_rest_to_rest() -> torch.Tensor:
    """A schedule that begins and ends at a learning rate of zero: the first step changes nothing, and neither does the last."""
    net = perceptron(12, 32, 3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: math.sin(math.pi * step / 6))

    def loss() -> torch.Tensor:
        return functional.mse_loss(net(INPUTS).float(), GOALS)

    losses = []
    for _ in range(7):
        losses.append(rounds(net, loss, optimizer, steps=1, clip=1.0))
        schedule.step()
    return torch.cat(losses)


def averaged_models() -> torch.Tensor:
    """Stochastic weight averaging: a share of a small difference a step, in float32."""
    net = perceptron(12, 32, 3)
    mean = torch.optim.swa_utils.AveragedModel(net)

    def loss() -> torch.Tensor:
        mean.update_parameters(net)
        return functional.mse_loss(net(INPUTS).float(), GOALS)

    rounds(net, loss, torch.optim.SGD(net.parameters(), lr=0.05), steps=6)
    return mean(INPUTS)


def soup() -> torch.Tensor:
    """Five checkpoints of bfloat16, averaged in float32 and narrowed once."""
    total = torch.zeros(32, 32)
    for seed in range(5):
        total += (0.1 * normal(32, 32) + 0.01 * normal(32, 32, seed=seed + 1)).to(LOW).float()
    return (total / 5).to(LOW)


def climbed_and_restored() -> torch.Tensor:
    """Sharpness-aware steps: what is added to the weights is thrown away again, by a copy."""
    net, losses = perceptron(12, 32, 3), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        kept = [each.detach().clone() for each in net.parameters()]
        for climbing in (True, False):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=LOW):
                out = net(INPUTS)
            loss = functional.mse_loss(out.float(), GOALS)
            loss.backward()
            norm = torch.stack([each.grad.norm() for each in net.parameters() if each.grad is not None]).norm()
            with torch.no_grad():
                for each, before in zip(net.parameters(), kept, strict=True):
                    if climbing and each.grad is not None:
                        each.add_(each.grad, alpha=0.05 / (float(norm) + 1e-12))
                    else:
                        each.copy_(before)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def silent_output() -> torch.Tensor:
    """A last layer that starts at zero: the first gradients of all others are exactly zero."""
    net = perceptron(12, 32, 3)
    nn.init.zeros_(net[-1].weight)
    return rounds(net, lambda: functional.mse_loss(net(INPUTS).float(), GOALS), torch.optim.AdamW(net.parameters(), lr=1e-3), HALF, clip=1.0)


def four_bit_weights() -> torch.Tensor:
    """Codes of a sixteenth each, a row that is zero and has no scale, and a low-rank update that adds exactly nothing yet."""
    weight, x = 0.02 * normal(16, 64), normal(8, 64).to(LOW)
    weight[3] = 0
    scale = weight.abs().amax(-1, keepdim=True)
    codes = torch.round(weight / scale.clamp(min=1e-12) * 7)
    update = (x.float() @ normal(64, 4, seed=1)) @ torch.zeros(4, 16)
    return x @ (codes / 7 * scale).to(LOW).T + update.to(LOW)


def eight_bit_product() -> torch.Tensor:
    """Integers to 127 by scales a row, an outlier channel, a row of zeros; products to 800000 are exact in float32."""
    x, weight = normal(8, 64), (0.05 * normal(16, 64, seed=1)).to(LOW)
    x[:, 5], x[6] = 20 * x[:, 5], 0.0
    x = x.to(LOW)
    scales = [each.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127 for each in (x, weight)]
    codes = [torch.round(each.float() / scale) for each, scale in zip((x, weight), scales, strict=True)]
    return (codes[0] @ codes[1].T * scales[0] * scales[1].T).to(LOW)


def posterior() -> torch.Tensor:
    """A Gaussian process on features of bfloat16: 1 - |L⁻¹k|² cancels, in float32, and is clamped at zero."""
    features, asked = (torch.round(32 * normal(30, 2)) / 32).to(LOW), (torch.round(32 * normal(10, 2, seed=1)) / 32).to(LOW)

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.exp(-0.5 * (a.float()[:, None] - b.float()).square().sum(-1))

    root = torch.linalg.cholesky(kernel(features, features) + 1e-2 * torch.eye(30))
    half = torch.linalg.solve_triangular(root, kernel(features, asked), upper=False)
    return (1 - half.square().sum(0)).clamp(min=0)


def mixed_densities() -> torch.Tensor:
    """Components with a log-density of -50 vanish inside logsumexp, as they should."""
    net, x, y = perceptron(4, 32, 15), normal(32, 4), 3 * normal(32, 1, seed=1)

    def loss() -> torch.Tensor:
        share, mean, spread = net(x).float().chunk(3, -1)
        spread = spread.clamp(-7, 7)
        log_p = -0.5 * ((y - mean) / spread.exp()) ** 2 - spread - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(functional.log_softmax(share, -1) + log_p, -1).mean()

    return rounds(net, loss, torch.optim.Adam(net.parameters(), lr=2e-3), HALF)


def sliced_distance() -> torch.Tensor:
    """Sorted projections of nearly equal clouds: differences of a hundredth, in float32."""
    cloud = normal(64, 8).to(LOW)
    near = (cloud.float() + 0.02 * normal(64, 8, seed=1)).to(LOW)
    ways = functional.normalize(normal(8, 20, seed=2), dim=0)
    return ((cloud.float() @ ways).sort(0).values - (near.float() @ ways).sort(0).values).abs().mean()


def bytes_in_half() -> torch.Tensor:
    """Pixels to 255 are exact in float16, and over 255 they are what they were."""
    pixels = torch.floor(256 * uniform(6, 16)).to(torch.uint8)
    return torch.softmax(perceptron(16, 32, 10).half()(pixels.half() / 255).float(), -1)


IDIOMS = (rough_orthogonality, factored_moments, from_rest_to_rest, averaged_models, soup, climbed_and_restored, silent_output, four_bit_weights,
          eight_bit_product, posterior, mixed_densities, sliced_distance, bytes_in_half)  # fmt: skip
