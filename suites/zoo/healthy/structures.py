"""Sequences, graphs, boxes and codes: borders of Inf, empty rows and integers that stay what they are."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.rounds import HALF, LOW, perceptron, rounds


def transducer() -> torch.Tensor:
    """Forward variables of an RNN transducer: what lies outside of the lattice is -Inf, and logaddexp'ed with."""
    joiner, audio, words = perceptron(24, 32, 12), normal(10, 1, 8), normal(1, 6, 16, seed=1)
    labels = torch.tensor([3, 7, 7, 2, 9])

    def loss() -> torch.Tensor:
        log_p = functional.log_softmax(joiner(torch.cat([audio.expand(-1, 6, -1), words.expand(10, -1, -1)], -1)).float(), -1)
        alpha = torch.cat([torch.zeros(1), torch.full((5,), float("-inf"))])
        for frame, last in enumerate(log_p):
            before = alpha if frame == 0 else alpha + log_p[frame - 1, :, 0]
            cells = [before[0]]
            for place, label in enumerate(labels):
                cells.append(torch.logaddexp(before[place + 1], cells[-1] + last[place, label]))
            alpha = torch.stack(cells)
        return -(alpha[-1] + log_p[-1, -1, 0])

    return rounds(joiner, loss, torch.optim.Adam(joiner.parameters(), lr=1e-3), steps=2)


def tagged_sequences() -> torch.Tensor:
    """A partition function less the score of the right path, and transitions of -10000, which swallow what is added to them."""
    tagger, x, tags = perceptron(8, 32, 5), normal(4, 8, 8), 1 + torch.arange(32).reshape(4, 8) % 3
    moves = nn.Parameter(0.1 * normal(5, 5))
    with torch.no_grad():
        moves[:, 0], moves[4] = -10000.0, -10000.0

    def loss() -> torch.Tensor:
        scores = tagger(x).float()
        alpha, right = scores[:, 0], scores.gather(2, tags[..., None]).sum((1, 2))
        for step in range(1, 8):
            alpha = torch.logsumexp(alpha[:, :, None] + moves, 1) + scores[:, step]
            right = right + moves[tags[:, step - 1], tags[:, step]]
        return (torch.logsumexp(alpha, -1) - right).mean()

    model = nn.ModuleList([tagger, nn.ParameterList([moves])])
    return rounds(model, loss, torch.optim.SGD(model.parameters(), lr=0.05), steps=3)


def soft_alignment() -> torch.Tensor:
    """Soft dynamic time warping: the table's border is Inf, and met by logsumexp in finite company."""
    x, y = normal(6, 3).to(LOW), normal(7, 3, seed=1).to(LOW)
    cost = (x.float()[:, None] - y.float()).square().sum(-1)
    infinite = torch.tensor(float("inf"))
    above = [torch.tensor(0.0), *[infinite] * 7]
    for row in cost:
        cells = [infinite]
        for place, each in enumerate(row):
            best = torch.stack([above[place], above[place + 1], cells[-1]])
            cells.append(each - 0.1 * torch.logsumexp(-best / 0.1, 0))
        above = cells
    return above[-1]


def cached_keys() -> torch.Tensor:
    """One token at a time, with keys and values kept in bfloat16."""
    project, x, keys, values, made = nn.Linear(16, 48, bias=False).to(LOW), normal(2, 12, 16).to(LOW), [], [], []
    with torch.no_grad():
        project.weight.copy_(normal(48, 16) / 4)
    for token in x.split(1, 1):
        q, k, v = project(token).chunk(3, -1)
        keys.append(k)
        values.append(v)
        made.append(functional.scaled_dot_product_attention(q, torch.cat(keys, 1), torch.cat(values, 1)))
    return torch.cat(made, 1)


EDGES = torch.stack([torch.cat([torch.arange(1, 20), torch.arange(10)]), torch.cat([torch.zeros(19, dtype=torch.int64), torch.arange(10) + 5])])
"""Node 0 is a hub, and most of the others get nothing."""


def normalised_neighbours() -> torch.Tensor:
    """Degrees are counted in float32, and nodes without a neighbour are told apart before the root is taken."""
    x = normal(20, 8).to(LOW)
    degree = torch.zeros(20).index_add(0, EDGES[1], torch.ones(29))
    share = torch.where(degree > 0, degree.clamp(min=1).rsqrt(), 0.0)
    message = x[EDGES[0]] * (share[EDGES[0]] * share[EDGES[1]])[:, None].to(LOW)
    return torch.zeros(20, 8).to(LOW).index_add(0, EDGES[1], message)


