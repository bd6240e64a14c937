"""Near copies: images that are nearly alike, sets of features, vectors of an index, documents that all fit, words of a chat, far tokens."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Likeness(nn.Module):
    """One less the structural similarity of two images, as a loss of what is drawn."""

    def __init__(self, centred: bool, size: int = 7) -> None:
        super().__init__()
        ruler = torch.exp(-(torch.arange(size) - size // 2).square() / 4.5)
        self.centred = centred
        self.register_buffer("window", (ruler[:, None] * ruler / ruler.sum() ** 2)[None, None])

    def blurred(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, self.window)

    def patches(self, x: torch.Tensor) -> torch.Tensor:
        return x.unfold(2, 7, 1).unfold(3, 7, 1)

    def moments(self, a: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if self.centred:
            near, far = self.patches(a) - mean[..., None, None], self.patches(b) - other[..., None, None]
            return (near * far * self.window[0, 0]).sum((-1, -2))
        return self.blurred(a * b) - mean * other  # culprit: loss-of-near-images

    def forward(self, drawn: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
        here, there = self.blurred(drawn), self.blurred(shown)
        apart, low, high = (here - there).square(), 1e-4, 9e-4
        own, other = self.moments(drawn, drawn, here, here), self.moments(shown, shown, there, there)
        both = self.moments(drawn, shown, here, there)
        place = apart / (here.square() + there.square() + low)
        pattern = (own + other - 2 * both) / (own + other + high)
        return place + pattern - place * pattern


def loss_of_near(centred: bool, level: float = 0.9, noise: float = 4e-4, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How unlike a bright wall is to what was drawn of it, place by place. Garbage."""
    wall = (level + 1e-3 * normal(1, 1, 24, 24)).to(dtype)
    drawn = (wall + noise * normal(1, 1, 24, 24, seed=1).to(dtype)).requires_grad_()
    unlike = Likeness(centred).to(dtype)(drawn, wall)
    return unlike.detach()


class Features:
    """The mean and the covariance of what a network sees in a set of images."""

    def __init__(self, seen: torch.Tensor) -> None:
        self.mean = seen.mean(0)
        self.spread = torch.cov(seen.T)

    def distance(self, other: Features) -> torch.Tensor:
        """Fréchet's distance of two normal laws."""
        values, vectors = torch.linalg.eigh(self.spread)
        root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
        shared = torch.linalg.eigvalsh(root @ other.spread @ root).clamp_min(0).sqrt().sum()
        apart = (self.mean - other.mean).square().sum()
        return apart + self.spread.trace() + other.spread.trace() - 2 * shared  # culprit: distance-of-like-sets


def distance_of_sets(dtype: torch.dtype, changed: float = 2e-4) -> torch.Tensor:
    """How far a set of images is from itself, saved anew, by their features: more than twice as far as it is."""
    mixed = normal(24, 24, seed=2) / 5 + 2 * torch.eye(24)
    seen = (normal(300, 24) @ mixed).relu()
    again = seen * (1 + changed * normal(1, 24, seed=1))
    return Features(seen.to(dtype)).distance(Features(again.to(dtype)))


class Index:
    """Vectors with their squared norms, and the nearest of them to a query."""

    def __init__(self, vectors: torch.Tensor, expanded: bool) -> None:
        self.vectors, self.expanded = vectors, expanded
        self.squares = vectors.square().sum(1)

    def distances(self, query: torch.Tensor) -> torch.Tensor:
        if self.expanded:
            return self.squares + query.square().sum() - 2 * (self.vectors @ query)  # culprit: neighbours-that-are-copies
        return (self.vectors - query).square().sum(1)

    def nearest(self, query: torch.Tensor, many: int) -> torch.Tensor:
        return self.distances(query).topk(many, largest=False).values


def stored(x: torch.Tensor) -> torch.Tensor:
    """x in steps of 2^-12, as bfloat16 holds numbers near a tenth."""
    return (x * 4096).round() / 4096


def nearest(expanded: bool, changed: float = 5e-5) -> torch.Tensor:
    """How far the eight nearest documents are from a query, of which all are copies with a word changed. Off by a fifth."""
    first = nn.functional.normalize(normal(1, 192), dim=1)
    copies = first + changed * normal(8, 192, seed=1) * (uniform(8, 192, seed=2) < 0.1)
    others = nn.functional.normalize(normal(60, 192, seed=3), dim=1)
    index = Index(stored(torch.cat([copies, others])), expanded)
    return index.nearest(stored(first[0]), 8)


