"""Recommendations from a sparse graph in a functional style: parameters in a dictionary, torch.sparse, no modules but the one that holds them."""

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 1
USERS, ITEMS, DIM, LAYERS, EDGES, NOW = 400, 60, 24, 3, 2400, 19_700.0


def degrees(index, size):
    """How many edges each node has."""
    return torch.zeros(size).index_add_(0, index, torch.ones(len(index)))


def fresh(days):
    """Edges fade with a month."""
    return torch.exp(-(NOW - days) / 30.0)


def inverse_root(degree):
    """Nodes without edges get nothing."""
    return torch.where(degree > 0, degree.clamp(min=1e-12).rsqrt(), 0.0)


def adjacency(user, item, weight):
    size = USERS + ITEMS
    rows, cols = torch.cat([user, item + USERS]), torch.cat([item + USERS, user])
    scale = inverse_root(degrees(rows, size))
    values = torch.cat([weight, weight]) * scale[rows] * scale[cols]
    return torch.sparse_coo_tensor(torch.stack([rows, cols]), values, (size, size)).coalesce(), scale


def propagate(matrix, x):
    """The mean over the layers of what neighbours pass on."""
    out = x
    for _ in range(LAYERS):
        x = torch.sparse.mm(matrix, x)
        out = out + x
    return out / (LAYERS + 1)


def sampled(user, item):
    """Another item for each edge, drawn by a hash so that every run draws the same."""
    return (user * 31 + item * 17 + 5) % ITEMS


def bpr(positive, negative):
    """Bayesian personalised ranking."""
    return -F.logsigmoid(positive.float() - negative.float())


def popularity(count, total):
    """Log of each item's share of all edges, for sampled negatives."""
    return torch.log((count + 1.0) / total)


def calibrated(scores, count):
    """Scores less what popularity explains, over the spread of all scores."""
    scores = scores.float() - 0.1 * popularity(count, float(EDGES))
    return scores / (scores.std() + 1e-6)


class Parameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Parameter(torch.randn(USERS, DIM)), nn.Parameter(torch.randn(ITEMS, DIM))
        self.w1, self.b1 = nn.Parameter(torch.randn(DIM, DIM) / DIM**0.5), nn.Parameter(torch.zeros(DIM))
        self.w2 = nn.Parameter(torch.randn(DIM, DIM) / DIM**0.5)

    def forward(self, user, item, days):
        return forward(dict(self.named_parameters()), user, item, days)


def forward(p, user, item, days):
    with torch.autocast("cpu", enabled=False):
        matrix, damping = adjacency(user, item, fresh(days.float()))
        x = propagate(matrix, torch.cat([p["user"], p["item"]]).float())
    h = F.linear(F.gelu(F.linear(x.to(p["w1"].dtype), p["w1"], p["b1"])), p["w2"])
    users, items = h[user], h[USERS:]
    positive = 8 * (users * items[item]).sum(-1)
    other = 8 * (users * items[sampled(user, item)]).sum(-1)
    loss = bpr(positive, other).mean()
    with torch.autocast("cpu", enabled=False):
        scores = calibrated(positive, degrees(item, ITEMS)[item])
    return {"loss": loss, "scores": scores, "embedding": h, "damping": damping}


PRECISIONS = ("bf16-mixed", "16-mixed")  # days are inputs, which a conversion of everything would round


def make():
    torch.manual_seed(0)
    return Parameters()


def batch():
    """One item is in a fifth of all edges, and ten users have none."""
    g = torch.Generator().manual_seed(8)
    item = torch.randint(0, ITEMS, (EDGES,), generator=g)
    item[torch.rand(EDGES, generator=g) < 0.2] = 7
    user = torch.randint(0, USERS - 10, (EDGES,), generator=g)
    days = NOW - 60 * torch.rand(EDGES, generator=g)
    return {"user": user, "item": item, "days": days}


def loss(output):
    return output["loss"]


optimizer = None
