"""Policies, shops, samplers and optimizers in bfloat16 and half that look as if they lost odds, masses, counts or bases, and that are right."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn

HALF, LOW = torch.float16, torch.bfloat16


def odds_of_an_unsure_answer() -> torch.Tensor:
    """One less the probability of answers that are found likely by a fifth, in bfloat16."""
    torch.manual_seed(11)
    head = nn.Linear(16, 8).to(LOW)
    with torch.no_grad():
        likely = torch.log_softmax(head(normal(40, 16).to(LOW)), -1)[:, :2].float()
        chosen, rejected = likely.unbind(-1)
        return chosen - rejected - (torch.log(1 - chosen.exp()) - torch.log(1 - rejected.exp()))


def likelihood_of_a_small_action() -> torch.Tensor:
    """A tanh of actions near nought and the logarithm of its slope, in bfloat16."""
    torch.manual_seed(12)
    mean = nn.Linear(8, 3).to(LOW)
    noise = normal(80, 3, seed=1).to(LOW)
    with torch.no_grad():
        action = torch.tanh(0.2 * mean(normal(80, 8).to(LOW)) + 0.1 * noise)
        return (-0.5 * noise.square() + 1.384 - torch.log(1 - action.square() + 1e-6)).sum(-1)


def replay_of_like_surprises() -> torch.Tensor:
    """A tree of sums that is updated by differences, of priorities that are whole numbers of eighths, in half."""
    tree = torch.zeros(32, dtype=HALF)
    for turn in range(3):
        for place, priority in enumerate((1 + 8 * uniform(16, seed=turn)).round() / 8):
            node, change = place + 16, priority.to(HALF) - tree[place + 16]
            while node >= 1:
                tree[node] = tree[node] + change
                node //= 2
    return tree[16:] / tree[1]


def nucleus_of_a_small_vocabulary() -> torch.Tensor:
    """Masses of tokens by bins, eighty tokens in twenty bins, in bfloat16."""
    torch.manual_seed(13)
    head = nn.Linear(16, 80).to(LOW)
    with torch.no_grad():
        logits = head(normal(1, 16).to(LOW))[0]
        weight = torch.exp(logits - logits.max())
        bins = ((logits.max() - logits).float() * 8).long().clamp(max=19)
        mass = torch.zeros(20, dtype=LOW).index_add_(0, bins, weight)
        return (mass / mass.sum()).float()


def beams_of_a_short_answer() -> torch.Tensor:
    """Scores of four answers of twelve tokens, summed in half, the best of which are kept in each turn."""
    torch.manual_seed(14)
    embed, head = nn.Embedding(30, 16), nn.Linear(16, 30)
    score, last = torch.zeros(4, dtype=HALF), torch.arange(4)
    with torch.no_grad():
        for _ in range(12):
            likely = torch.log_softmax(4 * head(torch.tanh(embed(last))), -1)
            score, best = (score[:, None] + likely.to(HALF)).flatten().topk(4)
            last = best % 30
    return score.float() / 12


def pairs_of_near_items() -> torch.Tensor:
    """The logarithm of a sigmoid of differences of at most four, in half."""
    torch.manual_seed(16)
    users, items = nn.Embedding(30, 16), nn.Embedding(50, 16)
    who, liked, other = (torch.arange(60) * step % top for step, top in ((7, 30), (11, 50), (13, 50)))
    with torch.autocast("cpu", HALF):
        better = torch.einsum("bd,bd->b", 0.3 * users(who), items(liked) - items(other))
        loss = -torch.log(torch.sigmoid(better)).mean()
    loss.backward()
    return users.weight.grad


def neighbours_in_a_centred_cloud() -> torch.Tensor:
    """Squares of distances by norms and products, in half, of points in six clumps about nought; the nearest two are read through a network."""
    torch.manual_seed(17)
    net = nn.Linear(3, 4).to(HALF)
    clumps = 2.0 * torch.tensor([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]])
    points = (clumps.repeat_interleave(3, 0) + 0.25 * normal(18, 3).round()).to(HALF)
    squares = points.square().sum(-1, keepdim=True)
    near = (-(squares - 2 * points @ points.T + squares.T)).topk(3, -1).indices
    with torch.no_grad():
        return net(points[near].mean(1)).float()


def time_to_a_far_visit() -> torch.Tensor:
    """The logarithm of an exponential less one, of hazards that grow by one to two, in bfloat16."""
    torch.manual_seed(18)
    out = nn.Linear(8, 2).to(LOW)
    with torch.no_grad():
        scale, shape = out(normal(40, 8).to(LOW)).unbind(-1)
        more = 1.5 + 0.3 * torch.tanh(scale)
        return (torch.log(torch.exp(more) - 1) - more * (1 + 0.1 * torch.tanh(shape))).float()


def draws_of_common_words() -> torch.Tensor:
    """Cumulative probabilities of sixteen words, in half, among which a thousand are drawn."""
    counts = 1 + torch.arange(16.0)
    until = (counts / counts.sum()).to(HALF).cumsum(0)
    drawn = torch.searchsorted(until, ((torch.arange(1000) + 0.5) / 1000).to(HALF)).clamp(max=15)
    return torch.bincount(drawn, minlength=16).float()


def scales_of_a_whole_layer() -> torch.Tensor:
    """Weights in four bits with scales in half, of layers none of whose rows is small."""
    torch.manual_seed(20)
    layer = nn.Linear(64, 24)
    with torch.no_grad():
        blocks = layer.weight.reshape(24, 2, 32)
        scale = (blocks.abs().amax(-1, keepdim=True) / 7).to(HALF).float()
        layer.weight.copy_(((blocks / scale).round().clamp(-8, 7) * scale).flatten(1))
        return layer(normal(30, 64))


def powers_of_two_that_divide() -> torch.Tensor:
    """Weights in eight bits by powers of two, which divide them as they multiply them again."""
    torch.manual_seed(21)
    layer = nn.Linear(32, 12)
    with torch.no_grad():
        blocks = layer.weight.reshape(-1, 16)
        scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(1, keepdim=True) / 448))).to(torch.float8_e8m0fnu).float()
        layer.weight.copy_(((blocks / scale).to(torch.float8_e4m3fn).float() * scale).reshape(layer.weight.shape))
        return layer(normal(40, 32))


def gradients_of_few_workers() -> torch.Tensor:
    """A bucket in half, to which gradients of eight batches are added and which is divided then."""
    torch.manual_seed(22)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    bucket = torch.zeros(sum(each.numel() for each in model.parameters()), dtype=HALF)
    for batch in range(8):
        told = normal(16, 12, seed=batch)
        gradients = torch.autograd.grad(64 * (model(told) - told[:, :1]).square().mean(), list(model.parameters()))
        bucket += torch.cat([each.flatten() for each in gradients]).to(HALF)
    return bucket.float() / 8 / 64


def basis_of_like_inputs() -> torch.Tensor:
    """A factor of gradients that is kept in bfloat16, of inputs of one size, and its inverse root."""
    torch.manual_seed(23)
    weight, factor = nn.Parameter(0.1 * torch.randn(8, 6)), torch.eye(6, dtype=LOW)
    for turn in range(6):
        told = normal(64, 6, seed=turn)
        gradient = torch.autograd.grad((told @ weight.T - told.sum(1, keepdim=True)).square().mean(), weight)[0]
        factor = 0.9 * factor + (0.1 * gradient.T @ gradient).to(LOW)
        values, vectors = torch.linalg.eigh(factor.float() + 0.1 * torch.eye(6))
        with torch.no_grad():
            weight -= 0.02 * gradient @ (vectors * values.rsqrt() @ vectors.T)
    return weight.detach()


def lesson_of_another_teacher() -> torch.Tensor:
    """How far a pupil is from a teacher that knows it all otherwise, in bfloat16."""
    torch.manual_seed(24)
    teacher, pupil = nn.Linear(16, 10).to(LOW), nn.Linear(16, 10).to(LOW)
    seen = (2 * normal(30, 16)).to(LOW)
    with torch.no_grad():
        mine, theirs = torch.log_softmax(pupil(seen), -1), torch.log_softmax(4 * teacher(seen), -1)
        return (theirs.exp() * (theirs - mine)).sum(-1).float()


def table_of_few_confusions() -> torch.Tensor:
    """Counts of six pictures in bfloat16, none of which comes to 256."""
    table = torch.zeros(5, 5, dtype=LOW)
    for picture in range(6):
        seen = normal(16, 5, seed=picture)
        are, taken = ((seen + 0.5 * normal(16, 5, seed=50 + picture * step)).argmax(1) for step in (1, 3))
        sorts = [nn.functional.one_hot(each, 5).to(LOW) for each in (are, taken)]
        table += sorts[0].T @ sorts[1]
    both = table.float().diagonal()
    return both / (table.float().sum(0) + table.float().sum(1) - both).clamp_min(1)


def noise_of_noisy_gradients() -> torch.Tensor:
    """The norms of gradients of small batches and of all of them, in bfloat16, where most of a gradient is noise."""
    torch.manual_seed(25)
    model = nn.Linear(10, 1).to(LOW)
    x, y = normal(256, 10).to(LOW), (3 * normal(256, 1, seed=1)).to(LOW)
    parts = []
    for part in range(8):
        loss = (model(x[part * 32 :][:32]) - y[part * 32 :][:32]).square().mean()
        parts.append(torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]))
    told = torch.stack(parts)
    return (told.square().sum(1).mean() - told.mean(0).square().sum()).float()


def when_to_stop_soon() -> torch.Tensor:
    """A cell that thinks until it is sure by nine tenths, which takes it two or three turns, in bfloat16."""
    torch.manual_seed(27)
    cell, halt = nn.GRUCell(8, 16).to(LOW), nn.Linear(16, 1).to(LOW)
    x, hidden = normal(50, 8).to(LOW), torch.zeros(50, 16, dtype=LOW)
    sure, mixed = torch.zeros(50, dtype=LOW), torch.zeros(50, 16, dtype=LOW)
    with torch.no_grad():
        for _ in range(4):
            hidden = cell(x, hidden)
            more = torch.minimum(torch.sigmoid(halt(hidden).squeeze(-1)), 1 - sure)
            sure, mixed = sure + more, mixed + more[:, None] * hidden
    return mixed.float()


IDIOMS = (odds_of_an_unsure_answer, likelihood_of_a_small_action, replay_of_like_surprises, nucleus_of_a_small_vocabulary,
          beams_of_a_short_answer, pairs_of_near_items, neighbours_in_a_centred_cloud, time_to_a_far_visit, draws_of_common_words,
          scales_of_a_whole_layer, powers_of_two_that_divide, gradients_of_few_workers, basis_of_like_inputs, lesson_of_another_teacher,
          table_of_few_confusions, noise_of_noisy_gradients, when_to_stop_soon)  # fmt: skip
