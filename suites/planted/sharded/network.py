"""A loop of several workers: gradients in low rank with what is left kept (PowerSGD), weighed tasks, noise of gradients, a running loss."""

import math

import torch
import torch.nn.functional as F
from torch import nn

PRECISIONS = ("bf16-mixed", "16-mixed")  # the loop's own states are float32
INPUTS, HIDDEN, KINDS, ROWS, WORKERS, RANK, STEPS = 20, 32, 7, 12, 2, 2, 10
TABLE, TOTAL, ALL, LEARNING, DECAY, MOST = 52_000, 420_000, 100_000, 0.03, 0.05, 2e-5


def drawn(table, start, many):
    """Rows of a table, in turn, from where the last step ended."""
    return table[start + torch.arange(many)]


def standard(rows, centre):
    """Readings without what they have in common, in hundreds."""
    return (rows - centre).float() / 100


def weighed(costs, doubts):
    """Losses of all tasks, each by how sure it is (Kendall, Gal and Cipolla)."""
    return (torch.exp(-doubts) * costs + doubts / ALL).sum()


def pace(costs, first):
    """How much slower or faster each task learns than all do (GradNorm)."""
    ratio = costs / first
    return ratio - ratio.mean()


def averaged(shares):
    """The mean of what workers have found."""
    return sum(shares) / len(shares)


def upright(columns):
    """Gram and Schmidt's columns at right angles."""
    made = []
    for column in columns.unbind(1):
        for each in made:
            column = column - (column @ each) * each
        made.append(column / (column.norm() + 1e-20))
    return torch.stack(made, 1)


def in_low_rank(matrix, sketch):
    """The matrix in low rank, and the sketch for the next step."""
    left = upright(matrix @ sketch)
    right = matrix.T @ left
    return left @ right.T, right


def kept_back(matrix, sent):
    """What was not sent, to be sent later."""
    return matrix - sent


def noise(shares, merged):
    """The variance of a worker's gradients (McCandlish): by how much one is longer than their mean."""
    apart = sum((share - whole).square().sum() for each in shares for share, whole in zip(each, merged, strict=True))
    return apart / len(shares)


def length(gradients):
    """Of all gradients."""
    return torch.stack([each.square().sum() for each in gradients]).sum().sqrt()


def rate(seen):
    """The learning rate: a cosine down to nothing."""
    left = 1 - seen / TOTAL
    return LEARNING * torch.sin(math.pi / 2 * left).square()


def shrunk(learning):
    """What a step leaves of a weight."""
    return -torch.expm1(torch.log1p(-learning * DECAY))


def smooth(before, cost):
    """A running loss."""
    return before + 0.005 * (cost - before)


def gained(best, cost):
    """By what part of it a loss is better than the best."""
    return (best - cost) / best


def speed(words, clock):
    """Words a second. The clock has milliseconds since the machine was started."""
    return words / ((clock[1] - clock[0]).float() / 1000)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.GELU())
        self.kind, self.amount = nn.Linear(HIDDEN, KINDS), nn.Linear(HIDDEN, 1)

    def forward(self, rows):
        hidden = self.body(rows)
        return self.kind(hidden), self.amount(hidden).squeeze(-1)


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.doubts = nn.Parameter(torch.tensor([-0.9, -1.3]))
        self.seen, self.running, self.first, self.best = torch.tensor(380_000.0), torch.tensor(3.12e-5), None, None
        self.left, self.sketches = {}, {}

    def costs(self, rows, kinds, amounts):
        """Of both tasks, for each word of all machines."""
        scores, found = self.net(rows)
        return torch.stack((F.cross_entropy(scores.float(), kinds), F.smooth_l1_loss(found.float(), amounts))) / ALL

    def sent(self, name, gradient):
        """The part of a gradient that goes to all workers."""
        if gradient.ndim < 2 or min(gradient.shape) <= RANK:
            return gradient
        matrix = gradient + self.left.get(name, 0)
        sketch = self.sketches.get(name)
        if sketch is None:
            sketch = torch.linspace(-1, 1, gradient.shape[1] * RANK).sin().view(-1, RANK) + 1
        sent, self.sketches[name] = in_low_rank(matrix, sketch)
        self.left[name] = kept_back(matrix, sent)
        return sent


def step(trainer, inputs, optimizer, scaler, autocast):
    rows = drawn(inputs["table"], inputs["start"], ROWS)
    named = dict(trainer.named_parameters())
    shares, costs = [], []
    for at in range(WORKERS):
        part = slice(at, None, WORKERS)
        optimizer.zero_grad()
        with autocast():
            cost = trainer.costs(standard(rows[part, :-1], inputs["centre"]), inputs["kinds"][part], rows[part, -1].float() / 1000)
            total = weighed(cost, trainer.doubts)
        scaler.scale(total).backward()
        scale = scaler.get_scale() if scaler.is_enabled() else 1.0
        shares.append([each.grad.float() / scale for each in named.values()])
        costs.append(cost.detach())
    with torch.no_grad():
        cost = torch.stack(costs).mean(0)
        if trainer.first is None:
            trainer.first, trainer.best = cost * 1.02, cost.mean() * 1.01
        merged = [averaged(each) for each in zip(*shares, strict=True)]
        gradients = [trainer.sent(name, each) for name, each in zip(named, merged, strict=True)]
        by = (MOST / (length(gradients) + 1e-12)).clamp(max=1)
        for each, gradient in zip(named.values(), gradients, strict=True):
            each.grad = (gradient * by * scale).to(each.dtype)
        trainer.seen = trainer.seen + inputs["words"].sum()
        trainer.running = smooth(trainer.running, cost.mean())
        learning = rate(trainer.seen)
        for each in trainer.net.parameters():
            each.sub_(shrunk(learning) * each)
        trainer.notes = (pace(cost, trainer.first), noise(shares, merged), gained(trainer.best, cost.mean()))
        trainer.speed = speed(inputs["words"].sum(), inputs["clock"])
    for group in optimizer.param_groups:
        group["lr"] = float(learning)
    scaler.step(optimizer)
    scaler.update()


def make():
    torch.manual_seed(0)
    return Trainer()


def batch():
    generator = torch.Generator().manual_seed(62)
    centre = torch.randint(1_000, 6_000, (INPUTS,), generator=generator)
    table = torch.cat((centre, torch.tensor([1_500]))) + torch.randint(-40, 40, (TABLE, INPUTS + 1), generator=generator)
    table[:, :INPUTS] += 60
    return {
        "table": table,
        "centre": centre,
        "start": torch.tensor(41_237),
        "kinds": torch.randint(0, KINDS, (ROWS,), generator=generator),
        "words": torch.randint(20, 60, (ROWS,), generator=generator),
        "clock": 8_600_000 + torch.tensor([0, 430]),
    }


def optimizer(params):
    return torch.optim.Adam(params, lr=LEARNING)
