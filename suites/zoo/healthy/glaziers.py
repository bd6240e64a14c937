"""Beside pastures and part of the foothills: scans, memories, attention, windows, experts, drafts, actors and pupils that hold."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def scan_of_short_chunks() -> torch.Tensor:
    """A scan by a quotient in float32, whose chunks are four words long: what is divided by is no less than a millionth of a millionth."""
    dt, b, c, outputs = 0.2 + 0.6 * uniform(64, 8, seed=10301), normal(64, 8, seed=10302), normal(64, 8, seed=10303), []
    u, h = normal(64, 8, seed=10304), torch.zeros(8, 8)
    for start in range(0, 64, 4):
        part = slice(start, start + 4)
        ats = torch.einsum("dn,ld->ldn", -torch.arange(1.0, 9).repeat(8, 1), dt[part].cumsum(0)).exp()
        states = ats * (torch.einsum("ld,ln->ldn", dt[part] * u[part], b[part]) / ats).cumsum(0) + ats * h
        outputs.append(torch.einsum("ln,ldn->ld", c[part], states))
        h = states[-1]
    return torch.cat(outputs)


def memory_of_quiet_words() -> torch.Tensor:
    """A mean weighted by exponentials of keys, which a product in half gives; the greatest is taken out before, in float32."""
    torch.manual_seed(10311)
    key, value = torch.randn(24, 24).to(HALF), torch.randn(24, 24).to(HALF)
    top, bottom, most, outputs = torch.zeros(24), torch.zeros(24), torch.full((24,), -1e38), []
    for word in normal(30, 24, seed=10312).to(HALF):
        k, v = (word @ key).float(), (word @ value).float()
        peak = torch.maximum(most - 0.3, k)
        old, new = torch.exp(most - 0.3 - peak), torch.exp(k - peak)
        top, bottom, most = old * top + new * v, old * bottom + new, peak
        outputs.append((top / bottom).to(HALF))
    return torch.stack(outputs).float()


def painter_of_one_look() -> torch.Tensor:
    """Attention in half whose scores are scaled after the product, and reach some thousands before it."""
    torch.manual_seed(10321)
    to_q, to_k, to_v = (nn.Linear(64, 64).to(HALF) for _ in range(3))
    x = normal(2, 24, 64, seed=10322)
    with torch.no_grad():
        for _ in range(4):
            low = functional.layer_norm(x, (64,)).to(HALF)
            scores = ((12 * to_q(low)) @ (8 * to_k(low)).transpose(-1, -2)) * 0.125
            x = x + 0.1 * (scores.softmax(-1) @ to_v(low)).float()
    return x


def regions_of_a_stamp() -> torch.Tensor:
    """Regions under autocast in half that are sums over two hundred pixels, of some thousands."""
    torch.manual_seed(10331)
    stem, first = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 2, 1)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        features = 10 * functional.relu(stem(1 + uniform(2, 3, 14, 14, seed=10332)))
        belongs = torch.sigmoid(first(features) / 10).flatten(2)
        regions = torch.bmm(features.flatten(2), belongs.transpose(1, 2))
        sim = torch.bmm(features.flatten(2).transpose(1, 2) / 100, regions / 1000)
        return torch.bmm(sim.softmax(-1), regions.transpose(1, 2)).float()


def words_near_by() -> torch.Tensor:
    """Attention in bfloat16 that minds distance, whose slopes times forty places are wholes and halves that the format holds."""
    torch.manual_seed(10341)
    qkv, x = nn.Linear(32, 96).to(LOW), normal(40, 32, seed=10342).to(LOW)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    places = torch.arange(40)
    alibi = (-slopes[:, None, None] * (places[:, None] - places[None, :]).clamp(min=0)).to(LOW)
    with torch.no_grad():
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(0, 1) for part in qkv(x).chunk(3, -1))
        scores = torch.baddbmm(alibi, q, k.transpose(1, 2), alpha=8**-0.5)
        return torch.bmm(scores.masked_fill(torch.ones(40, 40, dtype=torch.bool).triu(1), -1e4).softmax(-1), v).float()


def windows_by_weights_of_eight_bits() -> torch.Tensor:
    """A block in bfloat16 with weights of eight bits; the speeds at which places turn are computed anew, in float32."""
    torch.manual_seed(10351)
    qkv, x = nn.Linear(32, 96), normal(2, 256, 32, seed=10352).to(LOW)
    qkv.load_state_dict({name: value.to(torch.float8_e4m3fn).to(SINGLE) for name, value in qkv.state_dict().items()})
    angles = torch.arange(256, dtype=SINGLE)[:, None] * 10000.0 ** (-torch.arange(0, 32, 2) / 32)
    cos, sin = angles.cos(), angles.sin()

    def turned(part: torch.Tensor) -> torch.Tensor:
        first, second = part.float().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(LOW)

    with torch.no_grad():
        q, k, v = qkv.to(LOW)(x).chunk(3, -1)
        return functional.scaled_dot_product_attention(turned(q), turned(k), v).float()


def experts_that_are_wanted() -> torch.Tensor:
    """A gate in half with an eps that half does not hold; the sum that it is added to is never near nothing."""
    torch.manual_seed(10361)
    gate, experts = nn.Linear(24, 6).to(HALF), nn.Linear(24, 6 * 24).to(HALF)
    x = normal(40, 24, seed=10362).to(HALF)
    with torch.no_grad():
        scores = gate(x).sigmoid()
        weight, chosen = scores.topk(2, -1)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        picked = experts(x).unflatten(-1, (6, 24)).gather(1, chosen[..., None].expand(-1, -1, 24))
        return (x + (weight[..., None] * picked).sum(1)).float()


def draft_that_doubts() -> torch.Tensor:
    """What a draft leaves over of its teacher's distribution in float32, at the temperature of a chat."""
    torch.manual_seed(10371)
    target, draft = nn.Linear(16, 30), nn.Linear(16, 30)
    hidden = normal(24, 16, seed=10372)
    with torch.no_grad():
        p, q = functional.softmax(target(hidden) / 0.7, -1), functional.softmax(draft(hidden) / 0.7, -1)
        rest = (p - q).clamp(min=0)
        return torch.minimum(p, q) + (1 - torch.minimum(p, q).sum(-1, keepdim=True)) * rest / rest.sum(-1, keepdim=True)


