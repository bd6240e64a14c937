"""Piano music as it was played: ticks, tempo, bars, cents, keys, and a transformer with relative distances in time."""

import math

import torch
import torch.nn.functional as F
from torch import nn

PIECES, NOTES, DIM, HEADS = 3, 160, 32, 4
QUARTER, BAR = 480, 1920
STEPS = 1
MAJOR = (6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88)


def gaps(onset, low):
    """Ticks since the note before."""
    return F.pad(onset[:, 1:] - onset[:, :-1], (1, 0)).float()


def phase(onset, low):
    """Where in its bar each note begins, as an angle."""
    turn = (onset % BAR).float() * (2 * math.pi / BAR)
    return torch.stack([turn.sin(), turn.cos()], -1)


def bars(onset, low):
    """The number of each note's bar."""
    return onset // BAR


def seconds(gap, tempo, low):
    """From the note before, by the microseconds of a quarter at that time."""
    return gap * (tempo.float() / 1e6) / QUARTER


def played(wait, low):
    """When each note is played, in seconds."""
    return wait.cumsum(1)


def loudness(since, velocity, low):
    """What is still heard of the notes before: each fades to half in two seconds."""
    left = torch.exp2(-since / 2)
    heard, out = torch.zeros(len(since)), []
    for turn in range(NOTES):
        heard = heard * left[:, turn] + velocity[:, turn].float() / 127
        out.append(heard)
    return torch.stack(out, 1)


def beating(pitch, cents, low):
    """How fast a note beats with a piano in tune, in turns a second."""
    tuned = 440 * torch.exp2((pitch - 69).float() / 12)
    return tuned * torch.expm1(cents.float() * (math.log(2) / 1200))


def major(pitch, low):
    """How well the keys that were played go with C major: a correlation."""
    counts = F.one_hot(pitch % 12, 12).sum(1).float()
    profile = torch.tensor(MAJOR)
    one, other = counts - counts.mean(1, keepdim=True), profile - profile.mean()
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm())


def variety(bar, low):
    """The entropy of the bars that notes are in."""
    share = F.one_hot(bar, 90).sum(1).float() / NOTES
    return -torch.xlogy(share, share).sum(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.project, self.back = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.feed = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x, far):
        query, key, value = self.project(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=far.to(query.dtype))
        x = x + self.back(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


class Music(nn.Module):
    def __init__(self):
        super().__init__()
        self.pitch, self.bar, self.enter = nn.Embedding(128, DIM), nn.Embedding(16, DIM), nn.Linear(5, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(DIM, 128)

    def forward(self, onset, pitch, velocity, tempo, cents):
        weight = self.enter.weight.dtype
        low = self.enter(torch.zeros(1, 5, dtype=weight)).dtype
        with torch.autocast("cpu", enabled=False):
            gap = gaps(onset, low)
            bar = bars(onset, low)
            wait = seconds(gap, tempo, low)
            when = played(wait, low)
            heard = loudness(wait, velocity, low)
            beats = beating(pitch, cents, low)
            key, mixture = major(pitch, low), variety(bar, low)
            facts = torch.cat([phase(onset, low), torch.stack([torch.log1p(4 * wait), heard / 4, beats], -1)], -1)
            far = when[:, :, None] - when[:, None]
            far = torch.where(far >= 0, -far / 4, -math.inf)[:, None]
        x = self.pitch(pitch) + self.bar(bar % 16) + self.enter(facts.to(weight))
        for block in self.blocks:
            x = block(x, far)
        logits = self.out(x).float()
        told = F.cross_entropy(logits[:, :-1].flatten(0, 1), pitch[:, 1:].flatten())
        return {"logits": logits, "key": key, "mixture": mixture, "when": when[:, -1], "loss": told}


def make():
    torch.manual_seed(0)
    return Music()


def batch():
    generator = torch.Generator().manual_seed(53)

    def whole(least, most, *shape):
        return torch.randint(least, most, shape, generator=generator)

    onset = 60_000 + whole(0, 60, PIECES, 1) + (120 * whole(0, 5, PIECES, NOTES) + whole(-9, 10, PIECES, NOTES)).clamp_min(0).cumsum(1)
    scale = torch.tensor([0, 2, 4, 5, 7, 9, 11])
    return {
        "onset": onset,
        "pitch": 12 * whole(3, 8, PIECES, NOTES) + scale[(torch.rand(PIECES, NOTES, generator=generator) ** 1.5 * 7).long()],
        "velocity": whole(20, 128, PIECES, NOTES),
        "tempo": 500_000 + whole(-20_000, 20_000, PIECES, NOTES),
        "cents": whole(-6, 7, PIECES, NOTES),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
