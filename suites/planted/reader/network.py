"""Answers from long documents, after BERT on SQuAD: overlapping windows, which window knows a token best, spans of tokens and of characters."""

import torch
import torch.nn.functional as F
from torch import nn

WINDOWS, LENGTH, STRIDE, WORDS, DIM, HEADS, LONGEST = 5, 128, 96, 500, 48, 4, 24
STEPS = 1


def starts_of(windows):
    """The first token of each window, in the document."""
    return torch.arange(windows) * STRIDE


def waves(starts, like):
    """Where each token is in the document: [W, L, D]."""
    place = (starts[:, None] + torch.arange(LENGTH)).float()
    angle = place[..., None] / 10_000 ** (torch.arange(0, DIM, 2).float() / DIM)
    return torch.cat([angle.sin(), angle.cos()], -1).to(like.dtype)


def context(starts, like):
    """How much a window sees around each token of the document, as run_squad scores it: [W, T]. Longer windows win ties."""
    token = torch.arange(int(starts[-1]) + LENGTH)
    left = (token - starts[:, None]).float()
    right = (starts[:, None] + LENGTH - 1 - token).float()
    return torch.minimum(left, right) + 0.01 * LENGTH


def window_of(starts, like):
    """The window that knows each token of the document best."""
    return context(starts, like).argmax(0)


def token_of(offsets, character, like):
    """The token that a character is in: the last one that begins at it or before."""
    return (offsets <= character[:, None]).sum(-1) - 1


def gaps(offsets, like):
    """Characters from token to token, as a feature."""
    return F.pad(offsets.diff(dim=-1), (1, 0)).float() / 8


def bias(mask, like):
    """Nothing is seen of padding: added to scores."""
    return (1 - mask.float())[:, None, None] * -1e9


def spans(start, end, like):
    """The log chance of each span of at most LONGEST tokens: [B, T, T]."""
    score = start.float()[:, :, None] + end.float()[:, None]
    band = torch.ones(score.shape[1:], dtype=torch.bool).triu().tril(LONGEST - 1)
    return score.masked_fill(~band, -1e9).flatten(1).log_softmax(-1).view_as(score)


def length(chances, offsets, like):
    """Characters in the answer that is expected: where it ends less where it starts."""
    place = offsets.float()
    start, end = (chances.sum(2) * place).sum(-1), (chances.sum(1) * place).sum(-1)
    return end - start


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x, bias):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).to(bias.dtype) * q.shape[-1] ** -0.5 + bias
        mixed = scores.softmax(-1).to(v.dtype) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gap = nn.Embedding(WORDS, DIM), nn.Linear(1, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.ends = nn.LayerNorm(DIM), nn.Linear(DIM, 2)

    def forward(self, words, mask, offsets, first, last):
        count = len(words)
        weight = self.ends.weight
        like = self.ends(torch.zeros(1, DIM, dtype=weight.dtype)).detach()
        with torch.autocast("cpu", enabled=False):
            starts = starts_of(count - 1)
            place = F.pad(waves(starts, like), (0, 0, 0, 0, 0, 1)).to(weight.dtype)
            best = window_of(starts, like)
            truth = torch.stack([token_of(offsets, each, like) for each in (first, last)], -1)
            gap = gaps(offsets, like).to(weight.dtype)
            masked = bias(mask, like)
        token = torch.arange(offsets.shape[-1])
        inside = starts[:, None] + torch.arange(LENGTH)
        hidden = self.embedding(words) + place
        hidden = torch.cat([hidden[:-1] + self.gap(gap[0, inside, None]), hidden[-1:]])
        for layer in self.layers:
            hidden = layer(hidden, masked)
        both = self.ends(self.norm(hidden))
        chosen = both[best, token - starts[best]][None]
        with torch.autocast("cpu", enabled=False):
            told = spans(chosen[..., 0] * 8, chosen[..., 1] * 8, like)
            long = length(told.exp(), offsets[:1], like)
        loss = -told[0, truth[:, 0], truth[:, 1]].mean()
        return {"told": told.amax(-1), "long": long, "empty": hidden[-1].float().mean(-1), "loss": loss + 1e-3 * long.mean()}


def make():
    torch.manual_seed(0)
    return Reader()


def batch():
    generator = torch.Generator().manual_seed(71)
    total = (WINDOWS - 2) * STRIDE + LENGTH
    document = torch.randint(WORDS, (total,), generator=generator)
    words = torch.stack([document[each * STRIDE : each * STRIDE + LENGTH] for each in range(WINDOWS - 1)])
    mask = torch.ones(WINDOWS, LENGTH, dtype=torch.bool)
    mask[-1] = False
    offsets = torch.randint(2, 11, (1, total), generator=generator).cumsum(-1)
    begin = torch.tensor([40, 151, 260, 333, 395])
    return {
        "words": torch.cat([words, torch.zeros(1, LENGTH, dtype=torch.long)]),
        "mask": mask,
        "offsets": offsets,
        "first": offsets[0, begin] + 1,
        "last": offsets[0, begin + torch.tensor([3, 0, 7, 1, 12])] + 1,
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-2)
