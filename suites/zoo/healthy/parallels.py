"""Code that looks like the bugs of `schedules`, `tallies`, `divergences`, `images` and `services`, and is right."""

from __future__ import annotations

import math
from typing import Any

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def waits_of_whole_eighths() -> torch.Tensor:
    """Holding times in half, from which waits are taken off 300 times; all are multiples of an eighth below 128."""
    left = (8 * (64 + 16 * uniform(48))).round().div(8).to(HALF)
    for wait in (uniform(300, seed=1) * 3).floor().div(8):
        left = torch.where(left > 0, left - wait.to(HALF), torch.zeros_like(left))
    return left.float()


def begins_within_files() -> torch.Tensor:
    """Where detections begin in a day of recordings: the day's clock is float32's, and what is kept in half is within a file."""
    accumulated, begins = torch.zeros(()), []
    for file in range(140):
        begins.append(torch.stack([accumulated, torch.tensor(2.5 * (file % 50), dtype=HALF).float()]).sum())
        accumulated += 600.0 + file % 3
    return torch.stack(begins)


def timestep_scaled_first() -> torch.Tensor:
    """A timestep of up to 1000 in float32, whose sines and cosines go low."""
    timestep = torch.linspace(1, 1 / 10, 10) * 1000
    angles = timestep[:, None] * torch.exp(-math.log(10000) * torch.arange(32.0) / 32)
    return torch.cat([angles.cos(), angles.sin()], -1).to(LOW) @ (normal(64, 32) / 8).to(LOW)


def small_numbers_of_users() -> torch.Tensor:
    """Users by number as a column of float32, of which there are two million."""
    users = 2_000_001 + torch.arange(64).repeat(6)
    triples = torch.stack([users.float(), 1 + 4 * uniform(384)], 1)
    rows = triples[:, 0].long() - 2_000_001
    return torch.zeros(64).index_add_(0, rows, triples[:, 1]) / 6


def anomalies_of_pressure() -> torch.Tensor:
    """Pressures of 100000 Pa, from which the mean is taken off in double; float32 steps what is left."""
    history = 100_000 + 0.05 * normal(200, 24).double()
    mean, spread = history.mean(0), history.std(0)
    state = ((100_000 + 0.05 * normal(24, seed=1).double() - mean) / spread).float()
    for step in range(80):
        state = 0.98 * state + 0.05 * normal(24, seed=2 + step)
    return state * spread.float()


def spread_of_returns() -> torch.Tensor:
    """A running mean and variance of returns about 50 in float32, by deviations from the mean."""
    mean, variance, count = torch.zeros(()), torch.zeros(()), 0
    for step in range(40):
        batch = 50 + 10 * normal(128, seed=step)
        total = count + len(batch)
        delta = batch.mean() - mean
        variance = (variance * count + batch.var(correction=0) * len(batch) + delta**2 * count * len(batch) / total) / total
        mean, count = mean + delta * len(batch) / total, total
    return (batch - mean) / (variance + 1e-8).sqrt()


def mixture_in_logs() -> torch.Tensor:
    """Jensen and Shannon's divergence at a temperature of 0.05 between distributions of logits in half."""
    student, teacher = (0.4 * normal(6, 24)).half().requires_grad_(), (0.4 * normal(6, 24, seed=1)).half()
    log_s, log_t = torch.log_softmax(student.float() / 0.05, -1), torch.log_softmax(teacher.float() / 0.05, -1)
    log_m = torch.logsumexp(torch.stack([log_s, log_t]), 0) - math.log(2)
    loss = 0.5 * ((log_s.exp() * (log_s - log_m)).sum(-1) + (log_t.exp() * (log_t - log_m)).sum(-1)).mean()
    loss.backward()
    assert student.grad is not None
    return student.grad


def far_teacher() -> torch.Tensor:
    """A student in float32 that has yet to learn what a teacher in bfloat16 says, of which log probabilities go low."""
    teacher, student = (2 * normal(8, 512)).to(LOW), (2 * normal(8, 512, seed=1)).requires_grad_()
    log_teacher = functional.log_softmax(teacher.float(), -1).to(LOW)
    functional.kl_div(functional.log_softmax(student, -1), log_teacher.float(), reduction="batchmean", log_target=True).backward()
    assert student.grad is not None
    return student.grad


