"""Learns to rank the documents of a query: a small transformer over each list, beside the counts that search engines have had for long."""

import math

import torch
import torch.nn.functional as F
from torch import nn

QUERIES, DOCS, TERMS, SIZE, VOCAB = 12, 64, 6, 24, 500
COLLECTION, TODAY = 8_841_823, 19_712  # documents; days since 1970
STEPS = 1


def idf(frequency, dtype):
    """How rare a term is. frequency: documents that have it, whole numbers."""
    without = (COLLECTION - frequency).float() + 0.5
    return (without / (frequency.float() + 0.5)).log()


def bm25(counts, lengths, frequency, dtype, k=1.2, b=0.75):
    """The classical score. counts: how often each term is in each document, [Q, D, T]; lengths: words, [Q, D]."""
    relative = lengths.float() / 300.0
    tf = counts.float()
    held = tf * (k + 1) / (tf + k * (1 - b + b * relative[..., None]))
    return (held * idf(frequency, dtype)[:, None, :]).sum(-1)


def ages(published, dtype):
    """Days since a document was published; published: days since 1970."""
    return (TODAY - published).float()


def click_rates(clicks, shows, dtype):
    """The part of those who saw a document that went there."""
    return clicks.float() / shows.float()


def places(query, first, dtype):
    """Where in its own list each document is. query: the list of each of all documents, first: where each list begins."""
    return torch.arange(len(query)) - first[query]


def discounts(place, dtype):
    """What a document counts at its place."""
    return 1 / (place.float() + 2).log2()


def examined(stops, dtype):
    """The chance that a reader comes to a document: stops has the chance that they leave at each one before."""
    gone = torch.log1p(-stops.float()).cumsum(1)
    return (gone - torch.log1p(-stops.float())).exp()


def gains(grades, dtype):
    """Two to the grade, less one."""
    return torch.expm1(grades.float() * math.log(2))


def combined(correction, prior, dtype):
    """The scores by which documents are sorted: what is known of old, and what the network adds."""
    return prior.float() + correction.float()


def margins(scores, dtype):
    """How far each document is above the next in the list."""
    return (scores[:, :-1] - scores[:, 1:]).float()


def log_shares(scores, mask, dtype):
    """The logarithm of each document's part of the list."""
    scores = scores.float().masked_fill(~mask, -math.inf)
    return (scores - torch.logsumexp(scores, 1, keepdim=True)).masked_fill(~mask, 0)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.terms, self.facts = nn.Embedding(VOCAB, SIZE), nn.Linear(4, SIZE)
        self.layer = nn.TransformerEncoderLayer(SIZE, 2, 2 * SIZE, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(SIZE, 1)

    def forward(self, terms, counts, lengths, frequency, published, clicks, shows, grades, stops, query, first, mask):
        x = self.terms(terms).mean(2)
        dtype = self.head(x).dtype
        with torch.autocast("cpu", enabled=False):
            old = bm25(counts, lengths, frequency, dtype)
            age, rate = ages(published, dtype), click_rates(clicks, shows, dtype)
            place = places(query, first, dtype).view(QUERIES, DOCS)
            facts = torch.stack([old / 10, age.float() / 100, rate.float() * 20, discounts(place, dtype).float()], -1)
            seen = examined(stops, dtype).float()
        x = self.layer(x + self.facts(facts.to(x.dtype)))
        correction = 0.3 * self.head(x).squeeze(-1)
        with torch.autocast("cpu", enabled=False):
            scores = combined(correction, 14 + 0.02 * old, dtype)
            logs = log_shares(scores, mask, dtype).float()
            gain = gains(grades, dtype).float() * mask
            target = gain / gain.sum(1, keepdim=True)
            listwise = -(target * logs / seen).sum(1).mean()
            above = margins(scores, dtype)
            pairwise = F.softplus(-above * (gain[:, :-1] - gain[:, 1:]).sign()).mean()
        return {"scores": correction.float(), "above": above, "loss": listwise + pairwise}


def make():
    torch.manual_seed(0)
    return Ranker()


def batch():
    generator = torch.Generator().manual_seed(5)
    frequency = (COLLECTION * torch.tensor([0.47, 0.55, 0.44, 0.52, 0.49, 0.53])).long() + torch.randint(9, (QUERIES, TERMS), generator=generator)
    shows = torch.randint(20_000, 400_000, (QUERIES, DOCS), generator=generator)
    return {
        "terms": torch.randint(VOCAB, (QUERIES, DOCS, TERMS), generator=generator),
        "counts": torch.randint(9, (QUERIES, DOCS, TERMS), generator=generator),
        "lengths": torch.randint(40, 900, (QUERIES, DOCS), generator=generator),
        "frequency": frequency,
        "published": TODAY - torch.randint(1, 90, (QUERIES, DOCS), generator=generator),
        "clicks": (shows * 0.05 * torch.rand(QUERIES, DOCS, generator=generator)).long(),
        "shows": shows,
        "grades": 0.02 * torch.rand(QUERIES, DOCS, generator=generator),
        "stops": 0.002 * torch.rand(QUERIES, DOCS, generator=generator),
        "query": torch.arange(QUERIES).repeat_interleave(DOCS),
        "first": torch.arange(QUERIES) * DOCS,
        "mask": torch.arange(DOCS)[None] < torch.tensor([64, 50, 41, 64, 33, 64, 58, 20, 64, 60, 47, 39])[:, None],
    }


def loss(output):
    return output["loss"]


optimizer = None
