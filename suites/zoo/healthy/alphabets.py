"""Models of bytes and pixels without a vocabulary, and samplers: entropies, hashes and energies are float32, float64 or integers."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import all_of, made, net

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
TEXT = torch.tensor(list(b"a small text of bytes, and once more a small text of bytes, and a few more bytes of a text."))


def bytes_in_patches() -> torch.Tensor:
    """A text that is cut where the next byte is hard to guess: entropies are float32, and a network under autocast sees means of patches."""
    counts = torch.zeros(128, 128).index_put((TEXT[:-1], TEXT[1:]), torch.ones(len(TEXT) - 1), accumulate=True) + 0.02
    chances = counts / counts.sum(-1, keepdim=True)
    entropy = -(chances * chances.log()).sum(-1)[TEXT[:-1]]
    starts = torch.cat([torch.ones(1, dtype=torch.bool), entropy > entropy.mean()])
    patch = starts.long().cumsum(0) - 1
    table = normal(128, 16).to(LOW)
    sums = torch.zeros(int(patch[-1]) + 1, 16).index_add(0, patch, table[TEXT].float())
    means = sums / torch.bincount(patch)[:, None]
    with torch.no_grad(), torch.autocast("cpu", LOW):
        hidden = net(16, 32, 16)(means)
    return torch.softmax(hidden.float() @ table.float().T / 8, -1)


class Hashed(nn.Module):
    """A model of bytes whose context is the bytes before, by tables that a hash of one, two and three of them looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(256, 16) for _ in range(3))
        self.mix, self.out = nn.Linear(16, 32), nn.Linear(32, 128)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        key, total = torch.zeros(len(text) - 3, dtype=torch.int64), torch.zeros(len(text) - 3, 16)
        for back, table in enumerate(self.tables, 1):
            key = (key * 1000003 + text[3 - back : len(text) - back]) % 2**31
            total = total + table(key % 256)
        return self.out(torch.relu(self.mix(total)))


def bytes_by_hashes() -> torch.Tensor:
    """Training of a model of bytes under autocast: hashes are int64, sums of embeddings are float32, and so are the losses, in bits a byte."""
    model, losses = made(Hashed()), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(6):
        with torch.autocast("cpu", LOW):
            out = model(TEXT)
        loss = functional.cross_entropy(out.float(), TEXT[3:]) / math.log(2)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return torch.cat([torch.stack(losses), all_of(model)])


def pixels_one_by_one() -> torch.Tensor:
    """Levels of a row of pixels, each drawn from a mixture in float32 by its cumulative chances in float64; the network is half and sees tenths."""
    model, row, found = net(3, 24, 16).to(HALF), [8, 8, 8], []
    for place in range(20):
        with torch.no_grad():
            logits = model((torch.tensor([row[-3:]]) / 10).to(HALF)).float()[0]
        chances = torch.softmax(2 * logits - 0.1 * (torch.arange(16.0) - row[-1]).square(), -1)
        ends = chances.double().cumsum(0)
        row.append(int((uniform(1, seed=50 + place).double() * ends[-1] > ends).sum()))
        found.append(chances)
    return torch.stack(found)


def chain_with_momentum() -> torch.Tensor:
    """Hamiltonian steps through an energy that is a network's in half plus a bowl: places and momenta are float32, changes of energy are float64."""
    model, place, found = net(2, 16, 1), 0.5 * normal(24, 2), []
    model.requires_grad_(False)

    def energy(place: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", HALF):
            low = model(place)
        return 0.5 * place.square().sum(-1) + 0.2 * torch.tanh(low.float()).squeeze(-1)

    def slope(place: torch.Tensor) -> torch.Tensor:
        leaf = place.detach().requires_grad_()
        return torch.autograd.grad(energy(leaf).sum(), leaf)[0]

    for turn in range(5):
        speed = normal(24, 2, seed=10 + turn)
        new, moved = place, speed - 0.1 * slope(place)
        for step in range(6):
            new = new + 0.2 * moved
            moved = moved - (0.1 if step == 5 else 0.2) * slope(new)
        before, after = (energy(at).double() + 0.5 * way.double().square().sum(-1) for at, way in ((place, speed), (new, moved)))
        chance = (before - after).clamp(max=0).exp()
        found.append(chance.mean())
        place = torch.where((uniform(24, seed=30 + turn) < chance)[:, None], new, place)
    return torch.cat([torch.stack(found).float(), place.mean(0), place.var(0)])


def groups_by_turns() -> torch.Tensor:
    """A mixture by Gibbs's turns: groups are drawn by logarithms in float32, means by their conjugate law; data is half, widened once."""
    data = torch.cat([normal(30) - 2, normal(30, seed=1) + 2]).to(HALF).float()
    means, found = torch.tensor([-0.5, 0.5]), []
    for turn in range(30):
        logs = -0.5 * (data[:, None] - means).square()
        chances = torch.softmax(logs, -1)
        group = (uniform(60, seed=100 + turn) > chances[:, 0]).long()
        counts, sums = torch.bincount(group, minlength=2), torch.zeros(2).index_add(0, group, data)
        precision = counts + 0.1
        means = sums / precision + normal(2, seed=200 + turn) * precision.rsqrt()
        found.append(torch.cat([means, counts / 60]))
    return torch.stack(found)


IDIOMS = (bytes_in_patches, bytes_by_hashes, pixels_one_by_one, chain_with_momentum, groups_by_turns)
