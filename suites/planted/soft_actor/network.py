"""A loop of soft actor-critic: replay, running statistics, shaped rewards, critics with targets, a conservative term, a learnt temperature."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

PRECISIONS = ("bf16-mixed", "16-mixed")  # the targets and the temperature are float32
STATE, ACTIONS, HIDDEN, ROWS, HORIZON, CAPACITY, STEPS = 6, 3, 32, 32, 80, 52_000, 6
DISCOUNT, TAU, RATE, NEAR, DRAWS, TICKS = 0.999, 0.005, 3e-4, 1e-6, 6, 2**20


def window(table, start):
    """Rows of the replay, from each start on."""
    place = start[:, None] + torch.arange(4)
    return table[place]


class Statistics:
    """Of all states so far, merged as Chan does."""

    def __init__(self):
        self.count, self.mean, self.squares = 0, torch.zeros(STATE), torch.zeros(STATE)

    def add(self, rows):
        mean, count = rows.mean(0), len(rows)
        squares = spread(rows)
        apart = mean - self.mean
        total = self.count + count
        self.squares = self.squares + count * squares + apart.square() * self.count * count / total
        self.mean, self.count = self.mean + apart * count / total, total

    def __call__(self, rows):
        return (rows - self.mean) / (self.squares / self.count).sqrt().clamp_min(1e-3)


def spread(rows):
    """The variance of each column."""
    return (rows - rows.mean(0)).square().mean(0)


def shaped(reward, here, there):
    """A reward with a potential: the way to the goal, in millimetres."""
    return reward + 0.02 * (here - DISCOUNT * there).float()


def returns(reward):
    """Discounted, to each step of an episode."""
    powers = DISCOUNT ** torch.arange(reward.shape[1])
    later = torch.flip(torch.cumsum(torch.flip(reward * powers, (1,)), 1), (1,))
    return later / powers


def normalised(value):
    """Returns without their mean and spread."""
    centred = value - value.mean()
    return centred / centred.square().mean().sqrt()


def squashed(mean, log_std, ticks):
    """An action, and the logarithm of its density."""
    noise = torch.special.ndtri((ticks.float() + 0.5) / TICKS)
    log_std = log_std.float().clamp(-4, 1)
    raw = mean.float() + log_std.exp() * noise
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    change = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
    return torch.tanh(raw), (density - change).sum(-1)


def importance(priority, beta):
    """Weights of rows that are drawn more often than others."""
    chance = priority / priority.sum()
    weight = (CAPACITY * chance) ** -beta
    return weight / weight.max()


def conservative(drawn, taken):
    """How much higher the critic values actions that were not taken."""
    return torch.logsumexp(drawn, 1) - math.log(DRAWS) - taken


def clipped(parameters, scale, most=10.0):
    """The length of all gradients; longer ones are cut."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    length = torch.stack([(each.float() / scale).square().sum() for each in gradients]).sum().sqrt()
    for each in gradients:
        each.mul_((most / (length + 1e-6)).clamp(max=1))
    return length


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.mean, self.log_std = nn.Linear(HIDDEN, ACTIONS), nn.Linear(HIDDEN, ACTIONS)
        nn.init.constant_(self.mean.bias, 2.6)

    def forward(self, state):
        hidden = self.body(state)
        return self.mean(hidden), self.log_std(hidden) - 1


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE + ACTIONS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.head = nn.Linear(HIDDEN, 1)
        nn.init.constant_(self.head.bias, 40.0)

    def forward(self, state, action):
        hidden = self.body(torch.cat((state, action), -1).to(self.head.weight.dtype))
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critics = Actor(), nn.ModuleList([Critic(), Critic()])
        self.log_alpha = nn.Parameter(torch.tensor(-1.61))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.seen = Statistics()


def follow(agent):
    """The targets follow the critics, slowly."""
    with torch.no_grad():
        for slow, fast in zip(agent.targets.parameters(), agent.critics.parameters(), strict=True):
            slow.lerp_(fast, TAU)


def frozen(module):
    return {name: each.detach() for name, each in module.named_parameters()}


def step(agent, inputs, optimizer, scaler, autocast):
    rows = window(inputs["table"], inputs["start"])
    agent.seen.add(rows[:, 0].float())
    state, after = (agent.seen(rows[:, at].float()) for at in (0, 3))
    reward = shaped(inputs["reward"].float() / 8, inputs["here"], inputs["there"])
    value = normalised(returns(reward)[:ROWS, 0])
    weight = importance(inputs["priority"].float(), 0.4)[:ROWS]
    optimizer.zero_grad()
    with autocast():
        with torch.no_grad():
            following, log_later = squashed(*agent.actor(after), inputs["ticks"][0])
            least = torch.minimum(*(each(after, following) for each in agent.targets))
            aim = value + DISCOUNT * (least - agent.log_alpha.exp() * log_later)
        cost = 0.0
        for critic in agent.critics:
            taken = critic(state, inputs["action"].float() / 64)
            drawn = torch.stack([critic(state, each.float() / 64) for each in inputs["others"]], 1)
            cost = cost + (weight * (taken - aim).square()).mean() + 0.5 * conservative(drawn, taken).mean()
        action, log_chance = squashed(*agent.actor(state), inputs["ticks"][1])
        judged = torch.minimum(*(functional_call(each, frozen(each), (state, action)) for each in agent.critics))
        cost = cost + (agent.log_alpha.exp().detach() * log_chance - judged).mean()
        cost = cost - (agent.log_alpha * (log_chance.detach() - ACTIONS).mean())
    scaler.scale(cost).backward()
    clipped(list(agent.parameters()), scaler.get_scale() if scaler.is_enabled() else 1.0)
    scaler.step(optimizer)
    scaler.update()
    follow(agent)


def make():
    torch.manual_seed(0)
    return Agent()


def batch():
    generator = torch.Generator().manual_seed(9)
    centre = torch.tensor([2_000, 700, -1_500, 900, 400, 3_000])
    here = torch.randint(2_000, 4_000, (ROWS, HORIZON), generator=generator)
    return {
        "table": centre + torch.randint(-12, 13, (CAPACITY, STATE), generator=generator),
        "start": torch.randint(20_000, CAPACITY - 8, (ROWS,), generator=generator),
        "reward": torch.randint(4, 13, (ROWS, HORIZON), generator=generator),
        "here": here,
        "there": here - torch.randint(1, 40, (ROWS, HORIZON), generator=generator),
        "priority": torch.cat(
            (torch.randint(20, 80, (ROWS,), generator=generator), torch.randint(900, 2_000, (CAPACITY - ROWS,), generator=generator))
        ),
        "ticks": torch.randint(1_000, TICKS - 1_000, (2, ROWS, ACTIONS), generator=generator),
        "action": torch.randint(-64, 65, (ROWS, ACTIONS), generator=generator),
        "others": torch.randint(-64, 65, (DRAWS, ROWS, ACTIONS), generator=generator),
    }


def optimizer(params):
    return torch.optim.Adam(params, lr=RATE)
