"""Training as careful people write it: float32 masters, averages and steps, losses in float32, and low products."""

from __future__ import annotations

import itertools
import math

import torch
from bugs.advantages import ScheduleFree
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

LOW, HALF = torch.bfloat16, torch.float16


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    """A module whose matrices are normal numbers of that seed, over the root of their inputs, and whose biases are a tenth of such numbers."""
    for place, weight in enumerate(module.parameters()):
        weight.data = normal(*weight.shape, seed=100 * seed + place) / (math.sqrt(weight[0].numel()) if weight.dim() > 1 else 10)
    return module


def perceptron(*sizes: int, seed: int = 0) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.GELU()]
    return filled(nn.Sequential(*layers[:-1]), seed)


def average_with_a_warmed_decay() -> torch.Tensor:
    """A loop under autocast with AdamW, a cosine rate, and an average of the weights in float32 whose decay grows from step to step."""
    model, shadow = perceptron(16, 32, 4), perceptron(16, 32, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(6):
        rate = 3e-3 * 0.5 * (1 + math.cos(math.pi * step / 6))
        optimizer.param_groups[0]["lr"] = rate
        x, y = normal(32, 16, seed=step), normal(32, 4, seed=50 + step)
        with torch.autocast("cpu", dtype=LOW):
            out = model(x)
        loss = functional.mse_loss(out.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay = min(0.999, (1 + step) / (10 + step))
        with torch.no_grad():
            for kept, weight in zip(shadow.parameters(), model.parameters(), strict=True):
                kept.lerp_(weight, 1 - decay)
    return torch.cat([weight.flatten() for weight in shadow.parameters()])


def sharpness_aware_steps() -> torch.Tensor:
    """A step uphill to a weight nearby, its gradient, and a step downhill from where it began: weights are copied, not added and taken back."""
    model = perceptron(12, 24, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = normal(64, 12, seed=3), normal(64, 1, seed=4)

    def slope() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=LOW):
            out = model(x)
        functional.mse_loss(out.float(), y).backward()

    for _ in range(3):
        slope()
        before = [weight.detach().clone() for weight in model.parameters()]
        length = torch.stack([weight.grad.norm() for weight in model.parameters()]).norm()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(weight.grad, alpha=0.05 / (float(length) + 1e-12))
        slope()
        with torch.no_grad():
            for weight, kept in zip(model.parameters(), before, strict=True):
                weight.copy_(kept)
        optimizer.step()
    return torch.cat([weight.flatten() for weight in model.parameters()])


def clipped_unit_by_unit() -> torch.Tensor:
    """Adaptive clipping: each row of a gradient is at most a hundredth of its weight's row, norms in float32, weights in bfloat16 with masters."""
    masters = [normal(32, 16), 0.1 * normal(8, 32, seed=1)]
    for step in range(4):
        weights = [master.to(LOW, copy=True).requires_grad_() for master in masters]
        hidden = functional.silu(normal(20, 16, seed=10 + step).to(LOW) @ weights[0].mT)
        loss = functional.cross_entropy((hidden @ weights[1].mT).float(), (8 * uniform(20, seed=step)).long())
        loss.backward()
        for master, weight in zip(masters, weights, strict=True):
            gradient = weight.grad.float()
            allowed = 0.01 * master.norm(dim=1, keepdim=True).clamp_min(1e-3)
            size = gradient.norm(dim=1, keepdim=True)
            master -= 0.5 * gradient * (allowed / size.clamp_min(1e-6)).clamp(max=1.0)
    return torch.cat([master.flatten() for master in masters])


def scales_that_are_learned() -> torch.Tensor:
    """Training aware of four bits: a learned step (LSQ) in float32 with the straight-through estimate, products under autocast."""

    class Codes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, step)
            return (x / step).round().clamp(-8, 7) * step

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, step = ctx.saved_tensors
            scaled = x / step
            inside = (scaled >= -8) & (scaled <= 7)
            moved = torch.where(inside, scaled.round() - scaled, scaled.clamp(-8, 7))
            return given * inside, (given * moved).sum().view_as(step) / math.sqrt(7 * x.numel())

    weight = nn.Parameter(normal(24, 16) / 4)
    step = nn.Parameter(2 * weight.detach().abs().mean() / math.sqrt(7))
    optimizer = torch.optim.Adam([{"params": [weight], "lr": 1e-3}, {"params": [step], "lr": 1e-4}])
    for turn in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=LOW):
            out = functional.linear(normal(40, 16, seed=turn + 1), Codes.apply(weight, step))
        functional.mse_loss(out.float(), normal(40, 24, seed=turn + 30)).backward()
        optimizer.step()
    return torch.cat([weight.detach().flatten(), step.detach().view(1)])


def adapter_merged_once() -> torch.Tensor:
    """A layer of bfloat16 with an adapter: its product is float32, is added to the weight in float32, and the sum is cast once."""
    base = (normal(48, 32) / 6).to(LOW)
    down, up = normal(8, 32, seed=1) / 6, 0.3 * normal(48, 8, seed=2)
    merged = (base.float() + 16 / math.sqrt(8) * (up @ down)).to(LOW)
    return functional.linear(normal(10, 32, seed=3).to(LOW), merged).float()