class Reranker(nn.Module):
    """Reads a question with a document, and says how well they fit."""

    def __init__(self, reach: float) -> None:
        super().__init__()
        torch.manual_seed(51)
        self.body, self.norm, self.head = nn.Linear(48, 64), nn.LayerNorm(64), nn.Linear(64, 1)
        with torch.no_grad():
            self.head.bias.fill_(reach)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(nn.functional.gelu(self.body(pairs))))[:, 0]


def reranked(wide: bool, reach: float = 9.0) -> torch.Tensor:
    """The places of twelve documents, the best of which come first; of equal ones the one that came first. Garbage."""
    logits = Reranker(reach).to(HALF)(normal(12, 48).to(HALF))
    scores = torch.sigmoid(wider(logits) if wide else logits)  # culprit: scores-of-good-matches
    order = scores.argsort(descending=True, stable=True)
    places = torch.empty(12).scatter_(0, order, torch.arange(12.0))
    return places + 1 - wider(scores.detach())


class Chat(nn.Module):
    """Gives a logit to each word that may come next."""

    def __init__(self, words: int) -> None:
        super().__init__()
        torch.manual_seed(52)
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, words, bias=False)
        with torch.no_grad():
            self.head.weight.mul_(5)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(state))


def next_words(wide: bool, words: int = 3000, top: float = 0.95) -> torch.Tensor:
    """How likely the words are that may come next, from the likeliest on until nineteen twentieths are reached, and how many. Off by a twentieth."""
    logits = Chat(words).to(LOW)(normal(2, 64).to(LOW)) / 0.8
    logits = wider(logits) if wide else logits
    likely = torch.softmax(logits, -1).sort(descending=True, dim=-1).values
    before = likely.cumsum(-1) - likely  # culprit: words-of-a-chat
    kept = before < top  # culprit: words-of-a-chat
    drawn = torch.where(kept, likely, torch.zeros_like(likely))
    return wider(drawn.detach()).sum(-1) + kept.sum(-1)


class Slopes(nn.Module):
    """Attention whose scores rise with the place of a token, which is counted from the mask that leaves padding out."""

    def __init__(self, heads: int, kind: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(53)
        self.heads, self.kind = heads, kind
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def bias(self, mask: torch.Tensor) -> torch.Tensor:
        slope = 2.0 ** (-8 * torch.arange(1, self.heads + 1) / self.heads)
        place = (mask.to(self.kind).cumsum(-1) - 1) * mask  # culprit: places-of-far-tokens
        return slope[:, None, None] * wider(place)[:, None, None, :]

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = wider(q[:, :, -4:] @ k.mT) / q.shape[-1] ** 0.5 + self.bias(mask)
        scores = scores.masked_fill(mask[:, None, None] == 0, -1e4)
        told = torch.softmax(scores, -1).to(v.dtype) @ v
        return self.out(told.transpose(1, 2).flatten(-2))


def far_tokens(kind: torch.dtype, length: int = 900) -> torch.Tensor:
    """What the last tokens of a long prompt hear of those before, with a bias in bfloat16. Off by an eighth."""
    mask = torch.ones(2, length)
    mask[1, :50] = 0
    return wider(Slopes(4, kind).to(LOW)(normal(2, length, 32).to(LOW), mask)).detach()


BUGS = (
    Bug("loss-of-near-images", "rahul-goel/fused-ssim#37", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: loss_of_near(False), lambda: loss_of_near(True), module="Likeness", precision="32-true"),
    Bug("distance-of-like-sets", "toshas/torch-fidelity#44", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: distance_of_sets(SINGLE), lambda: distance_of_sets(DOUBLE), precision="32-true"),
    Bug("neighbours-that-are-copies", "elastic/elasticsearch#158865", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: nearest(True), lambda: nearest(False), precision="32-true",
        expected_miss="the nearest are few among all distances, and picked for being small: they count only where no digit is left"),
    Bug("scores-of-good-matches", "michaelfeil/infinity#203", ("decision-flip", "amplified-rounding"), "aten.sigmoid.default",
        lambda: reranked(False), lambda: reranked(True)),
    Bug("words-of-a-chat", "microsoft/onnxruntime-genai#1479", ("decision-flip", "amplified-rounding", "accumulated-drift"), "aten.sub.Tensor",
        lambda: next_words(False), lambda: next_words(True),
        expected_miss="which words are within the bound is taken over from the run, and the sum itself is right to a rounding"),
    Bug("places-of-far-tokens", "PaddlePaddle/PaddleNLP#6579", ("integer-rounding", "absorption"), "aten.cumsum.default",
        lambda: far_tokens(LOW), lambda: far_tokens(SINGLE)),
)  # fmt: skip
