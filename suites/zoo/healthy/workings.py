"""Training steps, servers and adapters that look like the bugs of trainers and servers."""

from __future__ import annotations

import torch
from bugs.bug import normal
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def small_network() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 3))
    with torch.no_grad():
        for layer, seed in ((model[0], 1), (model[2], 2)):
            layer.weight.copy_(normal(*layer.weight.shape, seed=seed) / layer.weight.shape[1] ** 0.5)
            layer.bias.zero_()
    return model


def wide_buffers() -> list[torch.Tensor]:
    """Gradients of bfloat16 weights, added up over 120 micro-batches in float32 and handed to the weights as their .grad in the end."""
    model = small_network().to(LOW)
    buffers = [torch.zeros_like(weight, dtype=WIDE) for weight in model.parameters()]
    for micro in range(120):
        x = normal(4, 12, seed=micro)
        loss = functional.mse_loss(model(x.to(LOW)).float(), x[:, :3] * 2 + 1)
        for buffer, gradient in zip(buffers, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            buffer.add_(gradient, alpha=1 / 120)
    for weight, buffer in zip(model.parameters(), buffers, strict=True):
        weight.grad = buffer.to(LOW)
    nn.utils.clip_grad_norm_(list(model.parameters()), 1e3)
    return [weight.grad.float() for weight in model.parameters()]


def steps_of_whole_spacings() -> torch.Tensor:
    """Lion on bfloat16 weights below one, at a rate of 2^-7: each step is a multiple of the weights' spacing, and arrives."""
    weight, momentum = (normal(16, 16).clamp(-0.9, 0.9)).to(LOW), torch.zeros(16, 16)
    target = normal(16, 16, seed=1).clamp(-0.9, 0.9)
    for _ in range(30):
        gradient = weight.float() - target
        update = momentum.lerp(gradient, 0.1).sign()
        weight.add_(update.to(LOW), alpha=-(2.0**-7))
        momentum.lerp_(gradient, 0.01)
    return (weight.float() - target).square().mean()


def factors_in_float32() -> torch.Tensor:
    """Shampoo's factors in float32, of gradients in bfloat16 whose directions are about as steep as each other; the step goes into a master."""
    weight, left = (0.1 * normal(10, 6)).to(LOW), 0.1 * torch.eye(10)
    master = weight.float()
    for step in range(12):
        gradient = (master - normal(10, 6, seed=1) + 0.3 * normal(10, 6, seed=2 + step)).to(LOW)
        left.lerp_(gradient.float() @ gradient.float().T, 0.2)
        values, vectors = torch.linalg.eigh(left)
        root = vectors @ torch.diag(values.clamp_min(0.02).rsqrt().sqrt()) @ vectors.T
        master -= 0.05 * root @ gradient.float()
        weight.copy_(master)
    return weight.float()


def geometric_ratio() -> torch.Tensor:
    """The geometric mean of forty tokens' ratios: bfloat16 logits, float32 logarithms, and a mean that lets roundings cancel."""
    hidden, head = (normal(6, 40, 16) / 4).to(LOW), (0.4 * normal(500, 16, seed=1)).to(LOW)
    moved = (head.float() + 0.05 * normal(500, 16, seed=2)).to(LOW)
    tokens = torch.arange(240).view(6, 40, 1) * 31 % 500
    new, old = (functional.log_softmax((hidden @ policy.T).float(), -1).gather(-1, tokens).squeeze(-1) for policy in (moved, head))
    ratio = (new - old).mean(-1).exp()
    return torch.minimum(ratio, ratio.clamp(0.8, 1.2))


def adapter_in_bfloat16() -> torch.Tensor:
    """An adapter that was trained in float32 and saved in bfloat16: it is loaded into a layer that adds it to a frozen one."""
    base, x = nn.Linear(24, 24, bias=False), normal(32, 24)
    down, up = nn.Parameter(0.2 * normal(4, 24, seed=4)), nn.Parameter(torch.zeros(24, 4))
    with torch.no_grad():
        base.weight.copy_(0.2 * normal(24, 24, seed=3))
    optimizer = torch.optim.AdamW([down, up], lr=1e-2)
    for _ in range(8):
        optimizer.zero_grad()
        functional.mse_loss(base(x).detach() + x @ down.T @ up.T, x @ normal(24, 24, seed=5) / 5).backward()
        optimizer.step()
    saved = {name: weight.detach().to(LOW) for name, weight in (("down", down), ("up", up))}
    again = {name: weight.float() for name, weight in saved.items()}
    with torch.no_grad():
        return base(x) + x @ again["down"].T @ again["up"].T


def race_in_float32() -> torch.Tensor:
    """Tokens from half logits with all but five masked: probabilities and the race are float32, and no masked token can win."""
    state, head, tokens = normal(1, 32).half(), (0.3 * normal(800, 32, seed=1)).half(), []
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for _ in range(12):
            logits = state @ head.T / 0.8
            kept, places = torch.topk(logits, 5)
            probabilities = torch.full(logits.shape, float("-inf")).scatter_(-1, places, kept.float()).softmax(-1)
            token = torch.argmax(probabilities / torch.empty_like(probabilities).exponential_(1), -1)
            tokens.append(probabilities[0, token])
            state = (0.9 * state.float() + 0.4 * head[token].float()).half()
    return torch.cat(tokens)


def tables_of_wide_angles() -> torch.Tensor:
    """A model in half whose rotary angles are float32 for 1400 frames; the sines and cosines are half."""
    x = normal(1400, 32).half()
    frequencies = 1.0 / 10000 ** (torch.arange(0, 32, 2) / 32)
    angles = (torch.arange(1400)[:, None] * frequencies).repeat_interleave(2, -1)
    cosine, sine = angles.cos().half(), angles.sin().half()
    turned = x * cosine + torch.stack([-x[:, 1::2], x[:, ::2]], -1).flatten(-2) * sine
    return torch.softmax((turned[-16:] @ turned.T / 32**0.5).float(), -1) @ x.float()


def all_experts_share() -> torch.Tensor:
    """A mixture of all experts under autocast: the router's logits are bfloat16, and nothing is chosen."""
    tokens, router = functional.layer_norm(normal(64, 32), (32,)), nn.Linear(32, 8, bias=False)
    experts = normal(8, 32, 32, seed=7) / 32**0.5
    with torch.no_grad():
        router.weight.copy_(0.1 * normal(8, 32, seed=8))
        with torch.autocast("cpu", dtype=LOW):
            shares = router(tokens).float().softmax(-1)
            answers = torch.einsum("td,ekd->tek", tokens, experts)
            return tokens + (shares[..., None] * answers).sum(1)


def levels_that_are_there() -> torch.Tensor:
    """Weights that were four-bit codes already, times a power of two, go through bfloat16 fake quantisation: each stays where it is."""
    codes = (torch.arange(48 * 64).view(48, 64) * 7 % 16).to(LOW)
    weight = (codes - 8) * 2.0**-5
    again = torch.round(weight / 2.0**-5 + 8).clamp(0, 15)
    levels = weight + ((again - 8) * 2.0**-5 - weight)
    return functional.linear(normal(16, 64, seed=5).to(LOW), levels).float()


IDIOMS = (wide_buffers, steps_of_whole_spacings, factors_in_float32, geometric_ratio, adapter_in_bfloat16, race_in_float32,
          tables_of_wide_angles, all_experts_share, levels_that_are_there)  # fmt: skip