class GradientBesideLogits(torch.autograd.Function):
    """Cross entropy whose gradient is made in the forward pass, in float32, and goes low when it is done."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        log_probs = torch.log_softmax(logits.float(), -1)
        gradient = log_probs.exp()
        gradient[torch.arange(len(target)), target] -= 1.0
        ctx.save_for_backward(gradient.div_(len(target)).to(logits.dtype))
        return -log_probs[torch.arange(len(target)), target].mean()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        return ctx.saved_tensors[0] * given, None


def gradient_made_ahead() -> torch.Tensor:
    """The gradient of hidden states in bfloat16, by a function of autograd that saves it low."""
    hidden, words = (0.4 * normal(64, 32, seed=1)[:16]).to(LOW).requires_grad_(), normal(64, 32, seed=1).to(LOW)
    GradientBesideLogits.apply(hidden @ words.T, torch.arange(16)).backward()
    assert hidden.grad is not None
    return hidden.grad


def losses_of_a_young_classifier() -> torch.Tensor:
    """Losses about five, stored in bfloat16 and no more than looked at."""
    logits = (0.5 * normal(32, 100)).to(LOW)
    return (torch.logsumexp(logits.float(), -1) - logits[torch.arange(32), torch.arange(32)].float()).to(LOW)


def contrast_of_unit_features() -> torch.Tensor:
    """A supervised contrast of features of length one, in bfloat16, at a temperature of 0.1; each row's largest is taken off."""
    features, labels = functional.normalize(normal(12, 32)).to(LOW), torch.arange(6).repeat(2)
    itself = torch.eye(12, dtype=torch.bool)
    scores = ((features @ features.T).float() / 0.1).masked_fill(itself, -torch.inf)
    logits = scores - scores.amax(1, keepdim=True)
    log_prob = logits - torch.log(logits.exp().sum(1, keepdim=True))
    mask = (labels[:, None] == labels) & ~itself
    return -log_prob.masked_fill(~mask, 0).sum(1)


def means_of_clusters() -> torch.Tensor:
    """Two rounds of k-means over vectors in half whose sums half does not hold: torch's own mean does."""
    data = (60 + 8 * normal(6000, 8) + 40 * torch.arange(4.0).repeat(1500)[:, None]).to(HALF)
    centres = data[:4].float()
    for _ in range(2):
        nearest = torch.cdist(data.float(), centres).argmin(1)
        centres = torch.stack([data[nearest == which].mean(0) for which in range(4)]).float()
    return centres


def scaled_rows() -> torch.Tensor:
    """Layer norm in half, written out, of rows that are divided by their largest first, in parts of 32."""
    x = (18 * normal(6, 512)).to(HALF)
    x = x / x.abs().amax(-1, keepdim=True)
    centred = x - x.float().mean(-1, keepdim=True).to(HALF)
    variance = (centred * centred).view(6, 16, 32).sum(-1).sum(-1, keepdim=True) / 512
    return (centred * torch.rsqrt(variance.float() + 1e-7).to(HALF)).float()


def windows_chosen() -> torch.Tensor:
    """A partial convolution in half that asks which windows hold a pixel, and divides there alone."""
    mask = torch.ones(1, 1, 12, 12, dtype=HALF)
    mask[..., 3:9, 4:10] = 0
    seen = functional.conv2d(mask, torch.ones(1, 1, 3, 3, dtype=HALF), padding=1)
    ratio = torch.where(seen > 0, 9 / seen.clamp_min(1), torch.zeros_like(seen))
    return functional.conv2d(normal(1, 4, 12, 12).half() * mask, (normal(4, 4, 3, 3) / 6).half(), padding=1) * ratio


