"""Retrieval by late interaction: a query's words each find their best word of a passage; hard negatives with a teacher's scores; packed passages."""

import torch
import torch.nn.functional as F
from torch import nn

QUERIES, WORDS, PASSAGES, DIM, VOCABULARY, CENTROIDS = 6, 16, 4, 24, 600, 3000
TEMPERATURE, CORPUS = 0.02, 8_841_823
STEPS = 1


def packed_starts(lengths):
    """Where each passage begins in the row of all words. lengths: whole, [passages]."""
    return F.pad(lengths.cumsum(0), (1, 0))[:-1]


def owners(lengths, total):
    """The passage that each word belongs to."""
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths, output_size=total)


def waves(places, low):
    """Sines and cosines of places in a passage."""
    rates = 100 ** (-torch.arange(DIM // 2) / (DIM // 2))
    angles = places.float()[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)


def unit(x, low):
    """Words as unit vectors; padding stays nought."""
    x = x.float()
    return x / (x.square().sum(-1, keepdim=True) + 1e-8).sqrt()


def best_matches(query, words, owner, n, low):
    """The sum over a query's words of their best match in each passage, [QUERIES, n]."""
    similar = torch.einsum("qwd,td->qwt", query.float(), words.float())
    best = torch.full((*similar.shape[:2], n), -2.0).scatter_reduce(2, owner.expand_as(similar), similar, "amax")
    return best.sum(1)


def margins(scores, low):
    """How much better the right passage is than each negative. scores: [QUERIES, PASSAGES], the right one first."""
    return scores[:, :1] - scores[:, 1:]


def teacher_margins(thousandths, low):
    """The same of a cross-encoder's scores, whole thousandths."""
    return (thousandths[:, :1] - thousandths[:, 1:]).float() / 1000


def contrast(scores, low):
    """The log-chance of the right passage among all of the batch. scores: [QUERIES, n], the right one at PASSAGES times the row."""
    right = torch.arange(QUERIES) * PASSAGES
    return (scores / TEMPERATURE).log_softmax(-1)[torch.arange(QUERIES), right]


def without_false(scores, allowed, low):
    """Scores in which passages that may be right as well do not count."""
    return scores.masked_fill(~allowed, -1e4)


def divergence(student, teacher, low):
    """How far the student's chances of the passages are from the teacher's."""
    own, other = (student / 4).log_softmax(-1), (teacher / 4).log_softmax(-1)
    return (other.exp() * (other - own)).sum(-1)


def rarity(holding, low):
    """How rare a word is: the logarithm of the odds that a passage lacks it. holding: whole passages that have it."""
    return ((CORPUS - holding).double() / holding.double()).log().float()


def residuals(words, numbers, table, low):
    """What is left of each word after its centroid has been taken off. numbers: whole, [T]."""
    return words.float() - table[numbers].float()


def codes(left, low):
    """Residuals in sixteen steps, and two of them in a byte."""
    steps = ((left / 0.1).floor() + 8).clamp(0, 15).long()
    return steps[:, ::2] * 16 + steps[:, 1::2]


def recency(days, today, low):
    """A bonus for what is new: half after each month. days: whole, since 1970."""
    return 0.5 ** ((today - days).float() / 30)


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.mix = nn.Embedding(VOCABULARY, DIM), nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, dropout=0.0, batch_first=True)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.weight = nn.Linear(1, 1)
        self.register_buffer("table", F.normalize(torch.randn(CENTROIDS, DIM), dim=-1))

    def forward(self, query, text, lengths, numbers, thousandths, allowed, holding, days, today):
        owner, starts = owners(lengths, len(text)), packed_starts(lengths)
        places = torch.arange(len(text)) - starts[owner]
        asked = self.out(self.mix(self.word(query)))
        low = asked.dtype
        said = self.word(text) + waves(places, low).to(self.word.weight.dtype)
        apart = owner[:, None] != owner[None]
        words = self.out(self.mix(said[None], src_mask=apart)[0])
        weigh = self.weight(torch.ones(1, 1, dtype=self.word.weight.dtype))
        with torch.autocast("cpu", enabled=False):
            asked = unit(asked * (query[..., None] > 0), low)
            words = unit(words, low)
            rare = rarity(holding, low).float()
            asked = asked * (1 + 0.05 * rare[query % len(rare)][..., None] * (1 + weigh.float()))
            scores = best_matches(asked, words, owner, len(lengths), low).float()
            own = scores.unflatten(1, (QUERIES, PASSAGES))[torch.arange(QUERIES), torch.arange(QUERIES)]
            teacher = thousandths.float() / 1000
            apart = (margins(own, low).float() - teacher_margins(thousandths, low).float()).square().mean()
            among = contrast(without_false(scores, allowed, low).float(), low).float()
            left = residuals(words, numbers, self.table, low).float()
            fresh = recency(days, today, low).float()
            chosen = (own.detach() + 0.1 * fresh).argmax(-1)
            value = apart - 0.01 * among.mean() + 20 * divergence(own, teacher, low).float().mean() + 0.01 * left.square().mean()
        return {"scores": own, "codes": codes(left, low), "starts": starts, "chosen": chosen, "loss": value}


def make():
    torch.manual_seed(0)
    return Late()


def batch():
    generator = torch.Generator().manual_seed(17)
    n = QUERIES * PASSAGES
    lengths = torch.randint(12, 30, (n,), generator=generator)
    lengths[3] = 290
    total = int(lengths.sum())
    query = torch.randint(1, VOCABULARY, (QUERIES, WORDS), generator=generator)
    query[:, 13:] = 0
    allowed = torch.rand(QUERIES, n, generator=generator) > 0.1
    allowed[torch.arange(QUERIES), torch.arange(QUERIES) * PASSAGES] = True
    holding = (CORPUS * torch.rand(40, generator=generator).double().pow(8)).long() + 3
    holding[:12] = CORPUS - torch.randint(2_000, 90_000, (12,), generator=generator)
    return {
        "query": query,
        "text": torch.randint(1, VOCABULARY, (total,), generator=generator),
        "lengths": lengths,
        "numbers": torch.randint(CENTROIDS, (total,), generator=generator),
        "thousandths": torch.randint(11_000, 11_400, (QUERIES, PASSAGES), generator=generator),
        "allowed": allowed,
        "holding": holding,
        "days": 20_300 - torch.randint(60, (QUERIES, PASSAGES), generator=generator),
        "today": torch.tensor(20_301),
    }


def loss(output):
    return output["loss"]


optimizer = None
