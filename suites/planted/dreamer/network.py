"""A world model that dreams: recurrent states with categorical latents, rewards and values as chances of bins, and an actor that is
taught by what the dream is worth.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
EPISODES, HORIZON, OBSERVED, WIDTH, CLASSES, ACTIONS, BINS = 4, 40, 10, 32, 8, 4, 121
DISCOUNT, TRACE, WORTH = 0.997, 0.95, 240.0


def symlog(x: torch.Tensor) -> torch.Tensor:
    return x.sign() * torch.log1p(x.abs())


def two_hot(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Values as shares of the two bins next to them."""
    bins = torch.linspace(-20, 20, BINS, device=values.device)
    x = symlog(values.float())
    below = (torch.searchsorted(bins, x.contiguous(), right=True) - 1).clamp(0, BINS - 2)
    share = (x - bins[below]) / (bins[below + 1] - bins[below])
    low = functional.one_hot(below, BINS) * (1 - share).unsqueeze(-1)
    return (low + functional.one_hot(below + 1, BINS) * share.unsqueeze(-1)).float()


def expected(logits: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The mean of all bins, each at its own scale; those of either sign are summed apart, from the least, so that they cancel."""
    places = torch.linspace(-20, 20, BINS, device=logits.device)
    bins = places.sign() * torch.expm1(places.abs())
    chances = logits.float().softmax(-1)
    return (chances * bins).sum(-1).float()


def discounts(going_on: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How much each step of a dream counts."""
    kept = DISCOUNT * going_on.float()
    return torch.cumprod(kept, 1).float()


def returns(rewards: torch.Tensor, values: torch.Tensor, going_on: torch.Tensor) -> torch.Tensor:
    """What each step is worth, by a trace over the steps that follow."""
    worth, found = values[:, -1], []
    for now in reversed(range(rewards.shape[1])):
        worth = rewards[:, now] + DISCOUNT * going_on[:, now].float() * ((1 - TRACE) * values[:, now] + TRACE * worth)
        found.append(worth)
    return torch.stack(found[::-1], 1)


def spread(worth: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """From the twentieth part of an episode's returns to the last but one twentieth, at least a hundredth."""
    sorted_worth = worth.detach().float().sort(-1).values
    at = worth.shape[1] // 20
    return (sorted_worth[:, -1 - at] - sorted_worth[:, at]).clamp_min(0.01).float().unsqueeze(-1)


def exploring(step: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The share of actions that are left to chance: it falls to nothing over a million steps."""
    done = (step.double() / 1_000_000).float()
    return 1 - done


class World(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(OBSERVED, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.cell, self.latent = nn.GRUCell(CLASSES + ACTIONS, WIDTH), nn.Linear(2 * WIDTH, CLASSES)
        self.reward, self.value, self.actor = nn.Linear(WIDTH, BINS), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, ACTIONS)
        self.decode = nn.Linear(WIDTH, OBSERVED)

    def forward(
        self,
        seen: torch.Tensor,
        actions: torch.Tensor,
        rewards: torch.Tensor,
        going_on: torch.Tensor,
        step: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        encoded, did = self.encode(seen), functional.one_hot(actions, ACTIONS)
        state, states = encoded.new_zeros(EPISODES, WIDTH), []
        for now in range(HORIZON):
            chances = self.latent(torch.cat([state, encoded[:, now]], -1)).float().softmax(-1)
            chances = 0.99 * chances + 0.01 / CLASSES
            state = self.cell(torch.cat([chances.to(encoded.dtype), did[:, now].to(encoded.dtype)], -1), state)
            states.append(state)
        hidden = torch.stack(states, 1)
        guess, value, policy = self.reward(hidden), self.value(hidden).squeeze(-1), self.actor(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            value = WORTH + value.float()
            worth = returns(rewards.float(), value, going_on)
            told = -(two_hot(rewards * 60, hidden) * guess.float().log_softmax(-1)).sum(-1)
            better = (worth - value) / spread(worth, hidden)
            counts = discounts(going_on, hidden)
            log_policy = policy.float().log_softmax(-1)
            chance = exploring(step, hidden)
            acted = torch.log(chance / ACTIONS + (1 - chance) * log_policy.gather(-1, actions.unsqueeze(-1)).squeeze(-1).exp())
            rewarded = expected(guess, hidden)
        return {
            "image": (self.decode(hidden).float() - seen.float()).square().mean(),
            "reward": told.mean(),
            "actor": -(acted * better.detach() * counts).mean(),
            "value": (counts * (value - worth.detach()).square()).mean(),
            "rewarded": symlog(rewarded),
        }


def make() -> nn.Module:
    """The reward's head is nearly zero at first, as it is in the published agent."""
    torch.manual_seed(0)
    model = World()
    with torch.no_grad():
        model.reward.weight.mul_(0.01)
        model.reward.bias.copy_(-0.5 * (torch.linspace(-20, 20, BINS) - 1).square())
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    going_on = torch.ones(EPISODES, HORIZON)
    going_on[1, 0] = 0
    return {
        "seen": torch.randn(EPISODES, HORIZON, OBSERVED, generator=generator),
        "actions": torch.randint(ACTIONS, (EPISODES, HORIZON), generator=generator),
        "rewards": 0.7 + 0.5 * torch.randn(EPISODES, HORIZON, generator=generator),
        "going_on": going_on,
        "step": torch.tensor(998_700),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["image"] + output["reward"] + output["actor"] + output["value"]


optimizer = None
