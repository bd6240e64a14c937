"""Beside the bakeries and chapels: optimizers with states in eight bits, norms, clipping, differences, samplers and choices that are wide enough."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def momentum_in_eight_bits() -> torch.Tensor:
    """How far a layer goes by momentum whose average of slopes is kept in 256 even steps; inputs are of one size, so the steps are fine."""
    torch.manual_seed(5501)
    layer = nn.Linear(32, 16)
    start, average = layer.weight.detach().clone(), torch.zeros(16, 32)
    for step in range(12):
        inputs = normal(64, 32, seed=5502 + step)
        (slope,) = torch.autograd.grad(functional.mse_loss(layer(inputs), torch.tanh(inputs[:, :16])), layer.weight)
        average = 0.9 * average + 0.1 * slope
        with torch.no_grad():
            layer.weight -= 0.05 * average
        scale = average.abs().amax(1, keepdim=True) / 127
        average = (average / scale).round().to(torch.int8).float() * scale
    return layer.weight.detach() - start


class Wide(nn.Linear):
    """A layer whose result is float32, as the norm after it is."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return super().forward(words).float()


def norms_under_autocast() -> torch.Tensor:
    """How far norms that begin at one go by small steps; they are float32, and only products are bfloat16."""
    torch.manual_seed(5511)
    model = nn.Sequential(nn.Embedding(50, 32), nn.RMSNorm(32), nn.Linear(32, 64), nn.SiLU(), Wide(64, 32), nn.RMSNorm(32), nn.Linear(32, 50))
    norms = [model[1].weight, model[5].weight]
    start, optimizer = torch.cat(norms).detach().clone(), torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    for step in range(6):
        text = (50 * uniform(4, 17, seed=5512 + step)).long()
        with torch.autocast("cpu", LOW):
            logits = model(text[:, :-1])
        functional.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat(norms).detach() - start


def table_with_channels_of_nought() -> torch.Tensor:
    """How far a table of words goes by Adam, of which a few channels never have a slope: nought by eps is nought."""
    torch.manual_seed(5521)
    table, used = nn.Embedding(24, 32), torch.arange(32) % 8 != 5
    start, optimizer = table.weight.detach().clone(), torch.optim.Adam(table.parameters(), lr=1e-3)
    for step in range(6):
        words = (24 * uniform(64, seed=5522 + step)).long()
        guess = table(words).to(LOW) * used
        functional.mse_loss(guess.float(), torch.sin(words[:, None] + torch.arange(32.0)) * used).backward()
        optimizer.step()
        optimizer.zero_grad()
    return table.weight.detach() - start


def length_that_half_holds() -> torch.Tensor:
    """Where a model in half is after two steps whose slopes are clipped to length one; the square of their length is within half."""
    torch.manual_seed(5531)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(HALF)
    for step in range(2):
        inputs = normal(24, 16, seed=5532 + step).to(HALF)
        loss = 20 * (model(inputs) - torch.sin(inputs[:, :4])).square().mean()
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        length = torch.stack([each.float().square().sum() for each in slopes]).sum().to(HALF).sqrt()
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.25 * (slope / length)
    return nn.utils.parameters_to_vector(model.parameters()).detach().float()


def bends_by_derivatives() -> torch.Tensor:
    """How the energy of six atoms bends along each direction, by derivatives, in float32."""
    torch.manual_seed(5541)
    layers, waves = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1)), torch.arange(1, 9) * 3.14159 / 4
    pairs = torch.triu_indices(6, 6, 1)

    def energy(places: torch.Tensor) -> torch.Tensor:
        apart = (places[pairs[0]] - places[pairs[1]]).norm(dim=-1, keepdim=True)
        return layers(torch.sin(apart * waves) / apart).sum() - 310

    places = (2 * normal(6, 3, seed=5542)).requires_grad_()
    (force,) = torch.autograd.grad(energy(places), places, create_graph=True)
    return torch.stack([torch.autograd.grad(each, places, retain_graph=True)[0].flatten() for each in force.flatten()])


def pictures_with_late_times() -> torch.Tensor:
    """Eight pictures by twenty steps of Euler, whose times are float32 and whose painter is bfloat16."""
    torch.manual_seed(5551)
    painter = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 48)).to(LOW)
    left = torch.cumprod(1 - torch.linspace(0.03, 0.11, 1000).square(), 0)
    noises = ((1 - left) / left).sqrt()[torch.linspace(999, 40, 20).round().long()]
    picture = noises[0] * normal(8, 48, seed=5552)
    with torch.no_grad():
        for now, then in zip(noises, torch.cat([noises[1:], torch.zeros(1)]), strict=True):
            guess = painter((picture / (now.square() + 1).sqrt()).to(LOW)).float()
            picture = picture + guess * (then - now)
    return picture


def times_of_small_films() -> torch.Tensor:
    """The times of films in half, later where the film is larger; none has more than two hundred and forty lines."""
    time = uniform(6, seed=5561).to(HALF)
    height, width = torch.tensor([240.0, 144, 180, 240, 120, 240]).to(HALF), torch.tensor([270.0, 256, 240, 240, 160, 256]).to(HALF)
    ratio = (height * width / 65000).sqrt()
    return (ratio * time / (1 + (ratio - 1) * time)).float()


def weights_of_times() -> torch.Tensor:
    """The losses of a painter whose times are weighed by how much of the picture is left, at most five; something is left at all of them."""
    torch.manual_seed(5571)
    model = nn.Sequential(nn.Linear(17, 48), nn.SiLU(), nn.Linear(48, 16))
    left = torch.cumprod(1 - torch.linspace(0.03, 0.11, 1000).square(), 0)
    times = (1000 * uniform(8, seed=5572)).long()
    ratio = (left / (1 - left))[times]
    with torch.autocast("cpu", LOW):
        guess = model(torch.cat([normal(8, 16, seed=5573), times[:, None] / 1000], -1))
    loss = torch.clamp(ratio, max=5.0) / ratio * (guess.float() - normal(8, 16, seed=5574)).square().mean(-1)
    loss.mean().backward()
    return model[2].weight.grad


def places_of_short_sounds() -> torch.Tensor:
    """How many places each recording takes, of 7.5 for each second; recordings are short, and counted in float32."""
    samples = torch.tensor([24000 * 20 + 900, 24000 * 3 + 77, 24000 * 9 + 12345])
    return torch.ceil(samples.float() / 24000 * 7.5)


def words_of_a_small_vocabulary() -> torch.Tensor:
    """Which words a server draws in two hundred draws, by adding up chances of sixteen words, in bfloat16."""
    torch.manual_seed(5581)
    head = nn.Linear(32, 16, bias=False)
    with torch.no_grad(), torch.autocast("cpu", LOW):
        upto = torch.softmax(head(normal(6, 32, seed=5582)), -1).cumsum(-1)
    return torch.searchsorted(upto.float(), uniform(6, 200, seed=5583) * upto[:, -1:].float()).float().mean(-1)


IDIOMS = (
    momentum_in_eight_bits,
    norms_under_autocast,
    table_with_channels_of_nought,
    length_that_half_holds,
    bends_by_derivatives,
    pictures_with_late_times,
    times_of_small_films,
    weights_of_times,
    places_of_short_sounds,
    words_of_a_small_vocabulary,
)
EXACT = ("bends_by_derivatives", "momentum_in_eight_bits", "places_of_short_sounds")
