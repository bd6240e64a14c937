"""A universal transformer that thinks as long as it needs, after PonderNet and ACT: one block over and over, a chance to stop after each turn."""

import math

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, HEADS, TURNS, ROWS, LENGTH = 61, 32, 4, 6, 3, 40
RATE, ENOUGH, TICKS, SPACE, SELDOM, OFFSET = 0.0025, 0.999, 2**16, 3, 6.0, 24.0
STEPS = 1


def waves(position, width):
    """Sines and cosines of a place."""
    speeds = torch.exp(-math.log(10_000) * torch.arange(0, width, 2).float() / width)
    angle = position[..., None].float() * speeds
    return torch.cat((angle.sin(), angle.cos()), -1)


def since_space(text):
    """How far each byte is from the last space before it, from the place in the whole text."""
    place, seen = text
    last = torch.where(seen == SPACE, place, place[:, :1]).cummax(1).values
    return (place - last).float()


def going_on(logits):
    """The logarithm of the chance that nobody has stopped before each turn. Stops are rare at first."""
    kept = F.logsigmoid(-logits)
    return F.pad(kept.cumsum(0)[:-1], (0, 0, 0, 0, 1, 0))


def halting(logits):
    """The chance to stop at each turn; the last turn takes what is left."""
    before = going_on(logits)
    stop = torch.cat((F.logsigmoid(logits[:-1]), torch.zeros_like(logits[:1])))
    return (before + stop).exp()


def survived(turns, rate):
    """The logarithm of the chance that a geometric law still goes on, before each turn."""
    return torch.arange(turns).float() * math.log1p(-rate)


def prior(turns, rate):
    """Logarithms of a geometric law, cut at the last turn."""
    stop = torch.tensor([math.log(rate)] * (turns - 1) + [0.0])
    return survived(turns, rate) + stop


def divergence(chances, prior):
    """Of the turns, from the prior."""
    return (chances * (chances.clamp_min(1e-20).log() - prior[:, None, None])).sum(0)


def turns_taken(decided, enough):
    """After how many turns it is decided."""
    undecided = decided < enough
    return undecided.sum(0) + 1


def settled(before, after):
    """How much a state still moves, of its length, for each word."""
    moved = (after - before).square().sum(-1)
    return moved / before.square().sum(-1)


def reach(weights):
    """How widely a word looks: the variance of where it looks."""
    place = torch.arange(weights.shape[-1]).float() + 480
    middle = (weights * place).sum(-1, keepdim=True)
    return (weights * (place - middle).square()).sum(-1)


def gumbel(ticks):
    """Noise with which a word is drawn from its logits. Nearly all draws are near the upper end."""
    drawn = (ticks.float() + 0.5) / TICKS
    return -torch.log(-torch.log(drawn))


def surprise(logits, words):
    """In bits, for each word."""
    logs = F.log_softmax(logits, -1)
    return -logs.gather(-1, words[..., None]).squeeze(-1) / math.log(2)


def per_byte(bits, sizes):
    """Bits for each byte. A document has thousands of bytes."""
    return bits.sum(1) * 100 / sizes.sum(1).float()


def margin(logits):
    """How far the best word is before the next, in the head's units, which have an offset."""
    best = logits.topk(2, -1).values
    return best[..., 0] - best[..., 1]


def improved(first, last):
    """By what part of it the loss falls from an earlier turn to a later one."""
    return (first - last) / first


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, state):
        rows, length, _ = state.shape
        asks, keys, values = self.mix(self.first(state)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (asks @ keys.transpose(-1, -2)).float() / math.sqrt(asks.shape[-1])
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        seen = (weights.to(values.dtype) @ values).transpose(1, 2).reshape(rows, length, -1)
        state = state + 0.1 * self.out(seen)
        return state + 0.1 * self.narrow(F.gelu(self.wide(self.second(state)))), weights


class Ponder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.block = nn.Embedding(VOCAB, WIDTH), Block()
        self.stop, self.head, self.norm = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, VOCAB), nn.LayerNorm(WIDTH)

    def decoded(self, state):
        with torch.autocast(state.device.type, enabled=False):
            return F.linear(self.norm(state).float(), self.head.weight.float(), self.head.bias.float()) + OFFSET

    def turn(self, state, turn):
        place = waves(torch.tensor(turn), WIDTH).to(state.dtype)
        return self.block(state + 0.01 * place)

    def forward(self, words, place, sizes, ticks):
        far = since_space((place, words))
        state = self.words(words) + 0.3 * waves(place, WIDTH).to(self.words.weight.dtype)
        state = state + 0.1 * torch.log1p(far)[..., None].to(state.dtype)
        states, stops, looks = [state], [], []
        for turn in range(TURNS):
            state, weights = self.turn(state, turn)
            states.append(state)
            stops.append(self.stop(state).squeeze(-1).float() - SELDOM)
            looks.append(weights)
        stops = torch.stack(stops)
        chances = halting(stops)
        found = torch.stack([self.decoded(each) for each in states[1:]])
        costs = torch.stack([surprise(each[:, :-1], words[:, 1:]) for each in found])
        return {
            "costs": costs,
            "chances": chances[..., :-1],
            "kept": going_on(stops),
            "apart": divergence(chances, prior(TURNS, RATE)),
            "turns": turns_taken(-torch.expm1(F.logsigmoid(-8 - stops).cumsum(0)), ENOUGH).float(),
            "settled": settled(states[-2].float(), states[-1].float()),
            "reach": reach(looks[-1]),
            "drawn": found[-1] + gumbel(ticks),
            "bytes": per_byte(costs[-1], sizes),
            "margin": margin(found[-1]),
            "better": improved(costs[-2].mean(1), costs[-1].mean(1)),
        }


def loss(output):
    cost = (output["chances"] * output["costs"]).sum(0).mean() + output["costs"].mean() + 0.01 * output["apart"].mean() - 0.01 * output["kept"].mean()
    cost = cost + 0.1 * output["settled"].mean() + 1e-5 * output["reach"].mean() + 1e-3 * output["margin"].mean()
    return cost + 1e-4 * output["drawn"].logsumexp(-1).mean() + 1e-3 * output["bytes"].mean() - 0.1 * output["better"].mean()


def make():
    torch.manual_seed(0)
    return Ponder()


def batch():
    generator = torch.Generator().manual_seed(60)
    words = torch.randint(4, VOCAB, (ROWS, LENGTH), generator=generator)
    words[:, ::7] = SPACE
    start = torch.randint(700, 900, (ROWS, 1), generator=generator)
    return {
        "words": words,
        "place": start + torch.arange(LENGTH),
        "sizes": torch.randint(1_500, 2_900, (ROWS, LENGTH), generator=generator),
        "ticks": TICKS - 1 - torch.randint(0, 500, (ROWS, LENGTH, VOCAB), generator=generator),
    }


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-2, eps=1e-5)
