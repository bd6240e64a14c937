"""An equilibrium model: one block whose output is its own input, found by Anderson's method, with a gradient that is found in the same way."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
ROWS, PLACES, WIDTH, HEADS, WORDS, TURNS, KEPT = 3, 20, 48, 4, 30, 4, 3
DIM = WIDTH // HEADS


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def encoded(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Sines and cosines of places in a long text."""
    speeds = 2000.0 ** (-torch.arange(0, WIDTH, 2).float() / WIDTH)
    angles = places.float().unsqueeze(-1) * speeds
    return torch.cat([angles.sin(), angles.cos()], -1)


def stretched(weight: torch.Tensor, along: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The largest factor by which a matrix makes a vector longer, by a few turns of the power method."""
    weight, along = weight.float(), along.float()
    with torch.no_grad():
        for _ in range(4):
            across = functional.normalize(weight.mv(along), dim=0)
            along = functional.normalize(weight.t().mv(across), dim=0)
    return torch.dot(across, weight.mv(along))


def shares(results: torch.Tensor, states: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Anderson's weights of the last states, which add up to one: those of the shortest mixture of residuals."""
    apart = results - states
    products = apart @ apart.transpose(-1, -2)
    size = products.diagonal(dim1=-2, dim2=-1).mean(-1).view(-1, 1, 1)
    count = products.shape[-1]
    solved = torch.linalg.solve(products / (size + 1e-12) + 1e-3 * torch.eye(count), torch.ones(len(products), count, 1))
    return solved.transpose(-1, -2) / solved.sum(-2, keepdim=True)


def equilibrium(block: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A state that the block gives back."""
    state, states, results = start, [], []
    for _turn in range(TURNS):
        states.append(state.flatten(1))
        results.append(block(state).flatten(1))
        if len(states) == 1:
            state = results[-1].view_as(start)
            continue
        kept, given = torch.stack(states[-KEPT:], 1), torch.stack(results[-KEPT:], 1)
        state = (shares(given, kept, low) @ given).squeeze(1).view_as(start)
    return state


def residual(result: torch.Tensor, state: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How far each place is from its equilibrium, over its length; places that are padding are zero."""
    return (result.float() - state.float()).norm(dim=-1) / (state.float().norm(dim=-1) + 1e-8)


def length(states: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The root of the mean square of all states of a text."""
    return torch.sqrt(states.float().square().flatten(1).sum(-1) / states[0].numel())


def stiffness(probe: torch.Tensor, pulled: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Hutchinson's estimate of the square of the Jacobian."""
    return pulled.float().square().sum() / probe.numel()


class Block(nn.Module):
    """Attention and two layers, the last of which stretches by three at most."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("along", torch.randn(2 * WIDTH))

    def forward(self, state: torch.Tensor, given: torch.Tensor, there: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        x = state.to(self.out.weight.dtype)
        query, key, value = (each.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = (query @ key.transpose(-1, -2) / DIM**0.5).masked_fill(~there[:, None, None, :], torch.finfo(query.dtype).min)
        mixed = self.out((torch.softmax(scores, -1).to(value.dtype) @ value).transpose(1, 2).flatten(2))
        with torch.autocast("cpu", enabled=False):
            by = stretched(self.narrow.weight, self.along, low)
        deep = self.narrow(torch.tanh(self.wide(mixed + given.to(mixed.dtype)))) * (3 / by)
        return (mixed.float() + deep.float() + given.float()) * there.unsqueeze(-1)


class Equilibrium(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.block, self.out = nn.Embedding(WORDS, WIDTH), Block(), nn.Linear(WIDTH, WORDS)

    def forward(
        self, words: torch.Tensor, places: torch.Tensor, there: torch.Tensor, probe: torch.Tensor, wanted: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        low = low_dtype(self.out.weight)
        given = self.words(words).float() + encoded(places, low)

        def block(state: torch.Tensor) -> torch.Tensor:
            return self.block(state, given, there, low)

        with torch.no_grad():
            state = equilibrium(block, torch.zeros_like(given), low)
        found = state.detach().requires_grad_()
        result = block(found)
        pulled = torch.autograd.grad(result, found, probe.float(), create_graph=True)[0]
        if result.requires_grad:
            again = block(found)

            def through(gradient: torch.Tensor) -> torch.Tensor:
                def turned(each: torch.Tensor) -> torch.Tensor:
                    return torch.autograd.grad(again, found, each, retain_graph=True)[0] + gradient

                return equilibrium(turned, torch.zeros_like(gradient), low)

            settled = block(state)
            settled.register_hook(through)
        guess = self.out(settled.to(self.out.weight.dtype))
        with torch.autocast("cpu", enabled=False):
            cost = functional.cross_entropy(guess.float()[there], wanted[there])
            apart, size = residual(result.detach(), found.detach(), low), length(settled.detach(), low)
            cost = cost + 0.01 * stiffness(probe, pulled, low)
        return {"loss": cost, "guess": guess, "apart": apart, "size": size}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Equilibrium()


def batch() -> dict[str, torch.Tensor]:
    """Pieces of long texts; the last one has padding."""
    generator = torch.Generator().manual_seed(22)
    there = torch.arange(PLACES) < torch.tensor([[PLACES], [PLACES], [13]])
    return {
        "words": torch.randint(0, WORDS, (ROWS, PLACES), generator=generator),
        "places": torch.tensor([[12], [871], [1_930]]) + torch.arange(PLACES),
        "there": there,
        "probe": torch.randint(0, 2, (ROWS, PLACES, WIDTH), generator=generator) * 2 - 1,
        "wanted": torch.randint(0, WORDS, (ROWS, PLACES), generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
