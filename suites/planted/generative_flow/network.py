"""A generative flow network that builds sequences letter by letter: trajectory balance, sub-trajectories, a replay buffer, rewards in logarithms."""


import torch
import torch.nn.functional as F
from torch import nn

LETTERS, LENGTH, BATCH, SIZE, BUFFER = 12, 48, 8, 32, 700
BETA, MOST, HORIZON = 24.0, 40_000, 1_000_000
STEPS = 1


def log_forward(logits, letters, low):
    """The log-chance of each letter that was put, [B, LENGTH]."""
    return logits.float().log_softmax(-1).gather(-1, letters[..., None]).squeeze(-1)


def totals(steps, low):
    """Sums from each trajectory's start to each of its states, nought first: [B, LENGTH + 1]."""
    return F.pad(steps.float().cumsum(1), (1, 0))


def log_reward(hits, tries, low):
    """BETA times the logarithm of the share of tries that hit. hits, tries: whole, [B]."""
    return BETA * (hits.float() / tries.float()).log()


def log_backward(size, low):
    """One over the number of orders in which `size` of LENGTH places can be filled, as a logarithm. size: whole."""
    n = torch.tensor(float(LENGTH * 8))
    k = size.float()
    return -(torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1))


def balance(log_z, forward, backward, reward, low):
    """What trajectory balance wants to be nought."""
    return log_z + forward - backward - reward


def shares(flows, forward, low):
    """Differences of all pairs of states: log-flow and chances of one, less those of a later one. [B, n, n]."""
    gaps = flows - forward
    return gaps[:, :, None] - gaps[:, None, :]


def detailed(flows, forward, low):
    """What detailed balance wants to be nought: how the flow changes with a letter, less that letter's log-chance. [B, LENGTH]."""
    own = flows - forward
    return own[:, 1:] - own[:, :-1]


def pair_weights(low):
    """How much each pair of states counts: a power of their distance, summing to one."""
    far = torch.arange(LENGTH + 1)
    distance = (far[None] - far[:, None]).clamp_min(0)
    weights = torch.triu(torch.tensor(0.99) ** distance, 1)
    return weights / weights.sum()


def replayed(losses, draws, low):
    """Rows of the buffer, in proportion to their losses. draws: from nought to one, [B]."""
    chances = losses.double() / losses.double().sum()
    return torch.searchsorted(chances.cumsum(0), draws.double()).clamp_max(BUFFER - 1)


def explored(step, low):
    """How often a letter is drawn by chance alone: less each step, and nothing at the end. step: whole."""
    left = 1 - step.double() / HORIZON
    return (0.5 * left).float()


def effective(reward, forward, low):
    """How many of the drawn sequences count, by the weights of importance sampling."""
    weights = (reward - forward).softmax(0)
    return 1 / weights.square().sum()


def novelty(counts, low):
    """One over the root of how often a sequence has been seen, less what the most frequent one has. counts: whole, [B]."""
    return counts.float().rsqrt() - counts.max().float().rsqrt()


def advantages(reward, low):
    """How much better each reward is than the mean of all."""
    return reward - reward.mean()


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.place = nn.Embedding(LETTERS + 1, SIZE), nn.Embedding(LENGTH + 1, SIZE)
        self.mix = nn.GRU(SIZE, SIZE, batch_first=True)
        self.put, self.flow = nn.Linear(SIZE, LETTERS), nn.Linear(SIZE, 1)
        self.log_z = nn.Parameter(torch.full((64,), -0.04))

    def forward(self, letters, hits, tries, losses, draws, counts, step):
        before = F.pad(letters, (1, 0), value=LETTERS)
        h, _ = self.mix(self.letter(before) + self.place(torch.arange(LENGTH + 1)))
        logits = self.put(h[:, :-1])
        flows = self.flow(h).squeeze(-1)
        low = logits.dtype
        with torch.autocast("cpu", enabled=False):
            chosen = replayed(losses, draws, low) % BATCH
            forward = totals(log_forward(logits, letters, low), low).float()
            reward = log_reward(hits, tries, low).float()
            backward = log_backward(8 * LENGTH - 36 - letters.eq(0).sum(1) // 2, low).float()
            off = balance(self.log_z.float().sum(), forward[:, -1], backward, reward, low).float()
            flows = torch.cat([5 * flows.float()[:, :-1], reward[:, None] / 10], 1)
            pairs = shares(flows, forward, low).float()
            among = (pairs.square() * pair_weights(low).float()).sum((1, 2))
            chance = explored(step, low)
            bonus = novelty(counts, low).float()
            better = advantages(reward, low).float() + 0.1 * bonus
            guided = -(better.softmax(0) * forward[:, -1]).sum() / LENGTH
            steps = detailed(flows, forward, low).float()
            value = off.square().mean() / LENGTH + 0.01 * steps.square().mean() + 0.01 * among[chosen].mean() + 0.1 * guided
            value = value + (1 - chance) * 0.01 * off.abs().mean()
            count = effective(reward, forward[:, -1], low).float()
        return {"off": off, "chosen": chosen, "effective": count, "loss": value}


def make():
    torch.manual_seed(0)
    return Generator()


def batch():
    generator = torch.Generator().manual_seed(16)
    tries = torch.randint(20_000, MOST, (BATCH,), generator=generator)
    return {
        "letters": torch.randint(LETTERS, (BATCH, LENGTH), generator=generator),
        "hits": (tries * (0.93 + 0.02 * torch.rand(BATCH, generator=generator))).long(),
        "tries": tries,
        "losses": torch.randint(1, 1000, (BUFFER,), generator=generator),
        "draws": torch.randint(2**20, (BATCH,), generator=generator) / 2.0**20,
        "counts": torch.randint(900, 1200, (BATCH,), generator=generator),
        "step": torch.tensor(996_700),
    }


def loss(output):
    return output["loss"]


optimizer = None
