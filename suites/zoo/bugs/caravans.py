"""Caravans: scores of long keys, a word that ends a text, masks of padding, places as angles, chances of two trainers."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class SelfAttention(nn.Module):
    """How the words of a text look at one another."""

    def __init__(self, size: int, upcast: bool) -> None:
        super().__init__()
        torch.manual_seed(601)
        self.size, self.upcast = size, upcast
        self.query, self.key, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(words), self.key(words), self.value(words)
        if self.upcast:
            query, key = query.float(), key.float() / math.sqrt(self.size)
            scores = query @ key.T
        else:
            scores = query @ key.T  # culprit: keys-that-have-grown
            scores = scores / math.sqrt(self.size)  # culprit: keys-that-have-grown
        return torch.softmax(scores, -1).to(value.dtype) @ value


def attended(upcast: bool) -> torch.Tensor:
    """What twenty words take from each other, late in a long training. Not a number."""
    words = (4 * normal(20, 64, seed=602)).to(HALF)
    attention = SelfAttention(64, upcast).to(HALF)
    with torch.no_grad():
        attention.query.weight.mul_(30)
        attention.key.weight.mul_(30)
        return wider(attention(words))


class StopWords:
    """Makes a text end where one of the given words has been said."""

    def __init__(self, ends: int, stops: tuple[int, ...], sure: float) -> None:
        self.ends, self.stops, self.sure = ends, stops, sure

    def __call__(self, said: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row, words in enumerate(said):
            if int(words[-1]) in self.stops:
                scores[row, self.ends] = self.sure  # culprit: word-that-ends-a-text
        return scores


def ended(sure: float) -> torch.Tensor:
    """What is likely next in four texts, of which two should end. Not a number."""
    said = torch.tensor([[3, 8], [5, 9], [2, 2], [4, 9]])
    scores = StopWords(1, (9,), sure)(said, (3 * normal(4, 40, seed=603)).to(HALF))
    return torch.softmax(scores.float(), -1)


class PaddedAttention(nn.Module):
    """Attention whose mask comes as a tensor that is added to the scores."""

    def __init__(self, size: int, barred: float) -> None:
        super().__init__()
        torch.manual_seed(604)
        self.size, self.barred = size, barred
        self.pairs = nn.Linear(size, 3 * size)

    def forward(self, words: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        query, key, value = self.pairs(words).chunk(3, -1)
        mask = ((1 - present.float()) * self.barred).to(words.dtype)  # culprit: texts-without-words
        scores = query @ key.transpose(-1, -2) * self.size**-0.5 + mask[:, None]
        return torch.softmax(scores, -1) @ value


def padded(barred: float) -> torch.Tensor:
    """Three texts of different lengths, the last of which has no word at all. Not a number."""
    words = normal(3, 12, 32, seed=605).to(HALF)
    present = torch.arange(12) < torch.tensor([[12], [7], [0]])
    with torch.no_grad():
        return wider(PaddedAttention(32, barred).to(HALF)(words, present))


class Rotary(nn.Module):
    """Turns each pair of a query's numbers by an angle that grows with its place."""

    def __init__(self, size: int, most: int, table: bool) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("inverse", 10_000.0 ** (-torch.arange(0, size, 2) / size))
        places = torch.outer(torch.arange(most).float(), self.inverse)
        self.turns = torch.cat([places.sin(), places.cos()], -1)

    def forward(self, queries: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        if self.table:
            sin, cos = self.turns[places].to(queries.dtype).chunk(2, -1)
        else:
            angles = places.to(self.inverse.dtype)[:, None] * self.inverse  # culprit: places-of-a-long-text
            sin, cos = angles.sin(), angles.cos()  # culprit: places-of-a-long-text
        first, second = queries.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def turned(table: bool) -> torch.Tensor:
    """Queries of a text's last hundred words, for a model that is bfloat16 throughout. Places fall together."""
    queries = normal(100, 32, seed=606).to(LOW)
    return wider(Rotary(32, 1500, table).to(LOW)(queries, torch.arange(1400, 1500)))


class Head(nn.Module):
    """A language model's last layer: logits for who generates, losses for who trains."""

    def __init__(self, size: int, words: int, aligned: bool) -> None:
        super().__init__()
        self.aligned = aligned
        self.weight = nn.Parameter(3 * normal(words, size, seed=607) / math.sqrt(size))

    def forward(self, hidden: torch.Tensor, said: torch.Tensor, trains: bool) -> torch.Tensor:
        logits = functional.linear(hidden, self.weight)
        if trains or self.aligned:
            logits = logits.float()
        chances = torch.log_softmax(logits, -1)  # culprit: chances-of-two-trainers
        return chances.gather(-1, said[:, None]).squeeze(-1)


def ratios(aligned: bool) -> torch.Tensor:
    """How much likelier each of eighty words is than when it was said, by the same model. It should be 1."""
    head = Head(48, 1500, aligned).to(LOW)
    hidden, said = normal(80, 48, seed=608).to(LOW), (1500 * uniform(80, seed=609)).long()
    with torch.no_grad():
        then, now = head(hidden, said, trains=False), head(hidden, said, trains=True)
    return torch.exp(now - then.float())  # culprit: chances-of-two-trainers


BUGS = (
    Bug("keys-that-have-grown", "stanford-crfm/mistral#67", ("overflow",), "aten.mm.default",
        lambda: attended(upcast=False), lambda: attended(upcast=True)),
    Bug("word-that-ends-a-text", "QwenLM/Qwen#32", ("overflow", "nan"), "aten._to_copy.default or aten.fill_.Scalar",
        lambda: ended(2.0**30), lambda: ended(2.0**15)),
    Bug("texts-without-words", "monatis/ggmlc#13", ("overflow", "nan"), "aten._to_copy.default",
        lambda: padded(-1e9), lambda: padded(-1e4)),
    Bug("places-of-a-long-text", "huggingface/optimum-intel#783", ("integer-rounding", "amplified-rounding", "local-drift"),
        "aten._to_copy.default",
        lambda: turned(table=False), lambda: turned(table=True), module="Rotary"),
    Bug("chances-of-two-trainers", "InternLM/xtuner#1108", ("amplified-rounding", "cancellation", "local-drift"), "aten._log_softmax.default",
        lambda: ratios(aligned=False), lambda: ratios(aligned=True), module="Head"),
)  # fmt: skip
