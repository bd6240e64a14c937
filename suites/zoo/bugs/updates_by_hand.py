"""Trainings that do something of their own between gradient and weight."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal
from bugs.loops import Loop

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def adversary(wide: bool) -> torch.Tensor:
    """An embedding is moved along its gradient over the gradient's norm, which is at least 1e-8. A certain sentence has no gradient in half."""
    words, head = normal(3, 4, 8).half(), (0.5 * normal(8, 2, seed=1)).half()
    words[1] = 20 * (head[:, 0] - head[:, 1]).sign()
    moved = torch.zeros_like(words).requires_grad_()
    logits = (words + moved).mean(1) @ head
    slope = torch.autograd.grad(functional.cross_entropy(logits, torch.zeros(3).long()), moved)[0]
    slope = slope.float() if wide else slope
    norm = torch.clamp(slope.reshape(3, -1).norm(dim=1), min=1e-8)  # culprit: adversarial-norm
    return (moved.detach() + 0.1 * slope / norm[:, None, None]).float()  # culprit: adversarial-norm


def synchronised(restored: bool, rounds: int = 120) -> torch.Tensor:
    """An adapter is added to bfloat16 weights for each round of sampling, and taken away again; what is left of each round adds up."""
    weight, kept = (0.02 * normal(32, 32)).to(LOW), (0.02 * normal(32, 32)).to(LOW)
    down, up = 0.05 * normal(4, 32, seed=1), torch.zeros(32, 4)
    for step in range(rounds):
        up += 0.003 * normal(32, 4, seed=2 + step)
        change = (2 * up @ down).to(LOW)
        weight += change  # culprit: merge-cycles
        _ = normal(2, 32).to(LOW) @ weight.T
        if restored:
            weight = kept.clone()
        else:
            weight -= change  # culprit: merge-cycles
    return normal(8, 32, seed=1) @ (weight.float() - kept.float() + torch.eye(32) * 0.02)


def orthogonal(wide: bool) -> torch.Tensor:
    """Muon's step for a gradient of 1e-7: cast to half precision before it is divided by its norm."""
    gradient = 1e-7 * normal(16, 24)
    x = (gradient / (gradient.norm() + 1e-12)).half() if wide else gradient.half()  # culprit: late-normalisation
    x = x if wide else x / (x.norm() + 1e-7)  # culprit: late-normalisation
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.float()


def skipping(updated: bool) -> list[torch.Tensor]:
    """Steps whose gradient is too large are left out, and with them the scaler's update: the next gradient cannot be unscaled."""
    loop = Loop()
    loop.y[3] += 40.0
    for turn in range(4):
        loop.backward() if turn % 2 == 0 else (loop.optimizer.zero_grad(), loop.scaler.scale(loop.loss(slice(4, 16))).backward())
        loop.scaler.unscale_(loop.optimizer)  # culprit: skipped-large-step
        norm = nn.utils.clip_grad_norm_(loop.model.parameters(), 2.0)
        if float(norm) > 4.0:
            if updated:
                loop.scaler.update()
            continue  # culprit: skipped-large-step
        loop.step()
    return [loop.weight]


BUGS = (
    Bug("adversarial-norm", "zhuchen03/FreeLB#8", ("vanished-constant", "nan"), "aten.clamp.default", lambda: adversary(False),
        lambda: adversary(True)),
    Bug("merge-cycles", "huggingface/trl#6688", ("absorption", "accumulated-drift", "amplified-rounding"), "aten.sub_.Tensor",
        lambda: synchronised(False), lambda: synchronised(True)),
    Bug("late-normalisation", "openvpi/DiffSinger#301", ("underflow",), "aten._to_copy.default", lambda: orthogonal(False),
        lambda: orthogonal(True)),
    Bug("skipped-large-step", "Haian-Jin/LVSM#19", ("scaler-order",), "", lambda: skipping(False), lambda: skipping(True), phase="scaler",
        raises=RuntimeError),
)  # fmt: skip
