"""A summariser that copies, after See, Liu and Manning: bidirectional GRU, attention with coverage, and a switch between knowing and copying."""

import torch
import torch.nn.functional as F
from torch import nn

TEXTS, SOURCE, TARGET, WORDS, UNKNOWN, DIM = 3, 360, 24, 600, 60, 40
EXTENDED = WORDS + UNKNOWN
STEPS = 1


def places(mask, like):
    """Which word of its text each one is, from one on, and nought for what fills the row up."""
    return mask.long().cumsum(-1) * mask.long()


def waves(place, like):
    angle = place.float()[..., None] / 10_000 ** (torch.arange(DIM // 2).float() / (DIM // 2))
    return torch.cat([angle.sin(), angle.cos()], -1).type_as(like)


def pairs(words, like):
    """A number for each pair of neighbours, by which repeated ones are found."""
    return words[:, :-1] * EXTENDED + words[:, 1:]


def repeated(pair, like):
    """Whether the same pair has come before in the text."""
    same = pair[:, :, None] == pair[:, None]
    return same.tril(-1).any(-1)


def known(words, like):
    """What is not in the vocabulary is one word in it."""
    return torch.where(words < WORDS, words, torch.zeros_like(words))


def covered(before, attention, like):
    """How much each word has been looked at so far."""
    return before + attention


def copied(attention, source, like):
    """Where each word of the extended vocabulary is copied from, added up over all its places."""
    return torch.zeros(len(source), EXTENDED).scatter_add(1, source, attention)


def mixed(chance, switch, copies, like):
    """The chance of each word: known with the chance of the switch, copied with the rest."""
    return switch * F.pad(chance, (0, UNKNOWN)) + (1 - switch) * copies


def surprise(chances, like):
    """How unlikely the words are, a word."""
    return -(chances + 1e-9).log().mean(-1)


def whole(chances, like):
    """The chance of the first eight words together, for the critic."""
    return chances[:, :8].prod(-1)


def rarity(counts, total, like):
    """How rare a word is, from how many of a million texts have it."""
    return (total.float() / (1 + counts.float())).log()


def overlap(chances, copies, like):
    """How much is looked at again: the smaller of coverage and attention, added up."""
    return torch.minimum(chances, copies).sum(-1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2 * DIM, DIM)
        self.query, self.cover, self.score = nn.Linear(DIM, DIM), nn.Linear(1, DIM), nn.Linear(DIM, 1)
        self.out, self.switch = nn.Linear(2 * DIM, WORDS), nn.Linear(3 * DIM, 1)

    def forward(self, word, state, memory, keys, mask, coverage, source):
        seen = self.cover((coverage[..., None] * 10).type_as(keys))
        scores = self.score(torch.tanh(keys + self.query(state)[:, None] + seen)).float()[..., 0]
        attention = scores.masked_fill(~mask, -1e4).softmax(-1)
        context = torch.bmm(attention[:, None].type_as(memory), memory)[:, 0]
        state = self.cell(torch.cat([word, context], -1), state)
        chance = self.out(torch.cat([state, context], -1)).float().softmax(-1)
        switch = (self.switch(torch.cat([word, state, context], -1)).float() + 3).sigmoid()
        with torch.autocast("cpu", enabled=False):
            copies = copied(attention, source, context)
            return mixed(chance, switch, copies, context), state, attention


class Copying(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.enter = nn.Embedding(WORDS, DIM), nn.Linear(DIM + 2, DIM)
        self.encoder = nn.GRU(DIM, DIM // 2, batch_first=True, bidirectional=True)
        self.keys, self.decoder = nn.Linear(DIM, DIM), Decoder()

    def forward(self, source, target, mask, counts, total):
        like = self.enter.weight
        if torch.is_autocast_enabled("cpu"):
            like = like.detach().to(torch.get_autocast_dtype("cpu"))
        with torch.autocast("cpu", enabled=False):
            place, again = places(mask, like), repeated(pairs(source, like), like)
            rare = rarity(counts, total, like)[known(source, like)]
            wave = waves(place, like)
        again = F.pad(again, (1, 0)).float()
        words = self.embedding(known(source, like))
        entered = self.enter(torch.cat([words.type_as(like), rare[..., None].type_as(like) / 8, again[..., None].type_as(like)], -1))
        memory, _ = self.encoder(entered + wave)
        keys, state = self.keys(memory), memory.mean(1)
        coverage, loss, chances = torch.zeros(TEXTS, SOURCE), 0.0, []
        inputs = self.embedding(known(F.pad(target[:, :-1], (1, 0)), like)).type_as(memory)
        for turn in range(TARGET):
            chance, state, attention = self.decoder(inputs[:, turn], state, memory, keys, mask, coverage, source)
            loss = loss + overlap(coverage, attention, like).mean() / TARGET
            coverage = covered(coverage, attention, like)
            chances.append(chance.float().gather(1, target[:, turn : turn + 1])[:, 0])
        chances = torch.stack(chances, -1)
        told, first = surprise(chances, like), whole(chances, like)
        return {"told": told, "coverage": coverage, "first": (first + 1e-30).log(), "loss": loss + told.float().mean()}


def make():
    torch.manual_seed(0)
    return Copying()


def batch():
    generator = torch.Generator().manual_seed(61)
    source = (torch.rand(TEXTS, SOURCE, generator=generator) ** 3 * EXTENDED).long()
    lengths = torch.tensor([360, 331, 297])
    mask = torch.arange(SOURCE) < lengths[:, None]
    picked = torch.randint(290, (TEXTS, TARGET), generator=generator)
    return {
        "source": source.masked_fill(~mask, 0),
        "target": source.gather(1, picked),
        "mask": mask,
        "counts": (torch.rand(WORDS, generator=generator) ** 4 * 900_000).long(),
        "total": torch.tensor(1_000_000),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.Adagrad(params, lr=0.05)
