"""Text, retrieval, serving and scoring around networks in low precision: counts are integers, scores and sums of scores are float32."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import made, net

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def pieces_of_words() -> torch.Tensor:
    """Byte pairs that are counted and merged in integers, before an embedding in bfloat16 sees them; a mean over pieces is float32."""
    text = (6 * uniform(400).square()).long()
    size = 6
    for _ in range(10):
        pairs, counts = torch.unique(text[:-1] * 64 + text[1:], return_counts=True)
        pair = pairs[counts.argmax()]
        hits = (text[:-1] * 64 + text[1:] == pair).nonzero().flatten().tolist()
        kept, merged = torch.ones(len(text), dtype=torch.bool), text.clone()
        for place in hits:
            if kept[place] and kept[place + 1] and merged[place] == text[place]:
                merged[place], kept[place + 1] = size, False
        text, size = merged[kept], size + 1
    table = normal(64, 16, seed=1).to(LOW)
    shares = torch.bincount(text, minlength=16).float() / len(text)
    return torch.cat([functional.embedding(text, table).float().mean(0), shares])


class Decoder(nn.Module):
    """One layer of attention over a cache of keys and values, which are kept in the format of the weights."""

    def __init__(self, words: int = 40, width: int = 32) -> None:
        super().__init__()
        self.words, self.mix, self.out = nn.Embedding(words, width), nn.Linear(width, 3 * width), nn.Linear(width, words)
        self.norm = nn.LayerNorm(width)

    def forward(self, word: torch.Tensor, cache: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        x = self.words(word)
        query, key, value = self.mix(self.norm(x)).chunk(3, -1)
        cache.append((key, value))
        keys, values = (torch.stack(each, -2) for each in zip(*cache, strict=True))
        return self.out(x + functional.scaled_dot_product_attention(query[..., None, :], keys, values).squeeze(-2))


def beams_over_a_cache() -> torch.Tensor:
    """Beams of a decoder in bfloat16: scores are log-softmaxes of float32 and are added up there, divided by a length that is an integer."""
    model, cache = made(Decoder()).to(LOW), []
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor([3]), cache).float(), -1)[0]
        total, words = scores.topk(4)
        cache = [(key.expand(4, -1), value.expand(4, -1)) for key, value in cache]
        for _ in range(6):
            scores = total[:, None] + torch.log_softmax(2 * model(words, cache).float(), -1)
            total, places = scores.flatten().topk(4)
            beams, words = places // 40, places % 40
            cache = [(key[beams], value[beams]) for key, value in cache]
    return total / 7


def drafts_in_a_tree() -> torch.Tensor:
    """Seven drafted words in a tree that are verified at once: each sees its ancestors alone, by a mask of the least number of bfloat16."""
    parents, seen = [-1, 0, 0, 1, 1, 2, 2], torch.zeros(7, 7, dtype=torch.bool)
    for place, parent in enumerate(parents):
        seen[place, place] = True
        if parent >= 0:
            seen[place] |= seen[parent]
    mask = torch.zeros(7, 7, dtype=LOW).masked_fill(~seen, torch.finfo(LOW).min)
    query, key, value = normal(3, 7, 2, 16).to(LOW).unbind(0)
    scores = torch.einsum("qhd,khd->hqk", query, key) / 4 + mask
    mixed = torch.einsum("hqk,khd->qhd", torch.softmax(scores.float(), -1).to(LOW), value)
    logits = functional.linear(mixed.flatten(1), (normal(30, 32, seed=1) / 8).to(LOW)).float()
    return torch.softmax(logits, -1)


def blocks_that_matter() -> torch.Tensor:
    """Attention in half to the best two of eight blocks of keys and to the query's own, chosen in float32; the others have the least number."""
    query, key, value = (0.7 * normal(3, 2, 64, 16)).to(HALF).unbind(0)
    means = key.float().unflatten(1, (8, 8)).mean(2)
    likeness = query.float() @ means.mT
    own = functional.one_hot(torch.arange(64) // 8, 8).bool()
    best = torch.zeros_like(likeness, dtype=torch.bool).scatter(-1, likeness.topk(2).indices, True) | own
    scores = (query @ key.mT).float() / 4
    return torch.softmax(scores.masked_fill(~best.repeat_interleave(8, -1), torch.finfo(WIDE).min), -1) @ value.float()


def pages_in_eight_bits() -> torch.Tensor:
    """A cache of keys and values in eight bits with a float32 scale for each head and page; a page that is empty has a scale of one."""
    keys, values = normal(2, 4, 16, 2, 32).to(LOW).float().unbind(0)
    keys[3], values[3] = 0, 0

    def stored(page: torch.Tensor) -> torch.Tensor:
        largest = page.abs().amax((1, 3), keepdim=True)
        scale = torch.where(largest > 0, largest / 127, 1.0)
        return (page / scale).round().to(torch.int8).float() * scale

    query, near, held = normal(2, 32, seed=1).to(LOW).float(), stored(keys).flatten(0, 1)[:48], stored(values).flatten(0, 1)[:48]
    chances = torch.softmax(torch.einsum("hd,khd->hk", query, near) / 32**0.5, -1)
    return torch.einsum("hk,khd->hd", chances, held)


def neighbours_by_residual_codes() -> torch.Tensor:
    """Distances to vectors in half by tables of their codes in float32, and once more by the vectors themselves for those that are near."""
    store, asked = normal(200, 16).to(HALF), normal(5, 16, seed=1).to(HALF).float()
    books = normal(4, 16, 4, seed=2)
    parts = store.float().view(200, 4, 4)
    codes = torch.stack([(parts[:, place, None] - books[place]).square().sum(-1).argmin(-1) for place in range(4)], -1)
    tables = (asked.view(5, 4, 1, 4) - books).square().sum(-1)
    rough = sum(tables[:, place, codes[:, place]] for place in range(4))
    assert isinstance(rough, torch.Tensor)
    near = rough.topk(40, largest=False).indices
    return (store.float()[near] - asked[:, None]).square().sum(-1).sort(-1).values[:, :8]


class SparseGraph(nn.Module):
    """Layers that average neighbours by a sparse matrix in float32 and mix them under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(16, 24), nn.Linear(24, 4), nn.LayerNorm(24)

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        hidden = self.second(torch.relu(self.norm(self.averaged(shares, self.first(x)))))
        return self.averaged(shares, hidden)

    @staticmethod
    def averaged(shares: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.sparse.mm(shares, x.float())


def papers_and_their_citations() -> torch.Tensor:
    """A graph network in half with a loss scale; degrees are counted in integers, and a node without neighbours has its own edge."""
    edges = torch.cat([(60 * uniform(2, 240)).long(), torch.arange(60).expand(2, 60)], 1)
    degrees = torch.bincount(edges[0], minlength=60)
    weights = (degrees[edges[0]] * degrees[edges[1]]).float().rsqrt()
    shares = torch.sparse_coo_tensor(edges, weights, (60, 60), check_invariants=True).coalesce()
    model, x = made(SparseGraph()), normal(60, 16, seed=1)
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=5e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(5):
        with torch.autocast("cpu", HALF):
            out = model(x, shares)
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(out.float(), x[:, :4].argmax(-1))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad():
        return torch.softmax(model(x, shares).float(), -1)


class Report:
    """Scores of a classifier over all batches: a table of int64, and mean and spread of losses that are merged in float64."""

    def __init__(self, classes: int) -> None:
        self.table, self.count = torch.zeros(classes, classes, dtype=torch.int64), 0
        self.mean, self.squares = torch.zeros((), dtype=DOUBLE), torch.zeros((), dtype=DOUBLE)

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        size = len(self.table)
        self.table += torch.bincount(labels * size + logits.argmax(-1), minlength=size**2).view(size, size)
        losses = functional.cross_entropy(logits.float(), labels, reduction="none").double()
        away, count = losses.mean() - self.mean, self.count + len(losses)
        self.squares += (losses - losses.mean()).square().sum() + away.square() * self.count * len(losses) / count
        self.mean, self.count = self.mean + away * len(losses) / count, count


def report_of_a_year() -> torch.Tensor:
    """F-scores and losses over thirty batches of a classifier in bfloat16."""
    model, report = net(16, 32, 5).to(LOW), Report(5)
    for turn in range(30):
        x = normal(64, 16, seed=turn).to(LOW)
        with torch.no_grad():
            report.add(3 * model(x), (x[:, :5].float() + normal(64, 5, seed=100 + turn)).argmax(-1))
    right = report.table.diagonal().double()
    scores = 2 * right / (report.table.sum(0) + report.table.sum(1)).clamp(min=1)
    return torch.cat([scores, report.mean[None], (report.squares / report.count).sqrt()[None]]).float()


def sequences_without_padding() -> torch.Tensor:
    """Sentences side by side in one tensor in bfloat16; where each begins is a sum of int64, and the mean over its words is float32."""
    lengths = 1 + (12 * uniform(20)).long()
    ends, sentence = lengths.cumsum(0), torch.repeat_interleave(torch.arange(20), lengths)
    place = torch.arange(int(ends[-1])) - (ends - lengths)[sentence]
    angles = place[:, None] * torch.exp(-math.log(100) * torch.arange(8) / 8)
    x = normal(len(place), 16, seed=1) + torch.cat([angles.sin(), angles.cos()], -1)
    with torch.no_grad(), torch.autocast("cpu", LOW):
        hidden = net(16, 32, 8)(x)
    return torch.zeros(20, 8).index_add(0, sentence, hidden.float()) / lengths[:, None]


def words_by_several_hashes() -> torch.Tensor:
    """Counts of words by a sketch: hashes and counts are int64, and the logarithm of a count is what a network in half sees."""
    words, sketch = (5000 * uniform(20000).pow(4)).long(), torch.zeros(3, 512, dtype=torch.int64)
    asked, found = torch.arange(16), []
    for row, (factor, shift) in enumerate(((2654435761, 7), (40503, 104729), (2246822519, 31))):
        sketch[row] = torch.bincount((words * factor + shift) % 2**32 % 512, minlength=512)
        found.append(sketch[row, (asked * factor + shift) % 2**32 % 512])
    counts = torch.stack(found).amin(0)
    with torch.no_grad():
        return net(1, 16, 4).to(HALF)((torch.log1p(counts.float()) / 10)[:, None].to(HALF)).float()


IDIOMS = (
    pieces_of_words, beams_over_a_cache, drafts_in_a_tree, blocks_that_matter, pages_in_eight_bits, neighbours_by_residual_codes,
    papers_and_their_citations, report_of_a_year, sequences_without_padding, words_by_several_hashes,
)  # fmt: skip
