"""Beside the quays: rewards, masks, steps of Adam, sums of a loss, scales and norms that their formats hold."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def answers_of_different_worth() -> torch.Tensor:
    """How much better each answer is than others to its prompt; the spread comes of squares, and is as large as the rewards."""
    prompts, rewards = torch.arange(16).repeat_interleave(8), normal(128, seed=6301)
    means = torch.zeros(16).index_add_(0, prompts, rewards) / 8
    squares = torch.zeros(16).index_add_(0, prompts, rewards.square())
    spread = ((squares - 8 * means.square()) / 7).clamp_min(0).sqrt()
    return (rewards - means[prompts]) / (spread[prompts] + 1e-6)


def masks_of_small_pictures() -> torch.Tensor:
    """A dice loss in half on pictures of 40 by 40, whose sums half holds."""
    torch.manual_seed(6311)
    net = nn.Conv2d(3, 1, 3, padding=1).to(HALF)
    masks = (torch.arange(40)[None, None, :, None] < torch.tensor([30, 12])[:, None, None, None]).expand(2, 1, 40, 40).to(HALF)
    with torch.no_grad():
        found = torch.sigmoid(net(normal(2, 3, 40, 40, seed=6312).to(HALF))).flatten(1)
        masks = masks.flatten(1)
        return (1 - (2 * (found * masks).sum(1) + 1) / (found.square().sum(1) + masks.square().sum(1) + 1)).float()


def question_with_a_word() -> torch.Tensor:
    """Attention in half under a mask of the lowest number, added to scores; each question has a word at least."""
    torch.manual_seed(6321)
    query, key, value = (nn.Linear(16, 16).to(HALF) for _ in range(3))
    words, counts = normal(3, 8, 16, seed=6322).to(HALF), torch.arange(8)[None] < torch.tensor([8, 3, 1])[:, None]
    with torch.no_grad():
        mask = (1 - counts.to(HALF)) * torch.finfo(HALF).min
        scores = query(words) @ key(words).transpose(1, 2) / 4 + mask[:, None]
        return (scores.softmax(-1) @ value(words)).float()


def rows_that_no_word_uses_yet() -> torch.Tensor:
    """A table in float32 after three steps of Adam by hand, most of whose rows have no gradient; words are read in half."""
    torch.manual_seed(6331)
    table = nn.Embedding(40, 8)
    first, second = torch.zeros_like(table.weight), torch.zeros_like(table.weight)
    for step in range(1, 4):
        (table(torch.arange(10) * 4).to(HALF) * normal(10, 8, seed=6331 + step).to(HALF)).sum().backward()
        with torch.no_grad():
            first.mul_(0.9).add_(table.weight.grad, alpha=0.1)
            second.mul_(0.999).addcmul_(table.weight.grad, table.weight.grad, value=0.001)
            table.weight.sub_(1e-2 * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8))
            table.weight.grad = None
    return table.weight.detach()


def loss_that_is_logged_each_time() -> torch.Tensor:
    """The loss of a model in bfloat16, added up in float32 over two hundred steps."""
    torch.manual_seed(6341)
    model, total = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 10)).to(LOW), torch.tensor(0.0)
    for step in range(200):
        x = normal(16, 24, seed=6342 + step).to(LOW)
        total += functional.cross_entropy(model(x), (10 * uniform(16, seed=7342 + step)).long()).detach()
    return total / 200


def rows_of_like_weights() -> torch.Tensor:
    """A layer whose weights are bytes with a scale in half for each row."""
    torch.manual_seed(6351)
    weight = nn.Linear(48, 12, bias=False).weight.detach().to(HALF)
    scale = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scale).round().clamp(-127, 127).to(torch.int8)
    return functional.linear(normal(20, 48, seed=6352), codes.float() * scale.float())


def places_that_are_black_in_bfloat16() -> torch.Tensor:
    """Channels of each place made one long in bfloat16, which holds the least length that a black place is divided by."""
    torch.manual_seed(6361)
    conv = nn.Conv2d(4, 16, 3, padding=1, bias=False).to(LOW)
    frames = functional.pad(normal(2, 4, 8, 8, seed=6362), (4, 4, 4, 4)).to(LOW)
    with torch.no_grad():
        return functional.silu(functional.normalize(conv(frames), dim=1) * 4).float()


def requests_at_low_temperatures() -> torch.Tensor:
    """Chances of words in half at temperatures down to a tenth, of which some are ruled out by minus infinity."""
    torch.manual_seed(6371)
    head = nn.Linear(32, 60).to(HALF)
    with torch.no_grad():
        logits = head((4 * normal(4, 32, seed=6372)).to(HALF)) / torch.tensor([1.0, 0.7, 0.1, 0.2], dtype=HALF)[:, None]
        return logits.masked_fill(torch.arange(60) % 3 == 0, -torch.inf).softmax(-1).float()


def photos_of_many_places() -> torch.Tensor:
    """How far queries are from vectors in half that have nothing to do with them, by norms and products."""
    vectors, queries = normal(100, 64, seed=6381).to(HALF), normal(10, 64, seed=6382).to(HALF)
    return torch.cdist(queries, vectors, compute_mode="use_mm_for_euclid_dist").float().topk(3, largest=False)[0]


def boxes_that_are_unsure() -> torch.Tensor:
    """A focal loss in half of boxes whose scores are between a tenth and nine tenths."""
    torch.manual_seed(6391)
    logits = nn.Linear(16, 6).to(HALF)(normal(100, 16, seed=6392).to(HALF)).detach()
    sure, targets = torch.sigmoid(logits), functional.one_hot((6 * uniform(100, seed=6393)).long(), 6).to(HALF)
    right, wrong = -0.25 * (1 - sure) ** 2 * sure.log(), -0.75 * sure**2 * (1 - sure).log()
    return (targets * right + (1 - targets) * wrong).sum(-1).float().mean()


IDIOMS = (
    answers_of_different_worth,
    masks_of_small_pictures,
    question_with_a_word,
    rows_that_no_word_uses_yet,
    loss_that_is_logged_each_time,
    rows_of_like_weights,
    places_that_are_black_in_bfloat16,
    requests_at_low_temperatures,
    photos_of_many_places,
    boxes_that_are_unsure,
)
EXACT = ("answers_of_different_worth",)
