"""Sequences and their structure, each trained as a careful engineer does: recursions, partition functions and losses in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from bugs.bug import normal, uniform, wider
from torch import nn
from torch.nn import functional

from healthy.crafts import all_of, made, net

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def whole(most: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers below `most`."""
    return (most * uniform(*shape, seed=seed)).long().clamp_max(most - 1)


def trained(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], loss: Callable[[Any], torch.Tensor], precision: str, rate: float = 3e-3, steps: int = 3
) -> torch.Tensor:
    """The weights after some steps of Adam: under autocast, with a GradScaler for half, in bfloat16 with float32 masters, or in float32."""
    model = made(model)
    masters = [each.detach().clone().requires_grad_() for each in model.parameters()] if precision == "bf16-master" else list(model.parameters())
    if precision == "bf16-master":
        model.to(LOW)
        inputs = tuple(each.to(LOW) if each.is_floating_point() else each for each in inputs)
    optimizer = torch.optim.Adam(masters, rate)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=precision == "16-mixed")
    for _ in range(steps):
        with torch.autocast("cpu", HALF if precision == "16-mixed" else LOW, enabled=precision.endswith("mixed")):
            out = model(*inputs)
        model.zero_grad()
        scaler.scale(loss(out)).backward()
        if precision == "bf16-master":
            for master, each in zip(masters, model.parameters(), strict=True):
                master.grad = None if each.grad is None else each.grad.float()
        scaler.step(optimizer)
        scaler.update()
        if precision == "bf16-master":
            with torch.no_grad():
                for master, each in zip(masters, model.parameters(), strict=True):
                    each.copy_(master)
    return all_of(model)


def segments_of_a_recording() -> torch.Tensor:
    """A semi-Markov model: a segment's score is a difference of cumulative sums, which are float32 and start at the recording's mean."""

    def loss(scores: torch.Tensor) -> torch.Tensor:
        scores = scores.float()
        sums = functional.pad((scores - scores.mean(1, keepdim=True)).cumsum(1), (0, 0, 1, 0))
        reached, best = [torch.zeros(len(scores))], whole(4, 6, 12, seed=3)
        for end in range(1, 13):
            ways = [reached[start][:, None] + sums[:, end] - sums[:, start] for start in range(max(0, end - 4), end)]
            reached.append(torch.logsumexp(torch.cat(ways, 1), 1))
        told = (scores - scores.mean(1, keepdim=True)).gather(2, best[..., None]).sum((1, 2))
        return (reached[-1] - told).mean()

    return trained(net(8, 24, 4), (normal(6, 12, 8),), loss, "bf16-mixed")


