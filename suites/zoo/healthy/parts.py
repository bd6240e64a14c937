"""Parts of larger things, things written out, and things set aside, that are right as they are."""

from __future__ import annotations

import copy

import torch
from bugs.bug import normal
from torch import nn
from torch.nn import functional

from healthy.models import perceptron
from healthy.trainings import seeded

LOW = torch.bfloat16


def discounted_returns() -> torch.Tensor:
    """Values are read one by one, some of which happen to be far off for their size: no op of the loop did that."""
    critic = seeded(lambda: nn.Linear(16, 1))
    with torch.no_grad(), torch.autocast("cpu", dtype=LOW):
        values = critic(normal(256, 16)).float().squeeze(-1)
    advantages, last = torch.zeros(255), torch.zeros(())
    for step in reversed(range(255)):
        last = 0.1 + 0.99 * values[step + 1] - values[step] + 0.99 * 0.95 * last
        advantages[step] = last
    return advantages


def gates_in_place() -> torch.Tensor:
    """An LSTM's four gates in one storage, each by its own function, in place; the cell's are 0.01 of the others."""
    scales = torch.cat([torch.ones(32), torch.full((16,), 1e-2), torch.ones(16)])
    with torch.autocast("cpu", dtype=LOW):
        gates = normal(8, 24) @ normal(24, 64, seed=1) / 5
    gates = gates.float() * scales
    one, two, cell, out = gates.chunk(4, dim=1)
    return out.sigmoid_() * torch.tanh(one.sigmoid_() + two.sigmoid_() * cell.tanh_())


def softmax_written_out() -> torch.Tensor:
    """The largest is subtracted from scores with an offset: what is left of them is as exact as torch's own softmax has it."""
    scores = (normal(16, 32).to(LOW) @ (0.02 * normal(32, 16, seed=1)).to(LOW)) + 8
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def textbook_compensation() -> torch.Tensor:
    """Kahan's remainder with the sign that textbooks have: what was added too much, not what is still to be added."""
    model = seeded(lambda: nn.Linear(16, 4)).to(LOW)
    lost = {each: torch.zeros_like(each) for each in model.parameters()}
    for _ in range(12):
        model.zero_grad()
        functional.cross_entropy(model(normal(64, 16).to(LOW)).float(), torch.arange(64) % 4).backward()
        with torch.no_grad():
            for each in model.parameters():
                move = -1e-4 * each.grad - lost[each]
                moved = each + move
                lost[each] = (moved - each) - move
                each.copy_(moved)
    return model.weight.detach()


def whitened() -> torch.Tensor:
    """Eigenvectors of eigenvalues that are nearly the same are any, and so is each one's sign; what is made of all of them is not."""
    given = normal(4096, 16)
    covariance = (given.to(LOW).T @ given.to(LOW)).float() / 4096
    values, vectors = torch.linalg.eigh(covariance)
    return given[:64] @ (vectors * values.rsqrt()) @ vectors.T


def evaluated_in_half() -> torch.Tensor:
    """A copy is converted and asked for its opinion, with autograd on, while the model itself is trained."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(normal(8, 32)).square().mean().backward()
        optimizer.step()
    return copy.deepcopy(model).to(LOW).eval()(normal(8, 32).to(LOW))


def adapted_by_hand() -> torch.Tensor:
    """The base's weight is cast once, without autograd: only the low-rank factors are in the optimizer."""
    base, down, up = seeded(lambda: (nn.Linear(16, 16), nn.Parameter(torch.randn(4, 16) / 4), nn.Parameter(torch.zeros(16, 4))))
    with torch.no_grad():
        low = base.weight.to(LOW)
    optimizer = torch.optim.Adam([down, up], lr=1e-2)
    for step in range(3):
        given = normal(8, 16, seed=step)
        (functional.linear(given.to(LOW), low).float() + given @ down.T @ up.T).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return up.detach()


def idle_expert() -> torch.Tensor:
    """An expert to which no token goes has a gradient of zero, and weight decay that bfloat16 does not see."""
    experts = seeded(lambda: nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])).to(LOW)
    optimizer = torch.optim.SGD(experts.parameters(), lr=0.5, weight_decay=1e-4)
    for step in range(4):
        given = normal(16, 8, seed=step).to(LOW)
        nobody = given[:0]
        loss = (experts[0](given) - given).float().square().mean() + experts[1](nobody).float().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return experts[0].weight.detach()


def raw_intensities() -> torch.Tensor:
    """Whole numbers up to a thousand, as a scanner has them, into a convolution: they are measured, not counted."""
    images = (1000 * normal(8, 3, 12, 12)).round()
    model = seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 4)))
    with torch.autocast("cpu", dtype=LOW):
        logits = model(images)
    functional.cross_entropy(logits.float() / 1000, torch.arange(8) % 4).backward()
    return model[0].weight.grad


def sparse_code() -> torch.Tensor:
    """The thirty-two largest of 512 activations: which of several equals is the last, no reconstruction shows."""
    encode, decode = seeded(lambda: (nn.Linear(64, 512), nn.Linear(512, 64)))
    encode, decode = encode.to(LOW), decode.to(LOW)
    active, units = encode(normal(256, 64).to(LOW)).topk(32, -1)
    return decode(torch.zeros(256, 512, dtype=LOW).scatter(-1, units, active))


IDIOMS = (discounted_returns, gates_in_place, softmax_written_out, textbook_compensation, whitened, evaluated_in_half, adapted_by_hand, idle_expert,
          raw_intensities, sparse_code)  # fmt: skip
