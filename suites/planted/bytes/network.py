"""A language model of bytes, without a tokenizer: hashed n-grams, patches that begin where the next byte is hard to guess, attention over patches."""

import math

import torch
import torch.nn.functional as F
from torch import nn

BATCH, TIME, DIM, BYTES = 2, 640, 32, 256
SHARED = 16.0  # what every part of the stream has in common
TABLE, PRIME, GRAM = 1009, 31, 4
PATCHES = 400
STEPS = 1


def ngram_rows(ids):
    """Rows of a table for the last bytes at each place: a rolling hash."""
    padded = F.pad(ids, (GRAM - 1, 0))
    row = torch.zeros_like(ids)
    for back in range(GRAM):
        row = (row * PRIME + padded[:, back : back + ids.shape[1]]) % TABLE
    return row


def entropies(ids, counts):
    """Of the next byte, in nats, from how often each byte has followed this one."""
    chance = (counts + 1).float()
    chance = chance / chance.sum(-1, keepdim=True)
    return -(chance * chance.log()).sum(-1)[ids]


def rises(entropy):
    """How much harder the next byte is to guess than the one before it."""
    return F.pad(entropy[:, 1:] - entropy[:, :-1], (1, 0))


def patches(rise):
    """The number of the patch of each byte, from 0. A byte opens one where it is harder to guess than the byte before."""
    opens = rise > 0
    opens[:, 0] = False
    return opens.long().cumsum(1)


def place_in_patch(patch):
    """How many bytes of its patch come before a byte."""
    place = torch.arange(TIME).expand_as(patch)
    opened = F.pad(patch[:, 1:] != patch[:, :-1], (1, 0), value=True)
    begin = torch.where(opened, place, 0).cummax(1).values
    return (place - begin).float()


def waves(place, dim):
    """Sines and cosines of a place, as every transformer has them."""
    rate = 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
    angle = place[..., None].float() * rate
    return torch.cat([angle.sin(), angle.cos()], -1)


def pooled(x, patch):
    """The mean of each patch: a running sum, read where patches end."""
    running = F.pad(x.float().cumsum(1), (0, 0, 1, 0))
    count = F.one_hot(patch, PATCHES).sum(1)
    end = count.cumsum(1)
    first, last = (end - count)[..., None].expand(-1, -1, x.shape[-1]), end[..., None].expand(-1, -1, x.shape[-1])
    return (running.gather(1, last) - running.gather(1, first)) / count.clamp_min(1)[..., None]


def changes(x):
    """How much a byte differs in direction from the one before it: one less the cosine, halved."""
    unit = F.normalize(x.float(), dim=-1)
    cosine = (unit[:, 1:] * unit[:, :-1]).sum(-1)
    return F.pad((1 - cosine) / 2, (1, 0))


def fading(chance):
    """What is left of an earlier patch in a later one, if each keeps all but a small chance of what it was given."""
    kept = (-chance).log1p()
    total = kept.cumsum(-1)
    left = total[..., :, None] - total[..., None, :]
    return left.tril().exp().tril()


def gained(logits, target):
    """Bits that a byte costs less than the eight of a byte that nothing is known of."""
    cost = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none").view(target.shape)
    return 8 - cost / math.log(2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.feed = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, 4, DIM // 4)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.feed(self.second(x))


class ByteModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.gram = nn.Embedding(BYTES, DIM), nn.Embedding(TABLE, DIM)
        self.enter, self.blocks = nn.Linear(2 * DIM, DIM), nn.Sequential(Block(), Block())
        self.chance, self.leave, self.head = nn.Linear(DIM, 1), nn.Linear(DIM, DIM), nn.Linear(DIM, BYTES)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids, target, counts):
        with torch.autocast("cpu", enabled=False):
            row = ngram_rows(ids)
            entropy = entropies(ids, counts)
            patch = patches(rises(entropy))
            inner = place_in_patch(patch)
            where = torch.cat([waves(torch.arange(TIME), DIM).expand(len(ids), -1, -1), waves(inner, DIM)], -1)
        x = self.letter(ids) + self.gram(row) + self.enter(where.to(self.enter.weight.dtype))
        with torch.autocast("cpu", enabled=False):
            stream = x.float() + SHARED
            turned = changes(stream)
            filled = F.one_hot(patch, PATCHES).sum(1)[..., None] > 0
            latent = torch.where(filled, pooled(stream, patch) - SHARED, 0)
        latent = self.blocks(latent.to(self.leave.weight.dtype))
        with torch.autocast("cpu", enabled=False):
            chance = self.chance(latent)[..., 0].float().sigmoid() / 10
            latent = fading(chance) @ latent.float() / 50
        x = x + self.leave(latent.to(x.dtype)).gather(1, patch[..., None].expand_as(x))
        logits = self.head(x * (1 + turned[..., None]).to(x.dtype))
        with torch.autocast("cpu", enabled=False):
            gain = gained(logits, target)
        return {"logits": logits, "gain": gain, "turned": turned, "entropy": entropy}


def make():
    torch.manual_seed(0)
    return ByteModel()


def batch():
    generator = torch.Generator().manual_seed(71)
    ids = torch.randint(32, 127, (BATCH, TIME + 1), generator=generator)
    counts = torch.randint(40, 400, (BYTES, 96), generator=generator)
    return {"ids": ids[:, :-1], "target": ids[:, 1:], "counts": counts}


def loss(output):
    return -output["gain"].mean()


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