def text_along_speech() -> torch.Tensor:
    """A monotonic alignment of text and frames: distances in float32, and the sum over all ways as logarithms."""

    class Aligner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text, self.speech = net(12, 16), net(20, 16)

        def forward(self, text: torch.Tensor, speech: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.text(text), self.speech(speech)

    def loss(pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        text, speech = (each.float() for each in pair)
        scores = torch.log_softmax(-0.05 * (speech[:, :, None] - text[:, None]).square().sum(-1), -1)
        here = functional.pad(scores[:, 0, :1], (0, scores.shape[2] - 1), value=-1e4)
        for frame in range(1, scores.shape[1]):
            moved = functional.pad(here[:, :-1], (1, 0), value=-1e4)
            here = torch.logaddexp(here, moved) + scores[:, frame]
        return -here[:, -1].mean() / scores.shape[1]

    return trained(Aligner(), (normal(4, 6, 12), normal(4, 18, 20, seed=1)), loss, "16-mixed")


def soft_edits_of_words() -> torch.Tensor:
    """A soft edit distance of what a network reads and what was written, by soft minima in float32."""
    written = whole(9, 5, 6, seed=4)

    def loss(out: torch.Tensor) -> torch.Tensor:
        cost = -torch.log_softmax(out.float(), -1)
        rows, columns = 8, 6
        table = [[torch.zeros(5)] * (columns + 1) for _ in range(rows + 1)]
        for i in range(rows + 1):
            for j in range(columns + 1):
                ways = []
                if i:
                    ways.append(table[i - 1][j] + cost[:, i - 1, 0])
                if j:
                    ways.append(table[i][j - 1] + 2.0)
                if i and j:
                    ways.append(table[i - 1][j - 1] + cost[:, i - 1].gather(1, written[:, j - 1 : j])[:, 0])
                if ways:
                    table[i][j] = -torch.logsumexp(-torch.stack(ways), 0)
        return table[rows][columns].mean()

    return trained(net(10, 24, 9), (normal(5, 8, 10),), loss, "bf16-mixed")


class TreeCells(nn.Module):
    """A binary tree of LSTM cells, joined two by two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.join, self.head, self.width = nn.Linear(2 * width, 5 * width), nn.Linear(width, 3), width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, cell = x, torch.zeros_like(x, dtype=WIDE)
        while hidden.shape[1] > 1:
            gates = self.join(hidden.unflatten(1, (-1, 2)).flatten(2)).float()
            let, left, right, out, new = gates.chunk(5, -1)
            kept = torch.sigmoid(left) * cell[:, 0::2] + torch.sigmoid(right) * cell[:, 1::2]
            cell = kept + torch.sigmoid(let) * torch.tanh(new)
            hidden = (torch.sigmoid(out) * torch.tanh(cell)).to(x.dtype)
        return self.head(hidden[:, 0])


def sentiment_of_trees() -> torch.Tensor:
    """Cells of a tree are float32, where layers and what is passed on are bfloat16; weights have float32 masters."""
    wanted = whole(3, 12, seed=5)
    return trained(TreeCells(16), (normal(12, 8, 16),), lambda out: functional.cross_entropy(out.float(), wanted), "bf16-master")


class Pointer(nn.Module):
    """Points at one town after another; towns that were seen are masked with the least number of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.query, self.step = net(2, 24, 24), nn.Linear(24, 24), nn.Linear(48, 24)

    def forward(self, towns: torch.Tensor) -> torch.Tensor:
        known = self.encode(towns)
        seen, state, told = torch.zeros(towns.shape[:2], dtype=torch.bool), known.mean(1), []
        for _ in range(towns.shape[1]):
            scores = 5 * torch.tanh((known @ self.query(state)[..., None]).squeeze(-1).float() / 24**0.5)
            shares = torch.log_softmax(scores.masked_fill(seen, torch.finfo(WIDE).min), -1)
            chosen = shares.argmax(-1)
            told.append(shares.gather(1, chosen[:, None])[:, 0])
            seen = seen | functional.one_hot(chosen, towns.shape[1]).bool()
            state = torch.tanh(self.step(torch.cat([known[torch.arange(len(known)), chosen].to(state.dtype), state], -1)))
        return torch.stack(told, 1)


def tours_by_pointing() -> torch.Tensor:
    """A pointer over seven towns; probabilities of a tour are sums of logarithms in float32."""
    return trained(Pointer(), (uniform(6, 7, 2),), lambda told: (told.sum(1) * normal(6, seed=3)).mean(), "bf16-mixed")


def heads_of_a_sentence() -> torch.Tensor:
    """The matrix-tree theorem: log-determinants of Laplacians of up to seven words, in float64, from scores in half."""
    head = torch.stack([torch.arange(6) for _ in range(4)])

    class Biaffine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.between = net(10, 16), net(10, 16), nn.Linear(16, 16, bias=False)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.between(self.up(words)) @ self.down(words).mT

    def loss(scores: torch.Tensor) -> torch.Tensor:
        arcs = scores.double().tanh()
        weights = arcs.exp() * (1 - torch.eye(7, dtype=DOUBLE))
        laplacian = torch.diag_embed(weights.sum(1)) - weights
        whole_weight = torch.linalg.slogdet(laplacian[:, 1:, 1:]).logabsdet
        told = arcs[torch.arange(4)[:, None], head, torch.arange(1, 7)].sum(1)
        return (whole_weight - told).mean().float()

    return trained(Biaffine(), (normal(4, 7, 10),), loss, "16-mixed")


def grammar_of_a_toy_language() -> torch.Tensor:
    """The inside algorithm of a grammar with four symbols: all sums over splits and rules are logarithms in float32."""
    rules, words = (2 * normal(4, 16)).requires_grad_(), (2 * normal(4, 9, seed=1)).requires_grad_()
    optimizer, text = torch.optim.Adam([rules, words], 0.05), whole(9, 6, 7, seed=2)
    for _ in range(3):
        log_rules, log_words = torch.log_softmax(rules, 1).view(4, 4, 4), torch.log_softmax(words, 1)
        chart = {(place, place + 1): log_words[:, text[:, place]].T for place in range(7)}
        for length in range(2, 8):
            for first in range(8 - length):
                last, splits = first + length, []
                for split in range(first + 1, last):
                    both = chart[first, split][:, None, :, None] + chart[split, last][:, None, None, :] + log_rules
                    splits.append(torch.logsumexp(both.flatten(2), -1))
                chart[first, last] = torch.logsumexp(torch.stack(splits), 0)
        loss = -chart[0, 7][:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([rules.detach().flatten(), words.detach().flatten()])


def most_likely_states() -> torch.Tensor:
    """Viterbi over emissions of a network in bfloat16: scores of paths are added up in float32, and paths are integers."""
    with torch.no_grad():
        emissions = torch.log_softmax(net(6, 24, 5).to(LOW)(normal(40, 6).to(LOW)).float(), -1)
    turns = torch.log_softmax(2 * torch.eye(5), -1)
    best, back = emissions[0], []
    for step in emissions[1:]:
        best, came = (best[:, None] + turns).max(0)
        best = best + step
        back.append(came)
    path = [best.argmax()]
    for came in reversed(back):
        path.append(came[path[-1]])
    return torch.cat([best, torch.stack(path[::-1]).float()])


class SkipGrams(nn.Module):
    """Words and their neighbours as vectors."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.inside, self.outside = nn.Embedding(words, 16), nn.Embedding(words, 16)

    def forward(self, word: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = self.inside(word)[:, None]
        return (known @ self.outside(near)[..., None]).flatten(), (known @ self.outside(far).mT).flatten()


def words_by_their_company() -> torch.Tensor:
    """Negative sampling: strangers are drawn by the power 3/4 of counts in float64, and losses are log-sigmoids in float32."""
    counts = (2000 * uniform(60) ** 3 + 1).double().floor()
    shares = counts**0.75 / (counts**0.75).sum()
    far = torch.multinomial(shares, 24 * 5, replacement=True, generator=torch.Generator().manual_seed(0)).view(24, 5)

    def loss(pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return -(functional.logsigmoid(pair[0].float()).mean() + 5 * functional.logsigmoid(-pair[1].float()).mean())

    return trained(SkipGrams(60), (whole(60, 24), whole(60, 24, 1, seed=1)[:, 0], far), loss, "16-mixed")


def words_by_a_huffman_tree() -> torch.Tensor:
    """A hierarchical softmax of sixteen words: signs along four levels, log-sigmoids in float32."""
    word = whole(16, 20, seed=6)
    bits = (word[:, None] >> torch.arange(3, -1, -1)) & 1
    nodes = torch.stack([(1 << level) - 1 + (word >> (4 - level)) for level in range(4)], 1)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return -functional.logsigmoid(out.float().gather(1, nodes) * (1 - 2 * bits)).sum(1).mean()

    return trained(net(12, 32, 15), (normal(20, 12),), loss, "bf16-mixed")


def smoothed_words_with_a_quiet_partition() -> torch.Tensor:
    """Label smoothing, and a small cost of the squared log-partition, in float32; weights in bfloat16 have float32 masters."""
    word = whole(30, 24, seed=7)

    def loss(out: torch.Tensor) -> torch.Tensor:
        logits = out.float()
        return functional.cross_entropy(logits, word, label_smoothing=0.1) + 1e-4 * torch.logsumexp(logits, -1).square().mean()

    return trained(net(16, 48, 30, activation=nn.GELU), (normal(24, 16),), loss, "bf16-master")


def teacher_that_follows_slowly() -> torch.Tensor:
    """A mean teacher in float32 with a decay of 0.999; student and teacher run under autocast, and the ramp of its weight is a Python number."""
    student = net(8, 24, 4)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer, x, labels = torch.optim.SGD(student.parameters(), 0.1, momentum=0.9), normal(32, 8), whole(4, 8, seed=2)
    for step in range(6):
        with torch.autocast("cpu", LOW):
            mine, theirs = student(x + 0.1 * normal(32, 8, seed=step)), teacher(x + 0.1 * normal(32, 8, seed=step + 50))
        like = (torch.softmax(mine.float(), -1) - torch.softmax(theirs.float(), -1)).square().mean()
        loss = functional.cross_entropy(mine[:8].float(), labels) + 10 * (step / 6) ** 2 * like
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for kept, each in zip(teacher.parameters(), student.parameters(), strict=True):
            kept.lerp_(each.detach(), 1e-3)
    return wider(all_of(teacher))


IDIOMS = (
    segments_of_a_recording, text_along_speech, soft_edits_of_words, sentiment_of_trees, tours_by_pointing, heads_of_a_sentence,
    grammar_of_a_toy_language, most_likely_states, words_by_their_company, words_by_a_huffman_tree, smoothed_words_with_a_quiet_partition,
    teacher_that_follows_slowly,
)  # fmt: skip
EXACT = ("grammar_of_a_toy_language",)
