"""Layers, scans, quantisers and estimates as careful people write them: low products and activations around islands in float32."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

from .practice_training import HALF, LOW


def scan_of_a_selective_state() -> torch.Tensor:
    """Mamba's scan: inputs, B and C in bfloat16, steps by a softplus in float32, and a state in float32."""
    x, b, c = normal(2, 24, 16).to(LOW), normal(2, 24, 8, seed=1).to(LOW), normal(2, 24, 8, seed=2).to(LOW)
    steps = functional.softplus(normal(2, 24, 16, seed=3).to(LOW).float() - 2)
    rates = -torch.arange(1, 9).float().expand(16, 8)
    state, outs = torch.zeros(2, 16, 8), []
    for place in range(24):
        decay = (steps[:, place, :, None] * rates).exp()
        fed = (steps[:, place] * x[:, place].float())[..., None] * b[:, place, None].float()
        state = decay * state + fed
        outs.append((state * c[:, place, None].float()).sum(-1))
    return (torch.stack(outs, 1) + x.float()).to(LOW).float()


def scan_in_blocks() -> torch.Tensor:
    """SSD: sums of log decays in float32 within blocks, products of bfloat16 within and between them, a state in float32."""
    x, b, c = normal(4, 8, 16).to(LOW), normal(4, 8, 12, seed=1).to(LOW), normal(4, 8, 12, seed=2).to(LOW)
    sums = -functional.softplus(normal(4, 8, seed=3)).cumsum(-1)
    apart = (sums[:, :, None] - sums[:, None]).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    within = ((c @ b.mT).float() * apart.exp()).to(LOW) @ x
    state, outs = torch.zeros(12, 16), []
    for block in range(4):
        outs.append(within[block].float() + sums[block].exp()[:, None] * (c[block].float() @ state))
        weights = (sums[block, -1] - sums[block]).exp()[:, None]
        state = sums[block, -1].exp() * state + (b[block].float() * weights).mT @ x[block].float()
    return torch.cat(outs)


def rule_of_gated_errors() -> torch.Tensor:
    """A gated delta rule: unit keys, log decays and the state in float32, a normed output in bfloat16."""
    q, k, v = (normal(2, 20, 16, seed=seed).to(LOW) for seed in range(3))
    q, k = functional.normalize(q.float(), dim=-1), functional.normalize(k.float(), dim=-1)
    gate, rate = -functional.softplus(normal(2, 20, seed=3) - 2), torch.sigmoid(normal(2, 20, seed=4))
    state, outs = torch.zeros(2, 16, 16), []
    for place in range(20):
        key = k[:, place, :, None]
        state = gate[:, place, None, None].exp() * state
        error = v[:, place, None].float() - key.mT @ state
        state = state + rate[:, place, None, None] * key @ error
        outs.append((q[:, place, None] @ state)[:, 0])
    out = torch.stack(outs, 1)
    return (out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-6)).to(LOW).float()


def experts_by_a_wide_router() -> torch.Tensor:
    """Experts by sigmoids in float32 with a bias for balance only, shares of the chosen, products in bfloat16, losses in float32."""
    x, router = normal(32, 16).to(LOW), normal(8, 16, seed=1) / 4
    up, down = (normal(8, 16, 32, seed=2) / 4).to(LOW), (normal(8, 32, 16, seed=3) / 6).to(LOW)
    logits = functional.linear(x.float(), router)
    scores, bias = torch.sigmoid(logits), 0.01 * torch.sign(normal(8, seed=4))
    chosen = (scores + bias).topk(2, -1).indices
    weights = scores.gather(-1, chosen)
    weights = 2.5 * weights / (weights.sum(-1, keepdim=True) + 1e-20)
    out = torch.zeros(32, 16)
    for expert in range(8):
        row, place = (chosen == expert).nonzero(as_tuple=True)
        made = functional.silu(x[row] @ up[expert]) @ down[expert]
        out.index_add_(0, row, made.float() * weights[row, place, None])
    load = functional.one_hot(chosen, 8).sum(1).float().mean(0) / 2
    balance = 8 * (load * (scores / scores.sum(-1, keepdim=True)).mean(0)).sum()
    return torch.cat([out.flatten(), torch.stack([balance, torch.logsumexp(logits, -1).square().mean()])])