def focused_unit_tokens() -> torch.Tensor:
    """Focused linear attention in half, of tokens that are divided by their length before the third power."""
    q, k, v = (14 * normal(2, 64, 16)).half(), (14 * normal(2, 64, 16, seed=1)).half(), normal(2, 64, 16, seed=2).half()
    q, k = functional.normalize(torch.relu(q).float(), dim=-1).half(), functional.normalize(torch.relu(k).float(), dim=-1).half()
    q, k = functional.normalize(q**3, dim=-1, eps=1e-4), functional.normalize(k**3, dim=-1, eps=1e-4)
    weights = (k.transpose(-2, -1) / 8) @ (v / 8)
    return (q @ weights).float() / (q.float() @ k.float().mean(-2, keepdim=True).transpose(-2, -1) + 1e-4)


def splats_in_their_own_units() -> torch.Tensor:
    """Covariances of a small object's splats in half, in ten thousandths, which the camera's matrix takes back."""
    spread = normal(40, 3, 3) * (0.4 + uniform(40, 1, 3))
    held = (spread @ spread.transpose(1, 2) + 0.5 * torch.eye(3)).to(HALF).float()
    jacobian = torch.tensor([[4.5, 0, 0], [0, 4.5, 0]])
    screen = jacobian @ held @ jacobian.T + 0.3 * torch.eye(2)
    return screen.diagonal(dim1=1, dim2=2).sum(-1).sqrt()


def merged_from_a_copy() -> torch.Tensor:
    """Adapters merged for 60 validations into weights in bfloat16: each time into a copy in float32, and the weights are put back."""
    module = nn.Linear(24, 24, bias=False).to(LOW)
    with torch.no_grad():
        module.weight.copy_(normal(24, 24) / 5)
        kept = module.weight.detach().clone()
        up, down = 0.02 * normal(24, 4, seed=1), normal(4, 24, seed=2)
        for _ in range(60):
            module.weight.copy_(kept.float() + up @ down)
            answers = module(normal(4, 24, seed=3).to(LOW))
            module.weight.copy_(kept)
    return answers


def prompt_with_large_steps() -> torch.Tensor:
    """A trigger's embedding in bfloat16 that Adam moves by a tenth of its size, for four steps."""
    weight = (normal(16, 16) / 4).to(LOW)
    prompt = normal(1, 4, 16, seed=2).to(LOW).requires_grad_()
    optimizer = torch.optim.Adam([prompt], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (1 - functional.cosine_similarity(torch.tanh(prompt @ weight).mean(1).float(), normal(1, 16, seed=3))).mean().backward()
        optimizer.step()
    return prompt.detach()


def unscaled_and_clipped() -> torch.Tensor:
    """Four steps of a small network whose gradients are clipped to 0.1, when they are those of the loss again."""
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    with torch.no_grad():
        for seed, each in enumerate(net.parameters()):
            each.copy_(normal(*each.shape, seed=seed) / 3)
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.05), torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step in range(4):
        with torch.autocast("cpu", dtype=HALF):
            predicted = net(normal(2, 1, 16, 16, seed=5 + step))
        loss = functional.binary_cross_entropy_with_logits(predicted.float(), (normal(2, 1, 16, 16, seed=50 + step) > 0).float())
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return net[0].weight.detach()


def experts_far_apart() -> torch.Tensor:
    """Two of eight experts for each token by shares in bfloat16, the two largest of which are twice as large as the others."""
    tokens, order = normal(64, 8, seed=2), torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(seed)) for seed in range(64)])
    shares = torch.softmax(torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 2.0, 3.0])[order], -1).to(LOW)
    weights, chosen = shares.topk(2, -1)
    return ((weights / weights.sum(-1, keepdim=True)).float()[..., None] * tokens[:8][chosen]).sum(1)


IDIOMS = (waits_of_whole_eighths, begins_within_files, timestep_scaled_first, small_numbers_of_users, anomalies_of_pressure, spread_of_returns,
          mixture_in_logs, far_teacher, gradient_made_ahead, losses_of_a_young_classifier, contrast_of_unit_features, means_of_clusters, scaled_rows,
          windows_chosen, focused_unit_tokens, splats_in_their_own_units, merged_from_a_copy, prompt_with_large_steps, unscaled_and_clipped,
          experts_far_apart)  # fmt: skip
EXACT = ("small_numbers_of_users", "anomalies_of_pressure", "spread_of_returns")
