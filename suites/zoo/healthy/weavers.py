"""Beside the canyons and hollows: clocks, tiles, snakes, neighbours, frames, corridors, files, papers, rollouts and words that their formats hold."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def grenades_on_a_new_server() -> torch.Tensor:
    """A clock in float32 that is moved by hundredths of a second, and has only just been started."""
    clock, left = torch.tensor(0.0), []
    place, speed = torch.zeros(12, 2), 40 * normal(12, 2, seed=7601)
    for _ in range(150):
        clock += 0.01
        speed = speed + 0.01 * torch.tensor([0.0, -9.8])
        place = place + 0.01 * speed
        left.append(3 - clock)
    return torch.cat([torch.stack(left)[9::10], place.flatten()])


def picture_of_broad_tiles() -> torch.Tensor:
    """Weights of tiles in half, by which a sum in half is divided; they are a tenth at the corners."""
    torch.manual_seed(7611)
    unet = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1), nn.SiLU(), nn.Conv2d(12, 4, 3, padding=1)).to(HALF)
    along = torch.tensor([math.exp(-(((x - 7.5) / 16) ** 2) / 0.2) for x in range(16)])
    weights, latents = torch.outer(along, along).to(HALF), normal(1, 4, 16, 40, seed=7612).to(HALF)
    noise, contributors = torch.zeros_like(latents), torch.zeros_like(latents)
    with torch.no_grad():
        for left in (0, 12, 24):
            noise[..., left : left + 16] += unet(latents[..., left : left + 16]) * weights
            contributors[..., left : left + 16] += weights
        return (latents - 0.1 * noise / contributors).float()


def snakes_that_all_turn() -> torch.Tensor:
    """A billionth that half does not hold is added to what is divided by; no alpha is less than a fifth."""
    torch.manual_seed(7621)
    first, last, alpha = nn.Conv1d(1, 12, 7, 2).to(HALF), nn.Conv1d(12, 4, 5, 2).to(HALF), (uniform(12, 1, seed=7622) + 0.2).to(HALF)
    with torch.no_grad():
        x = first((0.4 * normal(2, 1, 120, seed=7623)).to(HALF))
        return last(x + (alpha + 1e-9).reciprocal() * torch.sin(alpha * x) ** 2).float()


def neighbours_by_meaning() -> torch.Tensor:
    """The scores of the five nearest vectors, in float32; none has a number that outweighs the others."""
    vectors, queries = normal(200, 24, seed=7631), normal(6, 24, seed=7632)
    return torch.stack([(vectors @ query).topk(5)[0] for query in queries])


def frames_by_a_scaler() -> torch.Tensor:
    """AdamW with a guard of a hundred-millionth, under autocast to half; its weights and moments are in float32."""
    torch.manual_seed(7641)
    norm, qkv, out = nn.LayerNorm(24), nn.Linear(24, 72), nn.Linear(24, 24)
    optimizer = torch.optim.AdamW([*norm.parameters(), *qkv.parameters(), *out.parameters()], lr=1e-3, eps=1e-8)
    scaler, losses = torch.amp.GradScaler("cpu", init_scale=2.0**10), []
    for step in range(4):
        frames = normal(6, 8, 24, seed=7642 + step)
        with torch.autocast("cpu", HALF):
            query, key, value = qkv(norm(frames)).chunk(3, -1)
            guess = out(functional.scaled_dot_product_attention(query, key, value))
            loss = functional.mse_loss(guess.float(), 0.5 * frames)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


def corridors_that_are_wide() -> torch.Tensor:
    """A smooth minimum by exponentials as they are, and its slope; no distance is beyond two."""
    place = (0.9 * torch.sin(torch.arange(1.0, 26))).requires_grad_()
    distances = torch.cat([1.5 - place, place + 1.5])
    robustness = -torch.log(torch.exp(-8 * distances).sum()) / 8
    return torch.cat([robustness.detach()[None], torch.autograd.grad(robustness, place)[0]])


def files_of_a_young_average() -> torch.Tensor:
    """An average and its count are written in half and read again; the count is 1200, which half holds."""
    torch.manual_seed(7651)
    weight = nn.Linear(16, 8).weight.detach()
    files = {"weight": weight.to(HALF), "num_updates": torch.tensor(1200).to(HALF)}
    average, count = files["weight"].float(), files["num_updates"].float()
    for step in range(4):
        weight = weight + 0.3 * normal(8, 16, seed=7652 + step)
        count = count + 1
        average = average - (1 - (1 + count) / (10 + count)) * (average - weight)
    return average


def papers_that_cite_themselves() -> torch.Tensor:
    """A mask of minus ten thousand in half, which is added to scores; each paper is left with one at least."""
    torch.manual_seed(7661)
    kernel, own, others = nn.Linear(20, 16, bias=False).to(HALF), nn.Linear(16, 1).to(HALF), nn.Linear(16, 1).to(HALF)
    adjacency = ((uniform(30, 30, seed=7662) < 0.15) | torch.eye(30).bool()).to(HALF)
    with torch.no_grad():
        features = kernel(normal(30, 20, seed=7663).to(HALF))
        dense = functional.leaky_relu(own(features) + others(features).T, 0.2)
        return functional.elu(torch.softmax(dense - 1e4 * (1.0 - adjacency), -1) @ features).float()


def rollouts_of_a_cool_engine() -> torch.Tensor:
    """Ratios of a policy in float32 and of an older one whose last layer is in bfloat16; scores are of one unit, and the policies differ."""
    torch.manual_seed(7671)
    embed, head, newer = nn.Embedding(60, 48).to(LOW), nn.Linear(48, 60, bias=False).to(LOW), nn.Linear(48, 60, bias=False)
    words = (60 * uniform(4, 31, seed=7672)).long()
    with torch.no_grad():
        hidden = torch.tanh(embed(words[:, :-1]))
        before = torch.log_softmax(head(hidden).float(), -1).gather(-1, words[:, 1:, None])
        now = torch.log_softmax(newer(hidden.float()), -1).gather(-1, words[:, 1:, None])
    return torch.exp(now - before)[..., 0].clamp(0.5, 2.0)


def words_that_are_near() -> torch.Tensor:
    """The logarithm of a sigmoid in float32, of scores that are no more than a few units, and four steps on it."""
    torch.manual_seed(7681)
    words, contexts, losses = nn.Embedding(60, 16), nn.Embedding(60, 16), []
    optimizer = torch.optim.SGD([*words.parameters(), *contexts.parameters()], lr=0.5)
    for step in range(4):
        word, near, other = ((60 * uniform(24, seed=7682 + 3 * step + k)).long() for k in range(3))
        good, bad = ((words(word) * contexts(each)).sum(-1) / 4 for each in (near, other))
        loss = -(torch.log(torch.sigmoid(good)) + torch.log(torch.sigmoid(-bad))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


IDIOMS = (
    grenades_on_a_new_server,
    picture_of_broad_tiles,
    snakes_that_all_turn,
    neighbours_by_meaning,
    frames_by_a_scaler,
    corridors_that_are_wide,
    files_of_a_young_average,
    papers_that_cite_themselves,
    rollouts_of_a_cool_engine,
    words_that_are_near,
)
EXACT = ("grenades_on_a_new_server", "neighbours_by_meaning", "corridors_that_are_wide", "words_that_are_near")
