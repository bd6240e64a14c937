"""A MuZero learner: an unrolled model, values squeezed and spread over bins, a search's statistics, replay by priority."""


import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 1
OBS, HIDDEN, ACTIONS, BINS, UNROLL, GAMES, LENGTH, SIMULATIONS = 12, 32, 6, 41, 4, 8, 400, 300
EPSILON = 0.001


def compute_dtype(model):
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else next(model.parameters()).dtype


def squeezed(value):
    """Values of any size in a small range."""
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + EPSILON * value


def stretched(x, low):
    """The inverse of `squeezed`."""
    root = (1 + 4 * EPSILON * (x.abs() + 1 + EPSILON)).sqrt()
    return x.sign() * (((root - 1) / (2 * EPSILON)).square() - 1)


def two_hot(x, low):
    """The weights of the two bins beside each number. x: between nought and BINS - 1."""
    below = x.floor().clamp(0, BINS - 2)
    share = x - below
    table = torch.zeros(*x.shape, BINS)
    table.scatter_(-1, below.long().unsqueeze(-1), (1 - share).unsqueeze(-1))
    return table.scatter_add(-1, below.long().unsqueeze(-1) + 1, share.unsqueeze(-1))


def discounted(rewards, low, gamma=0.997):
    """The return from each tick on. rewards: [G, L]."""
    total, out = torch.zeros(len(rewards)), []
    for k in range(rewards.shape[1] - 1, -1, -1):
        total = rewards[:, k] + gamma * total
        out.append(total)
    return torch.stack(out[::-1], 1)


def exploration(visits, low, base=19652.0, init=1.25):
    """The weight of the prior, which grows with the visits of the parent: the logarithm is of a number near one."""
    total = visits.sum(-1, keepdim=True).float()
    return torch.log((total + base + 1) / base) * 100 + init


def normalised(q, low):
    """Values as shares of the range that the search has seen."""
    least, most = q.min(), q.max()
    return (q - least) / (most - least)


def backed_up(values, low):
    """The mean of what the simulations have found. values: [SIMULATIONS, G]."""
    total = torch.zeros(values.shape[1])
    for each in values:
        total = total + each
    return total / len(values)


def importance(priorities, low, beta=1.0):
    """The weights of samples drawn by priority from a buffer of 200000."""
    chance = priorities.float() / priorities.float().sum() * (len(priorities) / 200000)
    weights = (200000 * chance) ** -beta
    return weights / weights.max()


def scaled_state(hidden, low):
    """Each state between nought and one; a state that is all alike is nought."""
    least, most = hidden.float().amin(-1, keepdim=True), hidden.float().amax(-1, keepdim=True)
    return (hidden.float() - least) / (most - least + 1e-5)


class MuZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.represent = nn.Sequential(nn.Linear(OBS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.dynamics = nn.Sequential(nn.Linear(HIDDEN + ACTIONS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))
        self.value, self.policy = nn.Linear(HIDDEN, BINS), nn.Linear(HIDDEN, ACTIONS)

    def forward(self, obs, actions, rewards, visits, q, simulated, priorities):
        low = compute_dtype(self)
        with torch.autocast("cpu", enabled=False):
            returns = discounted(rewards.float(), low)
            targets = two_hot((squeezed(returns[:, :UNROLL]) * 1.5).clamp(0, BINS - 1), low)
            chosen = exploration(visits, low) * normalised(q.float(), low)
            wanted = chosen.softmax(-1)
            searched = backed_up(simulated.float(), low)
            weights = importance(priorities, low)
        on = (obs != 0).any(-1, keepdim=True)
        hidden, loss, values = self.represent(obs) * on, 0.0, []
        for k in range(UNROLL):
            with torch.autocast("cpu", enabled=False):
                state = scaled_state(hidden, low)
            logits, policy = self.value(state.to(obs.dtype)).float(), self.policy(state.to(obs.dtype)).float()
            with torch.autocast("cpu", enabled=False):
                bins = torch.arange(BINS, dtype=torch.float32) / 1.5
                values.append(stretched((logits.softmax(-1) * bins).sum(-1), low))
                terms = F.cross_entropy(logits, targets[:, k], reduction="none") + F.cross_entropy(policy, wanted, reduction="none")
                loss = loss + (weights * terms).mean()
            move = F.one_hot(actions[:, k], ACTIONS).to(obs.dtype)
            hidden = self.dynamics(torch.cat([state.to(obs.dtype), move], -1))
        return {"loss": loss / UNROLL, "values": torch.stack(values, 1), "searched": searched, "wanted": wanted}


PRECISIONS = ("bf16-mixed", "16-mixed")  # values of the search are inputs


def make():
    torch.manual_seed(0)
    return MuZero()


def batch():
    generator = torch.Generator().manual_seed(5)
    obs = torch.randn(GAMES, OBS, generator=generator)
    obs[2] = 0
    return {
        "obs": obs,
        "actions": torch.randint(ACTIONS, (GAMES, UNROLL), generator=generator),
        "rewards": 0.5 + 0.5 * torch.rand(GAMES, LENGTH, generator=generator),
        "visits": torch.randint(1, 60, (GAMES, ACTIONS), generator=generator),
        "q": 210 + 0.6 * torch.rand(GAMES, ACTIONS, generator=generator),
        "simulated": 4 + 2 * torch.rand(SIMULATIONS, GAMES, generator=generator),
        "priorities": 0.5 + torch.rand(GAMES, generator=generator),
    }


def loss(output):
    return output["loss"]


optimizer = None
