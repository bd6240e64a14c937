"""Healthy programs that compress gradients and vectors while they train, frozen before precheck was run on them."""

from __future__ import annotations

import torch
from float8_by_hand import LOW, normal
from torch.nn import functional
from whole_trainings import draws


def one_bit_of_momentum() -> torch.Tensor:
    """1-bit Adam: two workers and a server, each with its own errors, after a few steps in full that fix the second moment."""
    w, momentum, variance = normal(256), torch.zeros(256), torch.zeros(256)
    errors, of_server = [torch.zeros(256), torch.zeros(256)], torch.zeros(256)
    for step in range(10):
        gradients = [w - 1 + 0.3 * normal(256, seed=2 * step + rank) for rank in range(2)]
        if step < 4:
            g = (gradients[0] + gradients[1]) / 2
            momentum, variance = 0.9 * momentum + 0.1 * g, 0.99 * variance + 0.01 * g * g
        else:
            sent = []
            for rank, g in enumerate(gradients):
                given = 0.9 * momentum + 0.1 * g + errors[rank]
                scale = given.norm() / 16
                sent.append(torch.where(given >= 0, scale, -scale))
                errors[rank] = given - sent[rank]
            mean = (sent[0] + sent[1]) / 2 + of_server
            scale = mean.norm() / 16
            momentum = torch.where(mean >= 0, scale, -scale)
            of_server = mean - momentum
        w = w - 0.02 * momentum / (variance.sqrt() + 1e-4)
    return w.to(LOW)


def levels_of_a_norm() -> torch.Tensor:
    """QSGD: magnitudes over the norm of a bucket are rounded by chance to 15 levels, and signs are sent beside them."""
    w, rng = normal(8, 64), draws(1)
    for step in range(6):
        g = w + 0.5 * normal(8, 64, seed=step + 2)
        norm = g.norm(dim=1, keepdim=True)
        level = g.abs() / norm * 15
        low = level.floor()
        codes = (low + (torch.rand(8, 64, generator=rng) < level - low)).to(torch.uint8)
        w = w - 0.1 * torch.sign(g) * codes.float() * norm / 15
    return w.to(LOW)


def codebook_that_follows() -> torch.Tensor:
    """VQ-VAE: the nearest of 32 vectors, gradients that pass, and a codebook that follows the mean of its vectors."""
    encode, decode = (normal(8, 16, seed=1) / 4).requires_grad_(), (normal(16, 8, seed=2) / 3).requires_grad_()
    book, counts, sums = normal(32, 8, seed=3), torch.ones(32), normal(32, 8, seed=3)
    optimizer = torch.optim.Adam([encode, decode], lr=1e-2)
    for step in range(6):
        x = normal(64, 16, seed=step + 4)
        z = x @ encode.t()
        place = torch.cdist(z.detach(), book).argmin(1)
        held = z + (book[place] - z).detach()
        loss = (held @ decode.t() - x).square().mean() + 0.25 * (z - book[place]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        one = functional.one_hot(place, 32).float()
        counts, sums = 0.9 * counts + 0.1 * one.sum(0), 0.9 * sums + 0.1 * one.t() @ z.detach()
        book = sums / counts[:, None]
    return held.detach().to(LOW)


def factors_in_int8() -> torch.Tensor:
    """PowerSGD: a gradient is sent as two thin factors, the first one orthonormal, both in int8 by columns; what is lost is added to the next one."""
    w, error, q = normal(32, 24), torch.zeros(32, 24), normal(24, 4, seed=1)

    def sent(t: torch.Tensor) -> torch.Tensor:
        scale = t.abs().amax(0) / 127
        return torch.round(t / scale).to(torch.int8).float() * scale

    for step in range(8):
        given = w - normal(32, 4, seed=2) @ normal(4, 24, seed=3) + 0.05 * normal(32, 24, seed=step + 4) + error
        p = sent(torch.linalg.qr(given @ q).Q)
        q = sent(given.t() @ p)
        error = given - p @ q.t()
        w = w - 0.2 * p @ q.t()
    return w.to(LOW)


HEALTHY = (one_bit_of_momentum, levels_of_a_norm, codebook_that_follows, factors_in_int8)
