"""Codes, scales, parts of networks and trainings in low formats: what looks like the bugs of codes, sublayers and updates by hand."""

from __future__ import annotations

import torch
from bugs.bug import normal
from bugs.loops import Loop
from torch import nn
from torch.nn import functional

from healthy.rounds import perceptron

HALF, LOW = torch.float16, torch.bfloat16


def cached_codes() -> torch.Tensor:
    """Keys of a cache in 4 bits, by channel; scale and zero point in bfloat16 are wrong by far less than a step."""
    keys = normal(32, 16).to(LOW)
    low, high = keys.amin(0, keepdim=True), keys.amax(0, keepdim=True)
    scale = (high - low) / 15
    codes = ((keys - low) / scale).round().clamp(0, 15)
    return codes * scale + low


def scales_in_half() -> torch.Tensor:
    """Weights in 4 bits, in groups of sixteen, with scales of 1e-2 in half precision."""
    weight = 0.05 * normal(8, 64)
    groups = weight.reshape(8, 4, 16)
    scale = (groups.abs().amax(-1, keepdim=True) / 7).half()
    codes = (groups.half() / scale).round().clamp(-8, 7)
    return normal(4, 64, seed=1).half() @ (codes * scale).reshape(8, 64).T


def products_of_codes() -> torch.Tensor:
    """Sums of products of codes times two scales in half precision, neither of which takes them out of range."""
    inputs, weights = (normal(8, 64) * 40).round().int(), (normal(64, 16, seed=1) * 3).round().int()
    return (inputs @ weights).half() * torch.tensor(0.02).half() * torch.tensor(0.01).half()


def far_neighbours() -> torch.Tensor:
    """Nearest of vectors in half precision that lie far apart."""
    stored, asked = normal(300, 16).half(), normal(10, 16, seed=1).half()
    return (asked[:, None] - stored).float().square().sum(-1).sqrt().topk(5, largest=False).values


def smoothed_scales() -> torch.Tensor:
    """Large channels of the inputs are divided by what the weights are multiplied with, both in bfloat16."""
    x, weight = (normal(8, 32) * torch.linspace(1, 30, 32)).to(LOW), (0.1 * normal(32, 16, seed=1)).to(LOW)
    by = x.abs().amax(0).float().sqrt().to(LOW)
    return (x / by) @ (by[:, None] * weight)


def largest_so_far() -> torch.Tensor:
    """The largest magnitude of 300 batches in bfloat16, batch by batch: a maximum is exact."""
    largest = torch.zeros((), dtype=LOW)
    for batch in range(300):
        largest = torch.maximum(largest, normal(64, seed=batch).to(LOW).abs().amax())
    return largest


def balanced_experts() -> torch.Tensor:
    """A balance of experts over 70000 tokens with logits in half precision and shares in float32."""
    shares = torch.softmax(normal(70_000, 4).half(), -1, dtype=torch.float32)
    sent = functional.one_hot(shares.argmax(-1), 4).float().mean(0)
    return 4 * (sent * shares.mean(0)).sum()


def pooled_frames() -> torch.Tensor:
    """Means and deviations over frames, in float32, cast to the dtype of the frames for the layer that follows."""
    x = normal(3, 8, 20).to(LOW)
    mean, deviation = x.float().mean(2, keepdim=True), x.float().std(2, keepdim=True)
    given = torch.cat((x, mean.to(LOW).expand_as(x), deviation.to(LOW).expand_as(x)), 1)
    return functional.conv1d(given, (0.2 * normal(4, 24, 1, seed=1)).to(LOW))


def averaged_tokens() -> torch.Tensor:
    """Sums over sentences of a few tokens over their numbers, all in bfloat16, which holds such numbers."""
    tokens, lengths = normal(24, 16).to(LOW), torch.tensor([9, 8, 7])
    sums = torch.stack([each.sum(0) for each in tokens.split(lengths.tolist())])
    return (sums / lengths[:, None].to(LOW)) @ (0.3 * normal(16, 1, seed=1)).to(LOW)


