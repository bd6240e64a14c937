"""A masked diffusion language model: words are hidden by a schedule, a transformer guesses them, sampling by Gumbel noise and reverse rates."""

import math

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WORDS, SIZE, LENGTH, SCHEDULE = 8, 40, 32, 48, 1000
EPS = 1e-3
STEPS = 1


class Schedule:
    """The log-linear one. Times are whole ticks, of which there are SCHEDULE."""

    @staticmethod
    def kept(ticks, low):
        """The chance that a word is not hidden."""
        return 1 - (1 - EPS) * (ticks.float() / SCHEDULE)

    @staticmethod
    def noise(ticks, low):
        """Minus the logarithm of the chance to be kept."""
        return -torch.log1p(-(1 - EPS) * (ticks.float() / SCHEDULE))

    @staticmethod
    def weight(noise, low):
        """How much a guess counts: the noise's slope over the odds to be hidden."""
        return (1 - EPS) * noise.exp() / torch.expm1(noise)

    @staticmethod
    def reverse(ticks, step, low):
        """The chance that a hidden word is shown by the tick that is `step` earlier. step: whole."""
        now, then = (1 - EPS) * ticks.double() / SCHEDULE, (1 - EPS) * (ticks - step).double() / SCHEDULE
        return ((now - then) / now).float()

    @staticmethod
    def log_signal(ticks, low):
        """The logarithm of what the cosine schedule keeps."""
        return (1 - (math.pi / 2 * (1 - ticks.float() / SCHEDULE)).cos()).log()


def time_waves(noise, low):
    """The noise, a thousandfold, as waves."""
    rates = torch.exp(-math.log(10000) * torch.arange(SIZE // 2) / (SIZE // 2))
    angles = 100 * noise[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], -1)


def turned(x, low):
    """Rotary places, of windows that begin late in a book."""
    half = x.shape[-1] // 2
    angles = (torch.arange(LENGTH) + 4000)[:, None] * 1000.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def guessed(logits, low):
    """Log-chances of the words; nobody guesses the mask."""
    logits = logits.float()
    logits = logits.masked_fill(torch.arange(WORDS + 1) == WORDS, -1e6)
    return logits - logits.logsumexp(-1, keepdim=True)


def gumbel(draws, low):
    """Noise that makes the largest log-chance a draw. draws: whole 2^24ths."""
    u = (draws.double() + 0.5) / 2**24
    return (-(-u.log()).log()).float()


def bound(losses, weights, hidden, low):
    """The weighted sum of the hidden words' losses over the number of all words."""
    return (losses * weights[:, None] * hidden).sum() / losses.numel()


def surprise(log_chances, low):
    """The entropy of each guess over that of no knowledge, and one less it."""
    entropy = -(log_chances.exp() * log_chances).sum(-1) / math.log(WORDS)
    return 1 - entropy


def rising(confidence, low):
    """How much surer each place is than the one before."""
    return confidence[:, 1:] - confidence[:, :-1]


def bits(losses, counts, low):
    """Bits of each row so far, with those of the pages before. counts: whole nats of those pages, [B]."""
    total, out = counts.float(), []
    for loss in losses.float().unbind(1):
        total = total + loss
        out.append(total)
    return torch.stack(out, 1) / math.log(2)


def antithetic(ticks, low):
    """Ticks that are spread evenly over the schedule, as far from its ends as the one drawn."""
    return ticks + torch.arange(ROWS) * (SCHEDULE - 2 * ticks) // (ROWS - 1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(SIZE), nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.mlp = nn.Sequential(nn.LayerNorm(SIZE), nn.Linear(SIZE, 2 * SIZE), nn.GELU(), nn.Linear(2 * SIZE, SIZE))
        self.modulate = nn.Linear(SIZE, 2 * SIZE)

    def forward(self, x, c):
        shift, scale = self.modulate(c)[:, None].chunk(2, -1)
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.qkv(self.norm(x) * (1 + scale) + shift).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(turned(q, q.dtype), turned(k, k.dtype), v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.time = nn.Embedding(WORDS + 1, SIZE), nn.Sequential(nn.Linear(SIZE, SIZE), nn.SiLU(), nn.Linear(SIZE, SIZE))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(SIZE), nn.Linear(SIZE, WORDS + 1)

    def forward(self, words, ticks, hiding, draws, pages, step):
        like = self.time[0](torch.zeros(1, SIZE, dtype=self.head.weight.dtype))
        low = like.dtype
        with torch.autocast("cpu", enabled=False):
            spread = antithetic(ticks, low)
            noise = Schedule.noise(spread, low)
            hidden = hiding.double() / 2**24 >= Schedule.kept(spread, low).double()[:, None]
            waves = time_waves(noise, low)
            weights = Schedule.weight(noise, low)
        x = self.word(torch.where(hidden, WORDS, words))
        c = self.time(waves.to(like.dtype))
        for block in self.blocks:
            x = block(x, c)
        logits = self.head(self.norm(x))
        with torch.autocast("cpu", enabled=False):
            chances = guessed(logits, low).float()
            losses = -chances.gather(-1, words[..., None]).squeeze(-1)
            drawn = (chances[..., :WORDS].detach() + gumbel(draws, low)).argmax(-1)
            shown = Schedule.reverse(spread[1:], step, low)
            sure = surprise(chances[..., :WORDS], low).float()
            steeper = rising(sure, low).float()
            mixed = Schedule.log_signal(spread, low).float()
            value = bound(losses, weights.float(), hidden, low).float() + 0.01 * (mixed.exp()[:, None] * steeper.square()).mean()
            count = bits(losses.detach(), pages, low).float()
        return {"drawn": drawn, "shown": shown, "bits": count - pages[:, None] / math.log(2), "loss": value}


def make():
    torch.manual_seed(0)
    return Denoiser()


def batch():
    generator = torch.Generator().manual_seed(18)
    return {
        "words": torch.randint(WORDS, (ROWS, LENGTH), generator=generator),
        "ticks": torch.tensor(4),
        "hiding": torch.randint(2**24, (ROWS, LENGTH), generator=generator),
        "draws": torch.randint(2**24, (ROWS, LENGTH, WORDS), generator=generator),
        "pages": torch.randint(3000, 5000, (ROWS,), generator=generator),
        "step": torch.tensor(2),
    }


def loss(output):
    return output["loss"]


optimizer = None
