"""A distributional Q network (Rainbow's) on a replay buffer: returns of several steps, atoms, priorities and their weights."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, ACTIONS, ATOMS, STEPS_AHEAD = 24, 5, 51, 40
V_MIN, V_MAX, GAMMA = -20.0, 230.0, 0.997
REPLAY, SEEN = 3000, 24
STEPS = 1


class NoisyLinear(nn.Module):
    """A linear layer whose weights carry noise; here the noise is fixed by the caller."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-1, 1) / inputs**0.5)
        self.sigma = nn.Parameter(torch.full((outputs, inputs), 0.4 / inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x, noise):
        row, column = noise[: len(self.bias)], noise[len(self.bias) : len(self.bias) + self.weight.shape[1]]
        return F.linear(x, self.weight + self.sigma * torch.outer(row, column).to(self.sigma.dtype), self.bias)


def discounts(steps):
    """Of a reward so many steps ahead."""
    return GAMMA ** steps.float()


def n_step_return(reward, ended):
    """Rewards until the episode ends, and the discount of what comes after them."""
    going = (1 - ended.float()).cumprod(1)
    alive = F.pad(going[:, :-1], (1, 0), value=1)
    steps = torch.arange(STEPS_AHEAD)
    total = (reward.float() * discounts(steps) * alive).sum(1)
    return total, going[:, -1] * GAMMA**STEPS_AHEAD


def project(chance, total, discount, atoms):
    """The distribution of the next state, moved and shrunk, on the atoms again."""
    width = (V_MAX - V_MIN) / (ATOMS - 1)
    value = (total[:, None] + discount[:, None] * atoms).clamp(V_MIN, V_MAX)
    place = (value - V_MIN) / width
    below = place.floor().clamp(0, ATOMS - 2)
    share = place - below
    target = torch.zeros_like(chance)
    target.scatter_add_(1, below.long(), chance * (1 - share))
    target.scatter_add_(1, below.long() + 1, chance * share)
    return target


def expected(logits, atoms):
    """The mean of each action's distribution."""
    return (logits.float().softmax(-1) * atoms.float()).sum(-1)


def advantage(q):
    """How much worse each action is than the best one."""
    return q.max(-1, keepdim=True).values - q


def sampling(priority, drawn):
    """Places in the buffer at the given shares of all priorities, and their chances."""
    total = priority.float().cumsum(0)
    place = torch.searchsorted(total, drawn.float() / 2**24 * total[-1]).clamp_max(len(priority) - 1)
    return place, priority[place].float() / total[-1]


def importance(chance, count):
    """Weights that make up for the sampling, the largest of them one."""
    weight = (chance * count) ** -0.6
    return weight / weight.max()


class Rainbow(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(SEEN, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.value, self.action = NoisyLinear(64, ATOMS), NoisyLinear(64, ATOMS * ACTIONS)

    def heads(self, state, noise):
        x = self.trunk(state)
        value, action = self.value(x, noise)[:, None], self.action(x, noise).view(-1, ACTIONS, ATOMS)
        return value + action - action.mean(1, keepdim=True)

    def forward(self, state, later, action, reward, ended, priority, drawn, noise):
        atoms = torch.linspace(V_MIN, V_MAX, ATOMS)
        logits = self.heads(state, noise)
        with torch.no_grad():
            beyond = self.heads(later, noise)
        with torch.autocast("cpu", enabled=False):
            q = expected(logits, atoms)
            best = expected(beyond, atoms).argmax(-1)
            chance = beyond.float().softmax(-1)[torch.arange(BATCH), best]
            total, discount = n_step_return(reward, ended)
            target = project(chance, total, discount, atoms)
            place, drawn_by = sampling(priority, drawn)
            weight = importance(drawn_by, len(priority))
            told = -(target * logits.float().log_softmax(-1)[torch.arange(BATCH), action]).sum(-1)
        return {"loss": (weight * told).mean(), "q": q, "gap": advantage(q), "total": total, "target": target, "weight": weight, "place": place}


def make():
    torch.manual_seed(0)
    return Rainbow()


def batch():
    generator = torch.Generator().manual_seed(63)
    priority = torch.randint(1, 4000, (REPLAY,), generator=generator)
    return {
        "state": torch.randn(BATCH, SEEN, generator=generator),
        "later": torch.randn(BATCH, SEEN, generator=generator),
        "action": torch.randint(0, ACTIONS, (BATCH,), generator=generator),
        "reward": torch.randint(0, 9, (BATCH, STEPS_AHEAD), generator=generator),
        "ended": torch.rand(BATCH, STEPS_AHEAD, generator=generator) < 0.01,
        "priority": priority,
        "drawn": torch.randint(0, 2**24, (BATCH,), generator=generator),
        "noise": torch.randn(ATOMS * ACTIONS + 64, generator=generator),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