def actor_well_within_bounds() -> torch.Tensor:
    """The log of how likely squashed actions are, by the inverse of the squash, where no action is near its bounds."""
    torch.manual_seed(10381)
    actor, losses = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 6)), []
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    for step in range(3):
        mean, log_std = actor(normal(32, 8, seed=10382 + step)).chunk(2, -1)
        policy = torch.distributions.Normal(mean, (log_std - 1).exp(), validate_args=False)
        action = torch.tanh(policy.loc + policy.scale * normal(32, 3, seed=10392 + step).clamp(-2, 2))
        inverse = (torch.log1p(action) - torch.log1p(-action)) / 2
        loss = (policy.log_prob(inverse) - torch.log1p(-action.pow(2) + 1e-6)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def pupil_of_great_steps() -> torch.Tensor:
    """A policy in bfloat16 throughout, by steps of a hundredth, most of which arrives."""
    torch.manual_seed(10401)
    policy = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 6)).to(LOW)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, weight_decay=0.0)
    for update in range(4):
        states, rewards = normal(32, 12, seed=10402 + update), normal(32, seed=10412 + update)
        log_probs = policy(states.to(LOW)).float().log_softmax(-1).gather(-1, (6 * uniform(32, 1, seed=10422 + update)).long()).squeeze(-1)
        loss = -(torch.exp(log_probs - log_probs.detach()) * (rewards - rewards.mean()) / (rewards.std() + 1e-4)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([weight.detach().float().flatten() for weight in policy.parameters()])


IDIOMS = (
    scan_of_short_chunks,
    memory_of_quiet_words,
    painter_of_one_look,
    regions_of_a_stamp,
    words_near_by,
    windows_by_weights_of_eight_bits,
    experts_that_are_wanted,
    draft_that_doubts,
    actor_well_within_bounds,
    pupil_of_great_steps,
)
EXACT = ("scan_of_short_chunks", "draft_that_doubts", "actor_well_within_bounds")
