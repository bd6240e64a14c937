"""A limit order book: prices in ticks, what waits at each, trades by the millisecond, and a recurrent network that guesses the next move."""

import torch
import torch.nn.functional as F
from torch import nn

BOOKS, TIMES, LEVELS, DIM = 4, 120, 5, 32
STEPS = 1


def middle(bid, ask, low):
    """Between the best bid and the best ask, in ticks."""
    return (bid[..., 0] + ask[..., 0]).float() / 2


def moves(price, low):
    """Of the middle, from one time to the next, in ticks."""
    return F.pad(price[:, 1:] - price[:, :-1], (1, 0))


def lean(bid, ask, buying, selling, low):
    """How far the price that both queues agree on is from the middle, in ticks."""
    buying, selling = buying[..., 0].float(), selling[..., 0].float()
    spread = (ask[..., 0] - bid[..., 0]).float()
    return (buying / (buying + selling) - 0.5) * spread


def depth(waiting, low):
    """Shares up to each level, on a logarithmic scale."""
    return waiting.cumsum(-1).float().log()


def pause(clock, low):
    """Milliseconds since the trade before."""
    return F.pad(clock[:, 1:] - clock[:, :-1], (1, 0), value=1).float()


def heat(wait, low):
    """How busy it is: each trade adds one, and half of it is left after five minutes."""
    left = torch.exp2(-wait / 300_000)
    state, states = torch.zeros(len(wait)), []
    for turn in range(TIMES):
        state = state * left[:, turn] + 1
        states.append(state)
    return torch.stack(states, 1)


def pressure(bought, low):
    """Shares bought less shares sold, since the opening."""
    return (bought.cumsum(1) - bought[:, :1]).float()


def paid(price, bought, middle_, low):
    """What was paid on average beside the last middle, in ticks."""
    beyond, shares = (price - middle_[:, -1:]).float(), bought.abs().float()
    return (beyond * shares).sum(1) / shares.sum(1)


def spread_of_moves(price, low):
    """Root mean square of the relative moves, in millionths."""
    relative = (price[:, 1:] - price[:, :-1]) / price[:, :-1]
    return relative.square().mean(1).sqrt() * 1e6


class OrderBook(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(4 + 2 * LEVELS, DIM)
        self.norm = nn.LayerNorm(DIM)
        self.body = nn.GRU(DIM, DIM, batch_first=True)
        self.out = nn.Linear(DIM, 3)

    def forward(self, bid, ask, buying, selling, clock, bought):
        weight = self.enter.weight.dtype
        low = self.enter(torch.zeros(1, 4 + 2 * LEVELS, dtype=weight)).dtype
        with torch.autocast("cpu", enabled=False):
            price = middle(bid, ask, low)
            move = moves(price, low)
            leaning = lean(bid, ask, buying, selling, low)
            wait = pause(clock, low)
            busy = heat(wait, low)
            side = pressure(bought, low)
            cost = paid(price, bought, price, low)
            swing = spread_of_moves(price, low)
            facts = [move, leaning, torch.log1p(wait) / 4, torch.tanh(side / 2000)]
            levels = torch.cat([depth(buying, low), depth(selling, low)], -1) / 8
            facts = torch.cat([torch.stack(facts, -1), levels], -1)
        hidden, _ = self.body(self.norm(self.enter(facts.to(weight))))
        logits = self.out(hidden).float()
        with torch.autocast("cpu", enabled=False):
            wanted = (move[:, 1:].sign() + 1).long()
            told = F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted.flatten(), reduction="none")
            told = (told.view(BOOKS, -1) * busy[:, :-1]).sum() / busy[:, :-1].sum()
        return {"logits": logits, "cost": cost, "swing": swing, "pressure": side[:, -1], "busy": busy[:, -1], "loss": told}


def make():
    torch.manual_seed(0)
    return OrderBook()


def batch():
    generator = torch.Generator().manual_seed(41)

    def whole(least, most, *shape):
        return torch.randint(least, most, shape, generator=generator)

    best = 41_250 + whole(-1, 2, BOOKS, TIMES).cumsum(1)
    bought = whole(-90, 110, BOOKS, TIMES)
    bought[:, 0] = 8960  # the opening
    below, above = (whole(1, 3, BOOKS, TIMES, LEVELS).cumsum(-1) for _ in range(2))
    sizes = [(torch.rand(BOOKS, TIMES, LEVELS, generator=generator) * 9.5 + 1).exp().long() + 1 for _ in range(2)]
    return {
        "bid": best[..., None] - below,
        "ask": best[..., None] + above,
        "buying": sizes[0],
        "selling": sizes[1],
        "clock": 36_000_000 + whole(5, 400, BOOKS, TIMES).cumsum(1),
        "bought": bought,
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