def capped_scores_in_a_window() -> torch.Tensor:
    """Attention of Gemma 2: normed low queries, scores in float32 that tanh caps at fifty, a window, chances cast for the last product."""
    q, k, v = (normal(2, 4, 30, 16, seed=seed).to(LOW) for seed in range(3))
    weight = 0.1 * normal(16, seed=3)

    def normed(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight)).to(x.dtype)

    scores = (normed(q) @ normed(k).mT).float() * 16**-0.5
    scores = 50 * torch.tanh(scores / 50)
    near = torch.ones(30, 30).tril().triu(-7).bool()
    chances = torch.softmax(scores.masked_fill(~near, -torch.inf), -1)
    return (chances.to(LOW) @ v).float()


def turns_that_are_stretched() -> torch.Tensor:
    """YaRN: frequencies, their ramp and all angles in float32, cosines cast once they are made, low queries and keys."""
    size, old = 32, 64
    plain = 10000.0 ** (-torch.arange(0, size, 2).float() / size)
    turns = old * plain / (2 * math.pi)
    ramp = ((turns - 1) / (16 - 1)).clamp(0, 1)
    angles = torch.arange(200).float()[:, None] * (plain * ramp + plain / 4 * (1 - ramp))
    growth = 0.1 * math.log(4) + 1
    cos, sin = (growth * angles.cos()).to(LOW), (growth * angles.sin()).to(LOW)
    q, k = (normal(200, 32, seed=seed).to(LOW) for seed in range(2))
    turned = [torch.cat([x[:, :16] * cos - x[:, 16:] * sin, x[:, 16:] * cos + x[:, :16] * sin], -1) for x in (q, k)]
    return (turned[0] @ turned[1].mT).float()


def latent_keys_absorbed() -> torch.Tensor:
    """MLA when it decodes: queries are taken through the keys' weight, all tokens share a latent, and scores are float32."""
    latents, q = normal(60, 24).to(LOW), normal(6, 16, seed=1).to(LOW)
    keys, values = (normal(6, 16, 24, seed=2) / 5).to(LOW), (normal(6, 24, 16, seed=3) / 5).to(LOW)
    scores = ((q[:, None] @ keys)[:, 0] @ latents.mT).float() / 4
    mixed = torch.softmax(scores, -1).to(LOW) @ latents
    return (mixed[:, None] @ values)[:, 0].float()


def weights_rounded_in_turn() -> torch.Tensor:
    """GPTQ: a damped Hessian of low activations and its factor in float32, columns rounded to four bits, what is left goes to the next."""
    x, weight = normal(200, 24).to(LOW).float(), normal(16, 24, seed=1) / 5
    hessian = x.mT @ x / 200
    hessian += 0.01 * hessian.diagonal().mean() * torch.eye(24)
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    scale = weight.abs().amax(1) / 7
    left, codes = weight.clone(), torch.zeros(16, 24)
    for column in range(24):
        codes[:, column] = (left[:, column] / scale).round().clamp(-8, 7) * scale
        error = (left[:, column] - codes[:, column]) / factor[column, column]
        left[:, column:] -= error[:, None] * factor[column, column:]
    return x @ codes.mT


def scales_by_activations() -> torch.Tensor:
    """AWQ: a power of mean activations scales weights before four bits; the best of a few powers by errors in float32."""
    x, weight = (normal(100, 32) * (1 + 4 * uniform(32, seed=1))).to(LOW), (normal(24, 32, seed=2) / 6).to(LOW)
    sizes, wanted = x.float().abs().mean(0), x.float() @ weight.float().mT
    best, found = math.inf, wanted
    for power in (0.0, 0.25, 0.5, 0.75):
        scales = sizes.pow(power).clamp_min(1e-4)
        scales = scales / (scales.amax() * scales.amin()).sqrt()
        scaled = weight.float() * scales
        step = scaled.abs().amax(1, keepdim=True) / 7
        made = (x.float() / scales) @ ((scaled / step).round().clamp(-8, 7) * step).mT
        error = float((made - wanted).square().mean())
        best, found = min((best, found), (error, made), key=lambda pair: pair[0])
    return found


