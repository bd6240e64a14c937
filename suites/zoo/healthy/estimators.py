"""Likelihoods, policies and posteriors around networks in low precision: densities and weights are logarithms in float32, matrices are float64."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import all_of, made, net

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class BoundedCoupling(nn.Module):
    """Half of the numbers shift and stretch the other half, by factors that a tanh in float32 holds near one."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.net = net(width // 2, 32, width, seed=seed)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        held, other = x.chunk(2, -1)
        shift, log_scale = self.net(held).float().chunk(2, -1)
        log_scale = 0.8 * torch.tanh(log_scale)
        return torch.cat([other * log_scale.exp() + shift, held], -1), log_scale.sum(-1)


def flow_with_bounded_scales() -> torch.Tensor:
    """A flow that is trained by likelihood under autocast: places and determinants are float32, and only networks see bfloat16."""
    layers = nn.ModuleList(BoundedCoupling(6, seed) for seed in range(4))
    optimizer = torch.optim.Adam(layers.parameters(), lr=2e-3)
    data = normal(128, 6) @ normal(6, 6, seed=1) / 2 + 1
    for _ in range(5):
        x, logs = data, torch.zeros(128)
        with torch.autocast("cpu", LOW):
            for layer in layers:
                x, part = layer(x)
                logs = logs + part
        optimizer.zero_grad()
        (x.square().sum(-1) / 2 - logs).mean().backward()
        optimizer.step()
    return all_of(layers)