def deep_stream() -> torch.Tensor:
    """A residual stream of 48 layers in bfloat16, rounded to nearest after each."""
    stream, weight = 4 * normal(8, 32).to(LOW), (0.1 * normal(32, 32, seed=1)).to(LOW)
    for _ in range(48):
        stream = stream + functional.rms_norm(stream, (32,)) @ weight
    return stream


def fused_softplus() -> torch.Tensor:
    """Steps of a state space by torch's own softplus in bfloat16; the state is float32."""
    steps, state = functional.softplus((-6 + 1.2 * normal(24, 8)).to(LOW)), torch.zeros(8, 4)
    for step in steps.float():
        state = torch.exp(-step[:, None] * torch.arange(1.0, 5.0)) * state + step[:, None]
    return state.to(LOW)


def sign_attack() -> torch.Tensor:
    """An image is moved by the sign of its gradient: faint gradients in half precision keep their signs."""
    image = (normal(4, 3, 8, 8) / 4 + 0.5).clamp(0, 1).half().requires_grad_()
    weight = (0.2 * normal(192, 5, seed=1)).half()
    functional.cross_entropy((image.flatten(1) @ weight).float(), torch.arange(4)).backward()
    assert image.grad is not None
    return (image + 8 / 255 * image.grad.sign()).clamp(0, 1).detach()


def restored_weights() -> torch.Tensor:
    """An adapter is added to bfloat16 weights for a round of sampling, and a copy of the weights put back."""
    weight, down = (0.02 * normal(32, 32)).to(LOW), (0.3 * normal(4, 32, seed=1)).to(LOW)
    answers, kept = torch.zeros(2, 32), weight.clone()
    for step in range(12):
        weight += (0.1 * normal(32, 4, seed=step)).to(LOW) @ down
        answers += (normal(2, 32).to(LOW) @ weight.T).float()
        weight = kept.clone()
    return answers


def large_steps_left_out() -> torch.Tensor:
    """Steps whose gradient is too large are left out; the scaler is updated all the same."""
    loop = Loop()
    loop.y[3] += 40.0
    for turn in range(4):
        loop.optimizer.zero_grad()
        loop.scaler.scale(loop.loss(slice(0, 8) if turn % 2 else slice(4, 16))).backward()
        loop.scaler.unscale_(loop.optimizer)
        if float(nn.utils.clip_grad_norm_(loop.model.parameters(), 2.0)) <= 4.0:
            loop.scaler.step(loop.optimizer)
        loop.scaler.update()
    return loop.weight


def signs_as_steps() -> torch.Tensor:
    """Lion on bfloat16 weights near 0.05: each moves by 2e-3, eight times their spacing."""
    weight = nn.Parameter((0.05 * normal(16, 16)).to(LOW))
    average, x, y = torch.zeros(16, 16), normal(32, 16, seed=1).to(LOW), normal(32, 16, seed=2)
    for _ in range(8):
        (slope,) = torch.autograd.grad(((x @ weight).float() - y).square().mean(), weight)
        with torch.no_grad():
            weight -= 2e-3 * (0.9 * average + 0.1 * slope.float()).sign().to(LOW)
        average = 0.99 * average + 0.01 * slope.float()
    return weight.detach()


def clipped_gradients() -> torch.Tensor:
    """Gradients in bfloat16 are clipped by a norm in bfloat16: wrong by half a percent at most."""
    model = perceptron(16, 32, 4, act=nn.Tanh).to(LOW)
    (10 * model(normal(8, 16).to(LOW)).float().square().mean()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


IDIOMS = (cached_codes, scales_in_half, products_of_codes, far_neighbours, smoothed_scales, largest_so_far, balanced_experts, pooled_frames,
          averaged_tokens, deep_stream, fused_softplus, sign_attack, restored_weights, large_steps_left_out, signs_as_steps,
          clipped_gradients)  # fmt: skip
