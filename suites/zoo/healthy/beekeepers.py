"""Beside the hives and sluices: what is kept, drawn, scaled and guarded in low formats that are wide enough for it."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, CODES = torch.float16, torch.bfloat16, torch.float8_e4m3fn


def states_that_half_holds() -> torch.Tensor:
    """What a probe says of states of a model that were kept in half; the largest channel is at a third of its end."""
    torch.manual_seed(4601)
    layers, probe = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 48)), nn.Linear(48, 1)
    with torch.no_grad():
        states = (layers(3 * normal(60, 32, seed=4602)) + 1) * torch.where(torch.arange(48) == 7, 1e4, 1.0)
        back = states.to(HALF).float()
        return torch.sigmoid(probe((back - back.mean(0)) / (back.std(0) + 1e-6)))


def words_by_chance_in_half() -> torch.Tensor:
    """The next words of texts, by chances that a half model gives; some are nought."""
    torch.manual_seed(4603)
    head = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 40)).half()
    with torch.no_grad():
        chances = torch.softmax(head(normal(20, 32, seed=4604).half()) / 0.02, -1)
    return torch.multinomial(chances.float(), 1, generator=torch.Generator().manual_seed(4605)).float()


def critic_in_turn() -> torch.Tensor:
    """A painter and a critic that learn in turn, under one scaler that is asked for each of them."""
    torch.manual_seed(4606)
    painter, critic = nn.Sequential(nn.Linear(16, 24), nn.SiLU(), nn.Linear(24, 16)), nn.Linear(16, 1)
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (painter, critic)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for turn in range(4):
        cells = normal(12, 16, seed=4607 + turn)
        with torch.autocast("cpu", HALF):
            painted = painter(cells)
            loss = functional.mse_loss(painted.float(), torch.sin(cells)) if turn % 2 else critic(painted.detach()).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizers[1 - turn % 2])
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return nn.utils.parameters_to_vector(painter.parameters()).detach()


def words_below_the_end() -> torch.Tensor:
    """What a half layer makes of words, held at the end of half, which they stay below."""
    torch.manual_seed(4611)
    first, last, norm = (each.half() for each in (nn.Linear(48, 96), nn.Linear(96, 48), nn.LayerNorm(48)))
    words = normal(30, 48, seed=4612).half()
    with torch.no_grad():
        last.bias[5] = 4e4
        added = last(torch.relu(first(words))).clamp(torch.finfo(HALF).min, torch.finfo(HALF).max)
        return norm(words + added).float()


def slopes_of_few_words() -> torch.Tensor:
    """The slope of a softmax over twelve words in bfloat16, whose sum is made word by word."""
    chances, slopes = torch.softmax(normal(6, 12, seed=4613), -1).to(LOW), (2 * normal(6, 12, seed=4614)).to(LOW)
    total = torch.zeros(6, dtype=LOW)
    for word in range(12):
        total = total + chances[:, word] * slopes[:, word]
    return ((slopes - total[:, None]) * chances).float()


def coder_in_float32() -> torch.Tensor:
    """How far a coder of a robot's tokens goes; its parameters are float32, and it is asked under autocast."""
    torch.manual_seed(4615)
    coder = nn.Sequential(nn.Linear(24, 8), nn.LayerNorm(8), nn.Linear(8, 24))
    before = nn.utils.parameters_to_vector(coder.parameters()).detach().clone()
    optimizer = torch.optim.AdamW(coder.parameters(), lr=1e-4, weight_decay=0.0)
    for step in range(6):
        tokens = normal(32, 24, seed=4616 + step)
        with torch.autocast("cpu", LOW):
            loss = functional.mse_loss(coder(tokens).float(), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return nn.utils.parameters_to_vector(coder.parameters()).detach() - before


def blocks_with_noughts() -> torch.Tensor:
    """Slopes in eight bits, by blocks of different sizes, with noughts among them."""
    slopes = normal(12, 32, seed=4622) * (10.0 ** -torch.arange(12))[:, None]
    slopes = torch.where(uniform(12, 32, seed=4623) < 0.1, 0.0, slopes)
    scales = 448 / slopes.abs().amax(1, keepdim=True).clamp_min(1e-30)
    return (slopes * scales).to(CODES).float() / scales


def hits_by_slow_waves() -> torch.Tensor:
    """What a bfloat16 model makes of hits by waves that are slow, of places in bfloat16."""
    torch.manual_seed(4624)
    layer, places = nn.Linear(12, 8).to(LOW), (2 * uniform(80, 2, seed=4625) - 1).to(LOW)
    with torch.no_grad():
        angles = (places[..., None] * torch.tensor([0.25, 0.5, 1.0])).flatten(-2)
        return layer(torch.cat([torch.sin(angles), torch.cos(angles)], -1).to(LOW)).float()


def words_of_a_short_question() -> torch.Tensor:
    """How like words of a question and of a page are, under autocast in half, by words of length one."""
    torch.manual_seed(4626)
    layer = nn.Linear(32, 64)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        asked, told = (functional.normalize(layer(normal(size, 32, seed=4627 + size)), dim=-1) for size in (6, 20))
        return torch.log_softmax((asked @ told.T).float() / 0.05, -1)


def latents_that_look_about() -> torch.Tensor:
    """What latents see in a film, under autocast in bfloat16; what they look for is small."""
    torch.manual_seed(4650)
    query, key, value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
    latents, film = normal(8, 32, seed=4651), normal(60, 32, seed=4652)
    with torch.no_grad(), torch.autocast("cpu", LOW):
        return (torch.softmax(query(latents) @ key(film).T / 32**0.5, -1) @ value(film)).float()


def splats_that_are_round() -> torch.Tensor:
    """The middles of flocks of splats, weighed by how large they are; their spreads are kept in half and some are small."""
    places, spreads = normal(12, 5, 3, seed=4653), 0.02 * (0.2 + uniform(12, 5, 3, seed=4654))
    weights = spreads.square().to(HALF).float().clamp_min(6e-8).prod(-1).sqrt()
    return (weights[..., None] * places).sum(1) / weights.sum(1, keepdim=True)


def colours_by_small_features() -> torch.Tensor:
    """What a field in half looks like, whose hidden layers stay within half and whose colours are near one and nought."""
    torch.manual_seed(4655)
    layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3), nn.Sigmoid()).half()
    with torch.no_grad():
        return layers((40 * (2 * uniform(40, 16, seed=4656) - 1)).half()).float()


IDIOMS = (
    states_that_half_holds,
    words_by_chance_in_half,
    critic_in_turn,
    words_below_the_end,
    slopes_of_few_words,
    coder_in_float32,
    blocks_with_noughts,
    hits_by_slow_waves,
    words_of_a_short_question,
    latents_that_look_about,
    splats_that_are_round,
    colours_by_small_features,
)