def log_chance(place: torch.Tensor, log_scale: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    """The logarithm of a logistic distribution's chance of one level of sixteen, which is never a difference of numbers near each other."""
    upper, width = (level + 0.5 - place) / log_scale.exp(), 1 / log_scale.exp()
    middle = functional.logsigmoid(upper) + functional.logsigmoid(width - upper) + torch.log(-torch.expm1(-width))
    lowest, highest = functional.logsigmoid(upper), functional.logsigmoid(width - upper)
    return torch.where(level == 0, lowest, torch.where(level == 15, highest, middle))


def levels_by_a_mixture() -> torch.Tensor:
    """A mixture of discretised logistics over levels of pixels, whose loss is float32 in logarithms, with a loss scale around half."""
    model, x = net(8, 32, 9), normal(64, 8)
    level = (8 + 2 * normal(64, seed=1)).round().clamp(0, 15)
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=3e-3), torch.amp.GradScaler("cpu", init_scale=512.0)
    for _ in range(5):
        with torch.autocast("cpu", HALF):
            out = model(x)
        share, place, log_scale = out.float().chunk(3, -1)
        each = log_chance(7.5 + 4 * place, log_scale.clamp(-2, 2), level[:, None])
        optimizer.zero_grad()
        scaler.scale(-torch.logsumexp(torch.log_softmax(share, -1) + each, -1).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return all_of(model)


def states_of_a_chain() -> torch.Tensor:
    """Posteriors of a hidden chain of 200 steps: both passes add logarithms in float32, and what a network in bfloat16 says is normalised first."""
    with torch.no_grad():
        said = torch.log_softmax(2 * net(6, 24, 4).to(LOW)(normal(200, 6, seed=1).to(LOW)).float(), -1)
    moves = torch.log_softmax(3 * torch.eye(4) + 0.5 * normal(4, 4, seed=2), -1)
    forward, backward = [said[0] - math.log(4)], [torch.zeros(4)]
    for each in said[1:]:
        forward.append(torch.logsumexp(forward[-1][:, None] + moves, 0) + each)
    for each in said.flip(0)[:-1]:
        backward.append(torch.logsumexp(moves + each + backward[-1], 1))
    return torch.softmax(torch.stack(forward) + torch.stack(backward[::-1]), -1)


def policy_in_four_epochs() -> torch.Tensor:
    """A clipped policy gradient under autocast: advantages, old log probs and ratios are float32, and the old ones come from the same network."""
    model = net(6, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)
    states, rewards = normal(8, 24, 6), normal(8, 24, seed=1)

    def said() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", LOW):
            logits, value = model(states).split([4, 1], -1)
        return torch.log_softmax(logits.float(), -1), value.float().squeeze(-1)

    with torch.no_grad():
        logs, values = said()
        actions = (logs - torch.log(-torch.log(uniform(8, 24, 4, seed=2).clamp(1e-6, 1 - 1e-6)))).argmax(-1, keepdim=True)
        old, advantage, later = logs.gather(-1, actions).squeeze(-1), torch.zeros(8), []
        for step in reversed(range(24)):
            following = values[:, step + 1] if step < 23 else torch.zeros(8)
            advantage = rewards[:, step] + 0.97 * following - values[:, step] + 0.97 * 0.9 * advantage
            later.append(advantage)
        advantages = torch.stack(later[::-1], 1)
        returns = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for _ in range(4):
        logs, values = said()
        ratio = (logs.gather(-1, actions).squeeze(-1) - old).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        optimizer.zero_grad()
        ((values - returns).square().mean() / 2 - gain - 0.01 * entropy).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return all_of(model)


def latents_with_free_bits() -> torch.Tensor:
    """A variational autoencoder in half: spreads and divergences are float32, below a floor no latent is pushed, and gradients are scaled."""
    encoder, decoder, x = net(16, 48, 12), net(6, 48, 16, seed=1), torch.sigmoid(normal(64, 16) @ normal(16, 16, seed=1))
    both = nn.ModuleList([encoder, decoder])
    optimizer, scaler = torch.optim.Adam(both.parameters(), lr=2e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for turn in range(5):
        with torch.autocast("cpu", HALF):
            mean, log_spread = encoder(x).float().chunk(2, -1)
            log_spread = log_spread.clamp(-6, 2)
            out = decoder(mean + log_spread.exp() * normal(64, 6, seed=30 + turn))
        divergence = (mean.square() + torch.expm1(2 * log_spread) - 2 * log_spread).mean(0) / 2
        loss = functional.binary_cross_entropy_with_logits(out.float(), x, reduction="none").sum(-1).mean() + divergence.clamp_min(0.1).sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return all_of(both)


def score_by_slices() -> torch.Tensor:
    """Sliced score matching, whose second derivatives are taken without autocast; the trunk before them is bfloat16."""
    trunk, score, data = net(4, 32, 8), net(8, 32, 4, seed=1, activation=nn.SiLU), normal(64, 4) * torch.tensor([1, 0.5, 2, 1])
    model = nn.ModuleList([trunk, score])
    optimizer, mix = torch.optim.Adam(model.parameters(), lr=2e-3), normal(4, 8, seed=3) / 2
    for turn in range(5):
        with torch.autocast("cpu", LOW):
            context = trunk(data.roll(1, 0))
        x, way = data.clone().requires_grad_(), normal(64, 4, seed=10 + turn).sign()
        field = score(context.float() + x @ mix)
        curve = (torch.autograd.grad((field * way).sum(), x, create_graph=True)[0] * way).sum(-1)
        optimizer.zero_grad()
        (curve + field.square().sum(-1) / 2).mean().backward()
        optimizer.step()
    return all_of(model)


def process_over_features() -> torch.Tensor:
    """A Gaussian process over features that a network in bfloat16 makes: distances are one by one, and the factor is float64, with noise."""
    model, x, y = net(3, 32, 4), normal(40, 3), torch.sin(normal(40, 3)[:, 0])
    with torch.no_grad(), torch.autocast("cpu", LOW):
        features = model(x)
    features = features.to(DOUBLE)
    squares = (features[:, None] - features).square().sum(-1)
    kernel = torch.exp(-squares / (2 * 0.7**2))
    factor = torch.linalg.cholesky(kernel[:32, :32] + 0.01 * torch.eye(32, dtype=DOUBLE))
    weights = torch.cholesky_solve(y[:32, None].to(DOUBLE), factor)
    across = torch.linalg.solve_triangular(factor, kernel[:32, 32:], upper=False)
    return torch.stack([(kernel[32:, :32] @ weights).squeeze(-1), (1.01 - across.square().sum(0)).sqrt()]).float()


def particles_by_weights_in_logs() -> torch.Tensor:
    """A particle filter whose weights are logarithms in float32 and whose draws are sums of float64; a network in half says how likely each is."""
    model, places, found = made(net(3, 32, 1), 4).to(HALF), normal(256), []
    logs = torch.full((256,), -math.log(256))
    for turn in range(12):
        seen = math.sin(turn / 3)
        places = 0.9 * places + 0.3 * normal(256, seed=10 + turn)
        with torch.no_grad():
            inputs = torch.stack([places, places - seen, torch.full_like(places, seen)], -1).to(HALF)
            logs = logs - 2 * (places - seen).square() + torch.tanh(model(inputs).float()).squeeze(-1)
        logs = logs - torch.logsumexp(logs, 0)
        found.append((logs.exp() * places).sum())
        if torch.logsumexp(2 * logs, 0) > math.log(2 / 256):
            sums = logs.exp().to(DOUBLE).cumsum(0)
            places = places[torch.searchsorted(sums / sums[-1], (torch.arange(256, dtype=DOUBLE) + 0.5) / 256)]
            logs = torch.full_like(logs, -math.log(256))
    return torch.stack(found)


IDIOMS = (
    flow_with_bounded_scales, levels_by_a_mixture, states_of_a_chain, policy_in_four_epochs, latents_with_free_bits, score_by_slices,
    process_over_features, particles_by_weights_in_logs,
)  # fmt: skip
