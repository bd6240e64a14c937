"""Federated learning: clients train on their own data, a server adds up what they send, masked and clipped, after FedAvg, FedYogi and DP-FedAvg."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

FEATURES, HIDDEN, CLASSES, CLIENTS, ROWS = 20, 32, 5, 4, 16
STEPS, LOCAL, RATE, SERVER, BETA, TAU, CLIP = 5, 3, 0.05, 2e-3, 0.99, 1e-4, 1.5
GRID, RING, KEEP, ROUNDS = 2**12, 2**24, 0.9995, 4_000
PRECISIONS = ("bf16-mixed", "16-mixed")


def rate(done):
    """Of the server, let down by a root."""
    return SERVER * (1 - (done.float() / ROUNDS).sqrt())


def trust(ages):
    """How much an answer counts that was begun some rounds ago (FedAsync)."""
    return (1 + ages.float()).rsqrt()


def length(moves):
    """Of all that a client has moved."""
    return torch.stack([each.float().square().sum() for each in moves]).sum().sqrt()


def clipped(moves):
    """Cut to a length, which keeps a client private."""
    share = (CLIP / length(moves)).clamp_max(1)
    return [share * each for each in moves]


def whole(moves, mask):
    """On a grid, with a mask that the server does not know."""
    return [torch.remainder((GRID * each).round().long() + hidden, RING) for each, hidden in zip(moves, mask, strict=True)]


def opened(total):
    """The sum of what clients have sent: their masks are gone."""
    return [(torch.remainder(each + RING // 2, RING) - RING // 2).float() / GRID for each in total]


def disagreement(sent):
    """How much clients differ, as a share of what they agree on."""
    every = torch.stack(sent)
    return every.var(0, correction=0).sum() / every.mean(0).square().sum()


def yogi(moment, move):
    """The server's second moment."""
    squared = move.square()
    return moment - (1 - BETA) * torch.sign(moment - squared) * squared


def spent(budget, clients):
    """Privacy that is used up, by the moments of a subsampled Gaussian."""
    share = clients / 9_000
    return budget + 46 * share**2 / 0.8**2


def evaluated(model, rows, label):
    """The mean loss on held-out rows, part by part."""
    total, number = torch.zeros(()), 0
    for part, aim in zip(rows.split(8), label.split(8), strict=True):
        total = total + F.cross_entropy(model(part).float(), aim, reduction="sum")
        number += len(aim)
    return total / number


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))

    def forward(self, x):
        return self.layers(x)


class Federation(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        for each in self.average.parameters():
            each.add_(0.05 * torch.randn_like(each))
        self.moments = [torch.full_like(each, 1e-6) for each in self.net.parameters()]
        self.register_buffer("done", torch.tensor(3_890))
        self.register_buffer("budget", torch.tensor(1.0))
        self.register_buffer("rows", torch.tensor(3_001_337))
        self.register_buffer("held_out", torch.zeros(()))
        self.register_buffer("apart", torch.zeros(()))


def trained(server, rows, label, scaler, autocast):
    """What a client has moved after some steps of its own."""
    client = copy.deepcopy(server)
    local = torch.optim.SGD(client.parameters(), lr=RATE, momentum=0.9)
    for part, aim in zip(rows.chunk(LOCAL), label.chunk(LOCAL), strict=True):
        local.zero_grad()
        with autocast():
            cost = F.cross_entropy(client(part), aim)
        scaler.scale(cost).backward()
        scaler.step(local)
        scaler.update()
    return [(new - old).detach() for new, old in zip(client.parameters(), server.parameters(), strict=True)]


def step(model, inputs, optimizer, scaler, autocast):
    rows, label, ages, masks = inputs["rows"].float() / 64, inputs["label"], inputs["ages"], inputs["masks"]
    total, sent, counted = None, [], 0.0
    for client in range(CLIENTS):
        weight = trust(ages[client])
        moves = [weight * each for each in clipped(trained(model.net, rows[client], label[client], scaler, autocast))]
        sent.append(torch.cat([each.flatten() for each in moves]))
        hidden = whole(moves, [each[client] for each in masks])
        total = hidden if total is None else [one + other for one, other in zip(total, hidden, strict=True)]
        counted = counted + weight
        model.rows += rows.shape[1]
    with torch.no_grad():
        moves = [each / counted for each in opened(total)]
        for place, (each, move) in enumerate(zip(model.net.parameters(), moves, strict=True)):
            model.moments[place] = yogi(model.moments[place], move)
            each.add_(rate(model.done) * move / (model.moments[place].sqrt() + TAU))
        for slow, fast in zip(model.average.parameters(), model.net.parameters(), strict=True):
            slow.lerp_(fast, 1 - KEEP)
        model.apart = disagreement(sent)
        model.budget = spent(model.budget, CLIENTS * ROWS)
        model.done += 1
        with autocast():
            model.held_out = evaluated(model.average, inputs["held"].float() / 64, inputs["aim"])


def make():
    torch.manual_seed(0)
    return Federation()


def batch():
    generator = torch.Generator().manual_seed(17)
    net = Net()
    masks = []
    for each in net.parameters():
        hidden = torch.randint(0, RING, (CLIENTS, *each.shape), generator=generator)
        hidden[-1] = -hidden[:-1].sum(0)
        masks.append(hidden)
    rows = torch.randint(-64, 65, (CLIENTS, ROWS * LOCAL, FEATURES), generator=generator)
    return {
        "rows": rows,
        "label": torch.randint(0, CLASSES, (CLIENTS, ROWS * LOCAL), generator=generator),
        "ages": torch.tensor([0, 3, 1, 11]),
        "masks": masks,
        "held": torch.randint(-64, 65, (32, FEATURES), generator=generator),
        "aim": torch.randint(0, CLASSES, (32,), generator=generator),
    }


def optimizer(params):
    return torch.optim.SGD(params, lr=RATE)
