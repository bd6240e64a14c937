"""Follows points through a video, after TAPIR: heat maps of likeness, a soft argmax, flow by least squares, tracks that are smoothed and warped."""

import torch
import torch.nn.functional as F
from torch import nn

TRACKS, FRAMES, GRID, CELL, DIM = 12, 6, 24, 80, 32
PATCH = 7
STEPS = 1


def centres(low):
    """Of the cells of the grid, in pixels: [GRID * GRID, 2]."""
    along = (torch.arange(GRID).float() + 0.5) * CELL
    return torch.stack(torch.meshgrid(along, along, indexing="xy"), -1).flatten(0, 1)


def expected(heat, low):
    """The mean place under a heat map: [..., 2] in pixels."""
    return heat.float() @ centres(low)


def spread(heat, place, low):
    """How wide a heat map is around its place, in pixels."""
    off = centres(low) - place[..., None, :]
    return (heat.float() * off.square().sum(-1)).sum(-1).add(1).sqrt()


def between(found, wanted, low):
    """Pixels from tenths of them."""
    return found - wanted.float() / 10


def times(microseconds, low):
    """Seconds since the first frame: [F]."""
    return (microseconds - microseconds[:1]).float() / 1e6


def speeds(places, seconds, low):
    """Pixels a second, from frame to frame."""
    return (places[:, 1:] - places[:, :-1]) / (seconds[1:] - seconds[:-1])[:, None]


def tensor(slope_x, slope_y, low):
    """The structure tensor of patches: sums of products of slopes."""
    return slope_x.square().sum(-1), slope_y.square().sum(-1), (slope_x * slope_y).sum(-1)


def determinant(xx, yy, xy, low):
    """Small where a patch is an edge and not a corner."""
    return xx * yy - xy.square()


def changes(before, after, low):
    """Of the light of patches, in whole levels of a 16-bit camera."""
    return (after - before).float()


def lucas_kanade(before, after, low):
    """The flow of patches by least squares: [P, 2]."""
    change = changes(before, after, low)[:, 1:-1, 1:-1].flatten(1)
    picture = before.float()
    slope_x = ((picture[:, 1:-1, 2:] - picture[:, 1:-1, :-2]) / 2).flatten(1)
    slope_y = ((picture[:, 2:, 1:-1] - picture[:, :-2, 1:-1]) / 2).flatten(1)
    xx, yy, xy = tensor(slope_x, slope_y, low)
    below = determinant(xx, yy, xy, low) + 1e-3 * (xx + yy).square()
    right_x, right_y = (slope_x * change).sum(-1), (slope_y * change).sum(-1)
    return -torch.stack([yy * right_x - xy * right_y, xx * right_y - xy * right_x], -1) / below[:, None]


def warped(place, lens, low):
    """Places after a homography, whose last row has some millionths."""
    below = place @ (lens[2, :2].float() / 1e9) + 1
    return (place @ (lens[:2, :2].float() / 1e6).T + lens[:2, 2].float() / 1000) / below[..., None]


def smoothed(places, share, low):
    """A running mean of places, frame by frame."""
    state, out = places[:, 0], [places[:, 0]]
    for each in places[:, 1:].unbind(1):
        state = state + share * (each - state)
        out.append(state)
    return torch.stack(out, 1)


def huber(off, low):
    length = (off.square().sum(-1) + 1e-6).sqrt()
    return torch.where(length < 4, length.square() / 8, length - 2)


class Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, DIM, 3, padding=1))
        self.query, self.seen = nn.Linear(DIM, DIM), nn.Linear(DIM + 5, 1)
        self.refine = nn.Conv1d(5, 16, 3, padding=1)
        self.out = nn.Conv1d(16, 2, 3, padding=1)
        self.sharp = nn.Parameter(torch.tensor(1.5))

    def forward(self, video, asked, before, after, microseconds, lens, truth):
        dtype = self.query.weight.dtype
        maps = self.features(video.to(dtype) / 255).flatten(2)
        query = self.query(maps[0].T[asked])
        likeness = torch.einsum("pd,fdg->pfg", query, maps).float()
        low = query.dtype
        with torch.autocast("cpu", enabled=False):
            heat = (likeness * self.sharp.float()).softmax(-1)
            place = expected(heat, low)
            wide, seconds = spread(heat, place, low), times(microseconds, low)
            flow = lucas_kanade(before, after, low)
            speed = speeds(place, seconds, low)
            still = smoothed(warped(place, lens, low), 0.3, low)
        facts = torch.cat([place / 960 - 1, F.pad(speed, (0, 0, 1, 0)) / 2000, wide[..., None] / 500], -1).transpose(1, 2)
        moved = place + 20 * self.out(F.gelu(self.refine(facts.to(dtype)))).transpose(1, 2).float()
        hidden = torch.cat([query[:, None].expand(-1, FRAMES, -1), facts.transpose(1, 2).to(query.dtype)], -1)
        seen = self.seen(hidden).float()[..., 0]
        with torch.autocast("cpu", enabled=False):
            cost = huber(between(moved, truth, low), low).mean() + 0.01 * huber(between(still, truth, low), low).mean()
        flow = flow.clamp(-3, 3)
        return {"moved": moved, "flow": flow, "still": still, "loss": cost / 100 + F.softplus(-seen).mean()}


def make():
    torch.manual_seed(0)
    return Tracker()


def batch():
    generator = torch.Generator().manual_seed(3)
    across = torch.arange(PATCH).float()
    tilt = torch.rand(TRACKS, 1, 1, generator=generator) * 0.3
    edge = 30_000 + 900 * torch.tanh(across - 3 + tilt * (across[:, None] - 3)) + 40 * torch.randn(TRACKS, PATCH, PATCH, generator=generator)
    moved = edge + 40 * torch.randn(TRACKS, PATCH, PATCH, generator=generator)
    return {
        "video": torch.randint(256, (FRAMES, 3, GRID, GRID), generator=generator),
        "asked": torch.randint(GRID * GRID, (TRACKS,), generator=generator),
        "before": edge.round().long(),
        "after": moved.round().long(),
        "microseconds": 73_000_000_000 + torch.tensor([0, 33_400, 66_700, 100_100, 133_400, 166_800]),
        "lens": torch.tensor([[1_010_000, 12_000, 4_000], [-9_000, 995_000, -7_000], [18_000, -12_000, 0]]),
        "truth": torch.randint(8_000, 11_000, (TRACKS, FRAMES, 2), generator=generator),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
