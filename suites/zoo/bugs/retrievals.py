"""Search and ranking: neighbours in an index, matches that are passed on with their scores, and the quality of a ranking."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class NeighbourIndex:
    """Vectors, each with its squared length, which is computed once."""

    def __init__(self, items: torch.Tensor, direct: bool) -> None:
        self.items, self.direct = items, direct
        self.lengths = (items * items).sum(-1)

    def distances(self, query: torch.Tensor) -> torch.Tensor:
        if self.direct:
            return (self.items - query).square().sum(-1).sqrt()
        both = self.lengths + (query * query).sum()
        return (both - 2 * (self.items @ query)).clamp_min(0).sqrt()  # culprit: neighbours-in-a-tree

    def nearest(self, query: torch.Tensor, count: int) -> torch.Tensor:
        return self.distances(query).sort().values[:count]


def neighbours(dtype: torch.dtype, direct: bool, apart: float = 1e-3) -> torch.Tensor:
    """Distances from five photographs to their nearest among sixty shots of one scene, alike to three digits. Off by 9 %."""
    scene = normal(24)
    index = NeighbourIndex((scene + apart * normal(60, 24, seed=1)).to(dtype), direct)
    queries = (scene + apart * normal(5, 24, seed=2)).to(dtype)
    return torch.stack([index.nearest(query, 4) for query in queries])


def best_of_shards(scores: list[torch.Tensor], places: list[torch.Tensor], count: int, packed: bool) -> torch.Tensor:
    """The numbers of the best documents of all shards; each shard sends rows of score and number, as one matrix or as two."""
    if not packed:
        order = torch.cat(scores).argsort(descending=True)
        return torch.cat(places)[order[:count]]
    pairs = zip(scores, places, strict=True)
    rows = torch.cat([torch.stack([score, place.to(score.dtype)], -1) for score, place in pairs])  # culprit: rows-of-matches
    return rows[rows[:, 0].argsort(descending=True)][:count, 1].long()


def matches(dtype: torch.dtype, packed: bool, first: int = 40_000_000) -> torch.Tensor:
    """Vectors of the ten best documents of three shards, whose numbers begin at forty millions, where float32 holds every fourth. Off by 100 %."""
    documents = normal(300, 16).to(dtype)
    query = normal(16, seed=1).to(dtype)
    scores = [documents[start : start + 100] @ query for start in (0, 100, 200)]
    places = [first + torch.arange(start, start + 100) for start in (0, 100, 200)]
    return documents[best_of_shards(scores, places, 10, packed) - first]


def gained(relevance: torch.Tensor, shifted: bool) -> torch.Tensor:
    """The gain of an object, 2^relevance - 1; over the largest power of its row, which is the same for all orders, if `shifted`."""
    if shifted:
        highest = relevance.amax(-1, keepdim=True)
        return torch.exp2(relevance - highest) - torch.exp2(-highest)
    return 2**relevance - 1  # culprit: gain-of-many-ranks


def discounted(relevance: torch.Tensor, order: torch.Tensor, shifted: bool) -> torch.Tensor:
    place = torch.arange(2, relevance.shape[-1] + 2, device=relevance.device)
    return (gained(relevance, shifted).gather(-1, order) / torch.log2(place.to(relevance.dtype))).sum(-1)


def quality(scores: torch.Tensor, ranks: torch.Tensor, shifted: bool) -> torch.Tensor:
    """Normalised discounted cumulative gain, where an object's relevance is the number of those that are ranked below it."""
    relevance = (ranks.shape[-1] - 1 - ranks).to(scores.dtype)
    best = discounted(relevance, relevance.argsort(-1, descending=True), shifted)
    return discounted(relevance, scores.argsort(-1, descending=True), shifted) / best


def rankings(dtype: torch.dtype, shifted: bool, objects: int = 22) -> torch.Tensor:
    """The quality of eight orders of 22 objects in half; the gain of those beyond the sixteenth is infinite. NaN."""
    ranks = uniform(8, objects).argsort(-1)
    return wider(quality((-ranks + 3 * normal(8, objects, seed=1)).to(LOW).to(dtype), ranks, shifted))


BUGS = (
    Bug("neighbours-in-a-tree", "spotify/annoy#314", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: neighbours(WIDE, False),
        lambda: neighbours(WIDE, True), precision="32-true"),
    Bug("rows-of-matches", "jina-ai/serve#241", ("integer-rounding",), "aten._to_copy.default", lambda: matches(WIDE, True),
        lambda: matches(WIDE, False), precision="32-true"),
    Bug("gain-of-many-ranks", "kiudee/cs-ranking#32", ("overflow", "nan"), "aten.pow.Scalar", lambda: rankings(HALF, False),
        lambda: rankings(HALF, True)),
)  # fmt: skip
