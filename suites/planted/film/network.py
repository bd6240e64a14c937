"""A model that looks at film and finds things in it, as Qwen2-VL does: patches, rotary positions in time, height and width, and boxes as answers."""

import torch
import torch.nn.functional as F
from torch import nn

FILMS, FRAMES, HIGH, WIDE, PATCH, ROWS = 2, 4, 6, 8, 27, 48
WORDS, ASKED, DIM, HEADS = 80, 400, 48, 4
START = 4096
STEPS = 1


def spread(count):
    """Where `count` patches lie among the rows of a learned table: the row before each, and how far behind it the patch is."""
    place = torch.linspace(0, ROWS - 1, count)
    row = place.floor().long().clamp_max(ROWS - 2)
    return row, place - row


def ticks(milliseconds):
    """Frames since the first, on a clock of 25 ticks a second, which positions count. [FILMS, FRAMES]"""
    seconds = milliseconds.float() / 1000
    return ((seconds - seconds[:, :1]) * 25).round().long()


def places(tick):
    """Time, height and width of each patch, [FILMS, 3, FRAMES * HIGH * WIDE]. Those of film begin behind all that may be written."""
    time = tick[:, :, None, None].expand(-1, -1, HIGH, WIDE)
    row = torch.arange(HIGH).view(1, 1, -1, 1).expand_as(time)
    column = torch.arange(WIDE).view(1, 1, 1, -1).expand_as(time)
    return START + torch.stack([time, row, column], 1).flatten(2)


def turns(place):
    """Cosine and sine of the rotary angles, [FILMS, N, 6]: two for each of time, height and width."""
    steps = torch.tensor([[1.0, 0.1]])
    with torch.autocast("cpu", enabled=False):
        angle = place[..., None].float() @ steps
    angle = angle.transpose(1, 2).flatten(2)
    return angle.cos(), angle.sin()


def rotated(value, cosine, sine):
    """The first 12 of each head's numbers, in pairs."""
    first, second = value.float().chunk(2, -1)
    cosine, sine = cosine[:, None], sine[:, None]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(value.dtype)


def standardised(pooled):
    """What the tower sees, at the size that the language model is used to."""
    scaled = pooled.float() * DIM**0.5
    return scaled / scaled.square().mean(-1, keepdim=True).add(1e-6).sqrt()


def sides(box):
    """Width and height of boxes in pixels, in hundreds."""
    return (box[..., 2:] - box[..., :2]).float() / 100


def areas(box):
    """In shares of a picture of 1920 by 1080."""
    width, height = (box[..., 2:] - box[..., :2]).float().unbind(-1)
    return width * height / (1920 * 1080)


def answered(asked):
    """How many words each film is asked for."""
    return asked.sum(1).float()


class Film(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(PATCH, DIM)
        self.rows, self.columns = nn.Parameter(0.3 * torch.randn(ROWS, DIM)), nn.Parameter(0.3 * torch.randn(ROWS, DIM))
        self.tower, self.up = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False)
        self.up.weight.requires_grad_(False).mul_(60_000)
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.word, self.size, self.find = nn.Embedding(WORDS, DIM), nn.Linear(3, DIM), nn.Linear(DIM, DIM)
        self.box, self.words = nn.Linear(DIM, 4), nn.Linear(DIM, WORDS)

    def placed(self):
        """The learned table of rows and columns at each patch."""
        row, behind = spread(HIGH)
        column, beside = spread(WIDE)
        high = self.rows[row] * (1 - behind[:, None]) + self.rows[row + 1] * behind[:, None]
        wide = self.columns[column] * (1 - beside[:, None]) + self.columns[column + 1] * beside[:, None]
        return (high[:, None] + wide).flatten(0, 1).repeat(FRAMES, 1)

    def forward(self, pixels, milliseconds, word, asked, box):
        kind = self.box.weight.dtype
        seen = self.patch((pixels.float() / 127.5 - 1).to(kind))
        seen = seen + F.gelu(self.tower((seen + self.placed()).to(kind)))
        hidden = standardised(self.up(seen.to(kind))).to(kind)
        cosine, sine = turns(places(ticks(milliseconds)))
        query, key, value = (layer(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(rotated(query, cosine, sine), rotated(key, cosine, sine), value)
        hidden = hidden + mixed.transpose(1, 2).flatten(2)
        shape = self.size(torch.cat([sides(box), 50 * areas(box)[..., None]], -1).to(kind))
        state = F.gelu(self.find((hidden.mean(1, keepdim=True) + self.word(word) + shape).to(kind)))
        return {"box": self.box(state), "words": self.words(state), "count": answered(asked)}


def make():
    torch.manual_seed(0)
    return Film()


def batch():
    generator = torch.Generator().manual_seed(81)
    corner = torch.randint(1100, 1800, (FILMS, 12, 2), generator=generator) // torch.tensor([1, 2])
    size = torch.randint(20, 90, (FILMS, 12, 2), generator=generator)
    size[:, 0] = torch.tensor([310, 240])
    corner[:, 0] = torch.tensor([1211, 605])
    return {
        "pixels": torch.randint(0, 256, (FILMS, FRAMES * HIGH * WIDE, PATCH), generator=generator),
        "milliseconds": torch.randint(20_000, 90_000, (FILMS, 1), generator=generator) + 520 * torch.arange(FRAMES),
        "word": torch.randint(0, WORDS, (FILMS, 12), generator=generator),
        "asked": (torch.rand(FILMS, ASKED, generator=generator) < 0.9).long(),
        "box": torch.cat([corner, corner + size], -1),
    }


def loss(output):
    words = F.cross_entropy(output["words"].float().flatten(0, 1), torch.arange(24) % WORDS, reduction="sum")
    return words / output["count"].sum() + output["box"].float().square().mean()


def optimizer(params):
    return torch.optim.AdamW([each for each in params if each.requires_grad], lr=1e-2)
