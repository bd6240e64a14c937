"""Beside the dunes and glades: choices, policies, memories, experts, turns, codes, heights, padding and places that their formats hold."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE, CODES = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn


def words_by_a_race() -> torch.Tensor:
    """How likely the words are that a server draws by Gumbel's trick; numbers are never one, and masked words are never drawn."""
    torch.manual_seed(5601)
    head = nn.Linear(24, 64)
    with torch.no_grad():
        likely = torch.log_softmax(head(normal(20, 24, seed=5602)).masked_fill(torch.arange(64) % 2 == 1, -torch.inf), -1)
    even = uniform(20, 64, seed=5603).clamp(1e-6, 1 - 1e-6)
    chosen = (likely - torch.log(-torch.log(even))).argmax(-1, keepdim=True)
    return likely.gather(-1, chosen).squeeze(-1)


def policy_nearby() -> torch.Tensor:
    """How far a policy in bfloat16 is from where it began, by the estimate of low variance; it went a little way."""
    torch.manual_seed(5611)
    first, last = nn.Linear(24, 64).to(LOW), nn.Linear(64, 80).to(LOW)
    words = (80 * uniform(200, seed=5612)).long()[:, None]
    with torch.no_grad():
        hidden = torch.tanh(first(normal(200, 24, seed=5613).to(LOW)))
        before = torch.log_softmax(last(hidden).float(), -1).gather(-1, words)
        now = torch.log_softmax(3 * last(hidden).float() + 0.5 * normal(200, 80, seed=5614), -1).gather(-1, words)
        ratio = before - now
        return (torch.exp(ratio) - ratio - 1).mean()


def memory_that_forgets_fast() -> torch.Tensor:
    """What a gated delta rule reads from a memory in half; it forgets a tenth with each word, so that a rounding does not stay."""
    queries, keys = (functional.normalize(normal(300, 16, seed=5621 + index), dim=-1).to(HALF) for index in range(2))
    values, memory, read = normal(300, 16, seed=5624).to(HALF), torch.zeros(16, 16, dtype=HALF), []
    for word in range(300):
        key, value = keys[word].float(), values[word].float()
        state = 0.9 * memory.float()
        memory = (state + 0.5 * torch.outer(key, value - key @ state)).to(HALF)
        read.append(queries[word].float() @ memory.float())
    return torch.stack(read)[-20:]


def price_of_even_shares() -> torch.Tensor:
    """What a router pays by sigmoids that are not small, beside a constant that keeps from dividing by nought."""
    torch.manual_seed(5631)
    router = nn.Linear(32, 8)
    with torch.no_grad(), torch.autocast("cpu", LOW):
        scores = torch.sigmoid(router(3 * normal(64, 32, seed=5632)).float())
        shares = scores / (scores.sum(-1, keepdim=True) + 1e-20)
        sent = functional.one_hot(scores.topk(2).indices, 8).sum(1).float().mean(0) / 2
        return 8 * (sent * shares.mean(0)).sum()


def cameras_in_motion() -> torch.Tensor:
    """The quaternions of turns in half, none of which is near a half turn, and what they are sensitive to."""
    angles = (0.3 + uniform(12, seed=5641)).to(HALF).requires_grad_()
    trace = 1 + 2 * torch.cos(angles)
    root = torch.sqrt(1 + trace) * 2
    parts = torch.stack([0.25 * root, 2 * torch.sin(angles) / root], -1)
    (slope,) = torch.autograd.grad(parts[:, 1].sum(), angles)
    return torch.cat([parts.detach(), slope[:, None]], -1).float()


def names_of_short_sounds() -> torch.Tensor:
    """What is heard of pieces of sound that are named by one number below two million, which float32 holds."""
    torch.manual_seed(5651)
    inward, outward, places = nn.Linear(24, 6), nn.Linear(6, 24), 11 ** torch.arange(6)
    with torch.no_grad():
        levels = torch.round(5 * torch.tanh(inward(2 * normal(100, 24, seed=5652))) + 5)
        names = (levels * places.float()).sum(-1).long()
        return outward((names[:, None] // places % 11).float() / 5 - 1)


def heights_by_one_division() -> torch.Tensor:
    """The heights of air by its geopotential, in float32, by a form that takes nothing away from anything like it."""
    potential = 9.8 * (12000 + 20 * torch.arange(200.0))
    return potential * 6371008.8 / (9.82 * 6371008.8 - potential)


def texts_without_padding() -> torch.Tensor:
    """What a layer in eight bits makes of texts of one length, by blocks of 32; some numbers are nought, no block is."""
    torch.manual_seed(5661)
    layer = nn.Linear(128, 16).to(LOW)
    blocks = torch.relu(normal(4, 12, 128, seed=5662)).unflatten(-1, (4, 32))
    scale = blocks.abs().amax(-1, keepdim=True) / 448
    with torch.no_grad():
        return layer(((blocks / scale).to(CODES).float() * scale).flatten(-2).to(LOW)).float()


def ternary_with_a_least_size() -> torch.Tensor:
    """What a ternary layer makes of words of eight bits, of which some are nought; their size is a thousandth at least."""
    torch.manual_seed(5671)
    weight = 0.2 * normal(16, 24, seed=5672)
    words = normal(32, 24, seed=5673) * (torch.arange(32) % 4 != 3)[:, None]
    size = weight.abs().mean()
    with torch.autocast("cpu", LOW):
        scale = 127 / words.abs().amax(-1, keepdim=True).clamp_min(1e-3)
        codes = (words * scale).round().clamp(-128, 127)
        return (functional.linear(codes, (weight / size).round().clamp(-1, 1)).float() / scale) * size


def places_in_a_short_sound() -> torch.Tensor:
    """What a listener in half makes of forty pieces of a sound, whose places were told by waves in float32."""
    torch.manual_seed(5681)
    layer, norm = nn.Linear(24, 64).to(HALF), nn.LayerNorm(64).to(HALF)
    query, key, value = (nn.Linear(64, 64).to(HALF) for _ in range(3))
    angles = torch.arange(1.0, 41)[:, None] * torch.exp(torch.arange(32.0) * -(torch.log(torch.tensor(10000.0)) / 31))
    waves = torch.cat([torch.sin(angles), torch.cos(angles)], -1).to(HALF)
    with torch.no_grad():
        known = norm(layer((0.2 * normal(1, 40, 24, seed=5682)).to(HALF)) + waves)
        return functional.scaled_dot_product_attention(query(known), key(known), value(known)).float()


IDIOMS = (
    words_by_a_race,
    policy_nearby,
    memory_that_forgets_fast,
    price_of_even_shares,
    cameras_in_motion,
    names_of_short_sounds,
    heights_by_one_division,
    texts_without_padding,
    ternary_with_a_least_size,
    places_in_a_short_sound,
)
EXACT = ("words_by_a_race", "names_of_short_sounds", "heights_by_one_division")