def book_that_follows_its_words() -> torch.Tensor:
    """VQ with averages: distances, counts and sums in float32, counts smoothed by Laplace, a straight-through result in bfloat16."""
    book, counts = normal(16, 8), torch.ones(16)
    sums = book.clone()
    for step in range(4):
        x = (2 * normal(64, 8, seed=step + 1)).to(LOW)
        wide = x.float()
        near = torch.cdist(wide, book).argmin(-1)
        hot = functional.one_hot(near, 16).float()
        counts.lerp_(hot.sum(0), 0.1)
        sums.lerp_(hot.mT @ wide, 0.1)
        smoothed = (counts + 1e-5) / (counts.sum() + 16e-5) * counts.sum()
        book = sums / smoothed[:, None]
    return (wide + (book[near] - wide)).to(LOW).float()


def levels_by_bounded_tangents() -> torch.Tensor:
    """FSQ: tanh in float32 of low latents, rounded to a few levels, which bfloat16 holds."""
    z, levels = normal(50, 4).to(LOW), torch.tensor([8, 5, 5, 5])
    half = (levels - 1) * (1 - 1e-3) / 2
    shift = torch.where(levels % 2 == 0, 0.5, 0.0)
    bounded = torch.tanh(z.float() + (shift / half).atanh()) * half - shift
    return (bounded.round() / (levels // 2)).to(LOW).float()


def noise_of_a_record_smoothed() -> torch.Tensor:
    """A Kalman filter and the smoother that goes back: half measurements, states and covariances in float32, Joseph's form."""
    step = torch.tensor([[1, 0.1], [0, 1.0]])
    drift, look = 0.01 * torch.tensor([[0.00033, 0.005], [0.005, 0.1]]), torch.tensor([[1.0, 0]])
    seen = (torch.sin(0.1 * torch.arange(40)) + 0.1 * normal(40)).to(HALF).float()
    mean, cov = torch.zeros(2), torch.eye(2)
    kept = []
    for each in seen:
        ahead, wide = step @ mean, step @ cov @ step.mT + drift
        gain = (wide @ look.mT) / (look @ wide @ look.mT + 0.01)
        left = torch.eye(2) - gain @ look
        mean, cov = ahead + gain[:, 0] * (each - ahead[0]), left @ wide @ left.mT + 0.01 * gain @ gain.mT
        kept.append((mean, cov, ahead, wide))
    smooth = [kept[-1][0]]
    for (mean, cov, _, _), (_, _, ahead, wide) in zip(kept[-2::-1], kept[:0:-1], strict=True):
        smooth.append(mean + torch.linalg.solve(wide, step @ cov).mT @ (smooth[-1] - ahead))
    return torch.stack(smooth[::-1])


def forecast_by_an_ensemble() -> torch.Tensor:
    """An ensemble Kalman filter: members go ahead in bfloat16, anomalies and gains are float32."""
    weight, members = (normal(12, 12) / 4).to(LOW), normal(30, 12, seed=1)
    for turn in range(4):
        members = members + 0.1 * torch.tanh(members.to(LOW) @ weight.mT).float()
        apart = members - members.mean(0)
        look = apart[:, :4]
        gain = apart.mT @ look / 29 @ torch.linalg.inv(look.mT @ look / 29 + 0.25 * torch.eye(4))
        seen = 0.5 * normal(4, seed=10 + turn) + 0.5 * normal(30, 4, seed=20 + turn)
        members = members + (seen - members[:, :4]) @ gain.mT
    return members.mean(0)


IDIOMS = (
    scan_of_a_selective_state, scan_in_blocks, rule_of_gated_errors, experts_by_a_wide_router, capped_scores_in_a_window,
    turns_that_are_stretched, latent_keys_absorbed, weights_rounded_in_turn, scales_by_activations, book_that_follows_its_words,
    levels_by_bounded_tangents, noise_of_a_record_smoothed, forecast_by_an_ensemble,
)  # fmt: skip