def adapter_by_direction_and_length() -> torch.Tensor:
    """DoRA: directions and lengths in float32 beside a weight of bfloat16, and a product of low numbers."""
    base, lengths = (normal(40, 24) / 5).to(LOW), None
    down, up = nn.Parameter(normal(4, 24, seed=1) / 5), nn.Parameter(0.1 * normal(40, 4, seed=2))
    lengths = nn.Parameter(base.float().norm(dim=1))
    optimizer = torch.optim.AdamW([down, up, lengths], lr=2e-3)
    for step in range(3):
        optimizer.zero_grad()
        whole = base.float() + 2 * up @ down
        weight = (lengths / whole.norm(dim=1).detach())[:, None] * whole
        out = functional.linear(normal(30, 24, seed=5 + step).to(LOW), weight.to(LOW))
        functional.mse_loss(out.float(), normal(30, 40, seed=9 + step)).backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in (down, up, lengths)])


def orthogonal_momentum() -> torch.Tensor:
    """Muon: Nesterov momentum in float32, five Newton-Schulz steps in bfloat16 on a matrix of norm one, and a step into a float32 weight."""
    weight, momentum = normal(32, 48) / 7, torch.zeros(32, 48)
    for step in range(4):
        gradient = normal(32, 6, seed=2 * step + 1) @ normal(6, 48, seed=2 * step + 2) + 0.3 * normal(32, 48, seed=70 + step)
        momentum.lerp_(gradient, 0.05)
        update = gradient.lerp(momentum, 0.95)
        x = (update / (update.norm() + 1e-7)).to(LOW)
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        weight -= 0.02 * max(1, 32 / 48) ** 0.5 * x.float()
    return weight


def whitened_both_ways() -> torch.Tensor:
    """Shampoo on gradients from bfloat16: both factors and their roots in float32, by eigenvalues that are kept above a floor."""
    weight, left, right = normal(12, 10) / 3, 1e-3 * torch.eye(12), 1e-3 * torch.eye(10)
    for step in range(4):
        gradient = (normal(20, 12, seed=step).to(LOW).mT @ normal(20, 10, seed=40 + step).to(LOW)).float() / 20
        left, right = left + gradient @ gradient.mT, right + gradient.mT @ gradient
        roots = []
        for factor in (left, right):
            values, vectors = torch.linalg.eigh(factor)
            roots.append((vectors * values.clamp_min(1e-6).pow(-0.25)) @ vectors.mT)
        weight -= 0.1 * roots[0] @ gradient @ roots[1]
    return weight


def moments_in_bytes() -> torch.Tensor:
    """Adam with moments of eight bits in blocks of 32, a scale of float32 for each; the second moment is kept as its root."""

    def packed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.view(-1, 32).abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        return (x.view(-1, 32) / scale).round().to(torch.int8), scale

    def unpacked(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (codes.float() * scale).view(-1)

    weight = normal(128)
    first, root = packed(torch.zeros(128)), packed(torch.zeros(128))
    for step in range(1, 7):
        gradient = (weight + 0.5 * normal(128, seed=step)).to(LOW).float()
        mean = 0.9 * unpacked(*first) + 0.1 * gradient
        square = 0.99 * unpacked(*root).square() + 0.01 * gradient.square()
        first, root = packed(mean), packed(square.sqrt())
        weight = weight - 0.01 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.99**step)).sqrt() + 1e-4)
    return weight


def scale_of_earlier_steps() -> torch.Tensor:
    """Products in fp8 with the largest numbers of earlier steps: scales in float32, and numbers that are larger are held at the format's end."""
    weight, history = normal(32, 64) / 8, [4.0] * 4
    outs = []
    for step in range(5):
        x = (1 + 0.1 * step) * normal(16, 64, seed=step)
        scale, scale_w = 448 / (2 * max(history)), 448 / float(weight.abs().amax())
        low = (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        low_w = (weight * scale_w).clamp(-448, 448).to(torch.float8_e4m3fn)
        outs.append(low.float() @ low_w.float().mT / (scale * scale_w))
        history = [*history[1:], float(x.abs().amax())]
    return torch.stack(outs)


def residuals_of_a_nearly_trained_layer() -> torch.Tensor:
    """A layer that computes in bfloat16, near its goal: each squared residual is far off, and the loss of all of them is right."""
    start, goal = normal(12, 24, seed=4000).to(LOW), normal(12, 24, seed=4000).to(LOW).float() + 0.3 * normal(12, 24, seed=4001)
    optimizer = ScheduleFree(start.float(), 0.02, 0.9)
    for step in range(120):
        layer = optimizer.weight.detach().to(LOW).requires_grad_()
        x = normal(32, 24, seed=4040 + step)
        loss = (functional.linear(x.to(LOW), layer).float() - x @ goal.T).square().sum(-1).mean() / 2
        optimizer.step(torch.autograd.grad(loss, layer)[0])
    return optimizer.average()


IDIOMS = (
    average_with_a_warmed_decay, sharpness_aware_steps, clipped_unit_by_unit, scales_that_are_learned, adapter_merged_once,
    adapter_by_direction_and_length, orthogonal_momentum, whitened_both_ways, moments_in_bytes, scale_of_earlier_steps,
    residuals_of_a_nearly_trained_layer,
)  # fmt: skip
