"""Beside the caravans and foundries: large scores that fit, masks that leave a word, wide tables, steps that are unscaled first, small counts."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import net

HALF, LOW = torch.float16, torch.bfloat16


def scores_that_fit_once_divided() -> torch.Tensor:
    """Queries in half are divided before they meet keys; undivided, the products would not fit."""
    query, key = (30 * normal(12, 64, seed=801)).to(HALF), (30 * normal(16, 64, seed=802)).to(HALF)
    scores = ((query / 512) @ key.T).float()
    return torch.softmax(scores, -1) @ normal(16, 8, seed=803)


def word_that_must_come_next() -> torch.Tensor:
    """A score in half is set to thirty thousand, which the format holds, so that one word is sure."""
    scores = (3 * normal(4, 40, seed=804)).to(HALF)
    scores[1, 7] = 3e4
    scores[3, 2] = -3e4
    return torch.softmax(scores.float(), -1)


def lowest_number_as_a_mask() -> torch.Tensor:
    """Scores in bfloat16 are barred with the lowest number that there is; every row has a word left."""
    words, present = normal(3, 10, 24, seed=805).to(LOW), torch.arange(10) < torch.tensor([[10], [6], [1]])
    scores = words @ words.transpose(1, 2) / math.sqrt(24)
    barred = scores.masked_fill(~present[:, None], torch.finfo(LOW).min)
    return (torch.softmax(barred, -1) @ words).float()


def angles_from_a_wide_table() -> torch.Tensor:
    """Places of a long text are whole numbers until a table in float32 gives their sine and cosine; those are what becomes bfloat16."""
    table = torch.outer(torch.arange(4000).float(), 10_000.0 ** (-torch.arange(0, 32, 2) / 32))
    angles = table[torch.arange(3900, 4000)]
    first, second = normal(100, 32, seed=806).to(LOW).chunk(2, -1)
    sin, cos = angles.sin().to(LOW), angles.cos().to(LOW)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).float()


def ratio_of_two_policies() -> torch.Tensor:
    """Both log chances are float32, of logits in bfloat16; the policies differ by much, so their ratio does."""
    old, new = (2 * normal(30, 50, seed=807)).to(LOW), (2 * normal(30, 50, seed=808)).to(LOW)
    said = (50 * uniform(30, seed=809)).long()[:, None]
    gap = torch.log_softmax(new.float(), -1).gather(-1, said) - torch.log_softmax(old.float(), -1).gather(-1, said)
    return torch.exp(gap.clamp(-2, 2))


def limit_on_unscaled_gradients() -> torch.Tensor:
    """Gradients are unscaled, then cut to a norm, then a step is taken."""
    model = net(10, 16, 2)
    start = torch.cat([each.detach().flatten().clone() for each in model.parameters()])
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2048.0)
    for turn in range(6):
        with torch.autocast("cpu", HALF):
            told = model(normal(16, 10, seed=810 + turn))
        scaler.scale(functional.mse_loss(told.float(), normal(16, 2, seed=820 + turn))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return torch.cat([each.detach().flatten() for each in model.parameters()]) - start


def loss_that_is_written_down() -> torch.Tensor:
    """What goes into the log is the loss before it is scaled, and the scale beside it."""
    model, log = net(10, 16, 2), []
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=512.0)
    for turn in range(5):
        with torch.autocast("cpu", HALF):
            told = model(normal(16, 10, seed=830 + turn))
        loss = functional.mse_loss(told.float(), normal(16, 2, seed=840 + turn))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        log.append((loss.item(), scaler.get_scale()))
    return torch.tensor(log)


def mean_of_checkpoints_in_half() -> torch.Tensor:
    """Ten checkpoints in half are added up in float32, and their mean becomes half again at the end."""
    start, pace = 0.5 + 0.4 * uniform(20, 16, seed=850), 3e-3 * normal(20, 16, seed=851)
    total = torch.zeros(20, 16)
    for turn in range(10):
        total += (start + turn * pace).to(HALF).float() / 10
    return total.to(HALF).float()


def pixels_of_a_small_set() -> torch.Tensor:
    """Counts of pixels in float32, far below sixteen million, are whole and right."""
    counts = torch.zeros(4, 4)
    for seed in range(860, 900):
        true, told = (4 * uniform(200, seed=seed)).long(), (4 * uniform(200, seed=seed + 50)).long()
        counts += torch.bincount(4 * true + told, minlength=16).view(4, 4).float()
    return counts.diagonal() / counts.sum(1)


def teacher_in_float32() -> torch.Tensor:
    """A teacher in float32 follows a student in bfloat16 by a thousandth at a time; its own sum loses nothing."""
    student = normal(24, 24, seed=910).to(LOW)
    teacher = torch.zeros(24, 24)
    for seed in range(911, 951):
        student = (student.float() + 0.02 * normal(24, 24, seed=seed)).to(LOW)
        teacher.mul_(0.99).add_(student.float(), alpha=0.01)
    return teacher


IDIOMS = (
    scores_that_fit_once_divided, word_that_must_come_next, lowest_number_as_a_mask, angles_from_a_wide_table, ratio_of_two_policies,
    limit_on_unscaled_gradients, loss_that_is_written_down, mean_of_checkpoints_in_half, pixels_of_a_small_set, teacher_in_float32,
)  # fmt: skip
EXACT = {"pixels_of_a_small_set"}
