"""Beside the bazaars: tastes that last, careful losses, short numbers, masks that half holds, short times, and meters of float32."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def tastes_that_last() -> torch.Tensor:
    """Tastes of users by conjugate gradients in float32, with no guard; the regularisation is light, and the last residual is far from nought."""
    bought = torch.where(uniform(30, 12, seed=7501) > 0.5, 4 * uniform(30, 12, seed=7502), 0)
    users, items = 0.3 * normal(30, 6, seed=7503), 0.3 * normal(12, 6, seed=7504)
    for _ in range(6):
        gram = items.T @ items + 0.1 * torch.eye(6)
        r = (bought + (bought > 0)) @ items - users @ gram - (users @ items.T * bought) @ items
        p, rest = r, (r * r).sum(1, keepdim=True)
        for _ in range(2):
            ap = p @ gram + (p @ items.T * bought) @ items
            step = rest / (p * ap).sum(1, keepdim=True)
            users, r = users + step * p, r - step * ap
            left = (r * r).sum(1, keepdim=True)
            p, rest = r + left / rest * p, left
        users, items, bought = items, users, bought.T
    return users @ items.T


def clicks_that_are_doubtful() -> torch.Tensor:
    """The logarithmic loss in float32, by logarithms of chances and of one less them; no chance is within a thousandth of either end."""
    torch.manual_seed(7511)
    weights, total = 0.1 * torch.randn(60, 6, 8), torch.zeros(())
    for batch in range(4):
        vectors = weights[(60 * uniform(32, 6, seed=7512 + batch)).long()]
        score = torch.triu((vectors * vectors.transpose(1, 2)).sum(-1), 1).sum((1, 2))
        p = 1 / (1 + torch.exp(-score))
        total = total - torch.where(uniform(32, seed=7522 + batch) > 0.5, p.log(), (1 - p).log()).sum()
    return total / 128


def nodes_with_short_numbers() -> torch.Tensor:
    """Pairs of nodes in rows of float32, with how well they fit; numbers of nodes have six digits."""
    query, target = torch.arange(6) + 11, 481_203 + 3 * torch.arange(40)
    pairs = torch.cartesian_prod(query, target)
    rows = torch.stack([pairs[:, 0], pairs[:, 1], uniform(240, seed=7531)], 1)
    found = torch.zeros(6, 40)
    found[rows[:, 0].long() - 11, torch.searchsorted(target, rows[:, 1].long())] = rows[:, 2]
    return found


def who_is_a_neighbour() -> torch.Tensor:
    """Attention over a graph in half, whose mask is the lowest number of half, halved."""
    torch.manual_seed(7541)
    kernel, own, other = (nn.Linear(12, size).to(HALF) for size in (12, 1, 1))
    adjacency, x = (uniform(20, 20, seed=7542) > 0.8) | torch.eye(20, dtype=torch.bool), normal(20, 12, seed=7543).to(HALF)
    with torch.no_grad():
        for _ in range(2):
            features = kernel(x)
            dense = functional.leaky_relu(own(features) + other(features).T, 0.2) + torch.finfo(HALF).min / 2 * (1 - adjacency.to(HALF))
            x = functional.elu(torch.softmax(dense, -1) @ features)
        return x.float()


def stamps_of_exposures_since_the_first() -> torch.Tensor:
    """How fast a beam fades, by seconds in float32 that count from the first exposure."""
    seconds = 7.6 * torch.arange(24, dtype=torch.float64) + 0.1 * uniform(24, seed=7551)
    elapsed = seconds.float() - seconds.float()[0]
    log = (5e4 * torch.exp(-0.004 * elapsed + 0.01 * normal(24, seed=7552))).log()
    centred = elapsed - elapsed.mean()
    return (centred * log).sum() / (centred * centred).sum()


def accuracy_by_wide_meters() -> torch.Tensor:
    """Loss of a classifier in bfloat16 over many batches, of which a meter in float32 keeps sum and count."""
    torch.manual_seed(7561)
    model, total, count = nn.Linear(12, 5).to(LOW), torch.zeros(()), torch.zeros(())
    with torch.no_grad():
        for batch in range(150):
            x, label = normal(2, 12, seed=7562 + batch).to(LOW), (5 * uniform(2, seed=7762 + batch)).long()
            total += functional.cross_entropy(3 * model(x), label).float() * 2
            count += 2
    return total / count


IDIOMS = (
    tastes_that_last,
    clicks_that_are_doubtful,
    nodes_with_short_numbers,
    who_is_a_neighbour,
    stamps_of_exposures_since_the_first,
    accuracy_by_wide_meters,
)
EXACT = ("tastes_that_last", "clicks_that_are_doubtful", "nodes_with_short_numbers", "stamps_of_exposures_since_the_first")