def edge_softmax() -> torch.Tensor:
    """Weights over each node's edges, its maximum off first; a node without edges keeps a maximum of -Inf, which nobody reads."""
    h = normal(20, 8).half()
    score = functional.leaky_relu((h[EDGES[0]] * h[EDGES[1]]).sum(-1), 0.2).float()
    top = torch.full((20,), float("-inf")).scatter_reduce(0, EDGES[1], score, "amax")
    weight = torch.exp(score - top[EDGES[1]])
    total = torch.zeros(20).index_add(0, EDGES[1], weight)
    return torch.zeros(20, 8).half().index_add(0, EDGES[1], (weight / total[EDGES[1]].clamp(min=1e-16)).half()[:, None] * h[EDGES[0]])


def detection_losses() -> torch.Tensor:
    """Areas of 200000 pixels and p² of a prior of one per cent, in float32, from a head in float16."""
    head, x = perceptron(8, 32, 5), normal(36, 8)
    target, label = 200 + 40 * uniform(36, 4), (torch.arange(36) % 9 == 0).float()
    with torch.no_grad():
        head[-1].bias[4] = -math.log(99)

    def loss() -> torch.Tensor:
        out = head(x).float()
        sides, logit = out[:, :4].clamp(max=6).exp() * 100, out[:, 4]
        p = torch.sigmoid(logit)
        entropy = functional.binary_cross_entropy_with_logits(logit, label, reduction="none")
        focal = (torch.where(label > 0, 0.25 * (1 - p) ** 2, 0.75 * p**2) * entropy).sum() / label.sum()
        inside, hull = torch.minimum(sides, target), torch.maximum(sides, target)
        areas = [(each[:, 0] + each[:, 2]) * (each[:, 1] + each[:, 3]) for each in (inside, hull, sides, target)]
        union = areas[2] + areas[3] - areas[0]
        return focal + (1 - areas[0] / union + (areas[1] - union) / areas[1])[label > 0].mean()

    return rounds(head, loss, torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9), HALF, clip=10.0)


def cosine_attention() -> torch.Tensor:
    """Cosines times a scale that is clamped at 100, and -100 between windows."""
    q, k, v = normal(2, 16, 48).half().chunk(3, -1)
    alike = functional.normalize(q.float(), dim=-1) @ functional.normalize(k.float(), dim=-1).transpose(-2, -1)
    window = torch.arange(16) // 8
    scores = alike * torch.tensor(5.0).clamp(max=math.log(100)).exp() + torch.where(window[:, None] == window, 0.0, -100.0)
    return torch.softmax(scores, -1).half() @ v


def standardised_series() -> torch.Tensor:
    """Sales near 50000, less their mean, in float32; the network sees what is left, and the way back is float32."""
    series = 50_000 + 300 * normal(6, 48).cumsum(-1)
    mean, spread = series.mean(-1, keepdim=True), series.std(-1, keepdim=True) + 1e-5
    return perceptron(48, 32, 12).to(LOW)(((series - mean) / spread).to(LOW)).float() * spread + mean


def timestamps() -> torch.Tensor:
    """Seconds since 1970 stay integers; gaps and hours of the day are all that becomes low."""
    times = 1_700_000_000 + (1 + torch.floor(4000 * uniform(8, 12)).long()).cumsum(1)
    gap, hour = (times[:, 1:] - times[:, :-1]).float(), (times[:, 1:] % 86400).float() / 86400 * 2 * math.pi
    return perceptron(3, 16, 4).to(LOW)(torch.stack([gap.log1p() / 10, hour.sin(), hour.cos()], -1).to(LOW))


def rare_clicks() -> torch.Tensor:
    """Counts to a million through log1p, bags of embeddings of which some are empty, and labels of which 3 % are one."""
    table, head = nn.EmbeddingBag(50, 16, mode="sum"), perceptron(20, 32, 1)
    model, counts = nn.ModuleList([table, head]), 10 ** (6 * uniform(16, 4))
    ids, starts, label = torch.arange(40) * 7 % 50, torch.tensor([0, 0, *range(2, 30, 2)]), (torch.arange(16) == 5).float()
    with torch.no_grad():
        table.weight.copy_(normal(50, 16))

    def loss() -> torch.Tensor:
        out = head(torch.cat([counts.log1p(), table(ids, starts)], -1)).squeeze(-1)
        return functional.binary_cross_entropy_with_logits(out.float(), label)

    return rounds(model, loss, torch.optim.Adagrad(model.parameters(), lr=0.02))


IDIOMS = (transducer, tagged_sequences, soft_alignment, cached_keys, normalised_neighbours, edge_softmax, detection_losses, cosine_attention,
          standardised_series, timestamps, rare_clicks)  # fmt: skip
