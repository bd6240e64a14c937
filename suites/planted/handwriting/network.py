"""Handwriting as Graves generates it: pen offsets, a recurrent network, a window over the letters, and a mixture of correlated Gaussians."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, POINTS, LETTERS, ALPHABET, SIZE, MIXTURES, WINDOWS = 4, 120, 40, 30, 32, 8, 4
STEPS = 1


def offsets(points, compute):
    """Steps of the pen in spreads of a step. points: whole hundredths of a millimetre on the page, [B, T + 1, 2]."""
    steps = (points[:, 1:] - points[:, :-1]).float()
    return steps / 35.0


def slant(points, compute):
    """The angle of each third step, from the places of its ends."""
    ends = points[:, 3:].float() - points[:, :-3].float()
    return torch.atan2(ends[..., 1], ends[..., 0].abs() + 5.0)


def travelled(steps, compute):
    """How far the pen has gone, in spreads of a step: [B, T]."""
    return steps.square().sum(-1).sqrt().cumsum(1)


def window(letters, places, widths, heights, compute):
    """The letters that are written now: bells around places in the text. letters: [B, L, A]; the others [B, K]."""
    text = torch.arange(letters.shape[1])
    bells = heights[..., None] * (-(places[..., None] - text).square() * widths[..., None]).exp()
    return torch.einsum("bkl,bla->ba", bells.float(), letters)


def log_densities(steps, means, spreads, correlation, compute):
    """Logarithms of the bivariate densities: [B, T, K]."""
    z = (steps[:, :, None] - means) / spreads
    rest = 1 - correlation.square()
    square = z.square().sum(-1) - 2 * correlation * z[..., 0] * z[..., 1]
    return -square / (2 * rest) - spreads.log().sum(-1) - 0.5 * rest.log() - 1.837877


def mixture_loss(logits, densities, compute):
    """The negative logarithm of the mixture's density."""
    return -(F.log_softmax(logits, -1) + densities).logsumexp(-1)


def pen_loss(logits, up, compute):
    """The negative logarithm of what becomes of the pen."""
    return -(up * F.logsigmoid(logits) + (1 - up) * F.logsigmoid(-logits))


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.second = nn.GRUCell(3 + ALPHABET, SIZE), nn.GRU(SIZE + ALPHABET + 2, SIZE, batch_first=True)
        self.attention, self.head = nn.Linear(SIZE, 3 * WINDOWS), nn.Linear(SIZE, 6 * MIXTURES + 1)

    def forward(self, points, up, text):
        compute = self.attention(torch.zeros(1, SIZE).to(self.attention.weight.dtype)).dtype
        with torch.autocast("cpu", enabled=False):
            steps = offsets(points, compute)
            tilt, gone = slant(points, compute), travelled(steps, compute)
            letters = F.one_hot(text, ALPHABET).float()
        state = torch.zeros(len(points), SIZE, dtype=self.attention.weight.dtype)
        places, seen = torch.zeros(len(points), WINDOWS), letters[:, 0]
        hidden, windows = [], []
        for t in range(POINTS):
            state = self.cell(torch.cat([steps[:, t], up[:, t, None].float(), seen], -1).to(self.attention.weight.dtype), state)
            heights, widths, moves = self.attention(state).float().exp().chunk(3, -1)
            places = places + moves / 25
            seen = window(letters, places, widths, heights, compute)
            hidden.append(state)
            windows.append(seen)
        beside = torch.stack([F.pad(tilt, (2, 0)), gone / 100], -1)
        rows = torch.cat([torch.stack(hidden, 1).float(), torch.stack(windows, 1), beside], -1)
        raw = self.head(self.second(rows.to(self.attention.weight.dtype))[0]).float()[:, :-1]
        with torch.autocast("cpu", enabled=False):
            logits, means, spreads, correlation, pen = raw.split([MIXTURES, 2 * MIXTURES, 2 * MIXTURES, MIXTURES, 1], -1)
            means, spreads = means.unflatten(-1, (-1, 2)), (spreads.unflatten(-1, (-1, 2)) - 0.5).exp()
            densities = log_densities(steps[:, 1:], means, spreads, (2 * correlation + 2).tanh(), compute)
            lost, pens = mixture_loss(logits, densities, compute), pen_loss(pen[..., 0] - 3.5, up[:, 1:].float(), compute)
        return {"density": lost, "pen": pens, "places": places}


def make():
    torch.manual_seed(0)
    return Writer()


def batch():
    generator = torch.Generator().manual_seed(17)
    moves = 35 * torch.randn(BATCH, POINTS, 2, generator=generator) + torch.tensor([14.0, 0.0])
    up = torch.rand(BATCH, POINTS, generator=generator) > 0.96
    moves = torch.where(up[..., None], 5 * moves, moves).round().long()
    start = torch.tensor([[9_120, 14_037], [11_303, 19_872], [8_411, 23_150], [12_618, 17_005]])[:, None]
    return {
        "points": torch.cat([start, start + moves.cumsum(1)], 1),
        "up": up.long(),
        "text": torch.randint(ALPHABET, (BATCH, LETTERS), generator=generator),
    }


def loss(output):
    return output["density"].mean() + output["pen"].mean()


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-3)
