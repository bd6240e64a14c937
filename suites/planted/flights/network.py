"""Where aircraft will be, from the positions that they send: a convolution over the last minutes, and a warning where two come close."""


import torch
import torch.nn.functional as F
from torch import nn

PLANES, FIXES, DIM, PAIRS = 12, 40, 32, 6
EARTH = 6_371_000.0
STEPS = 1


def steps(latitude, longitude):
    """Kilometres to the north and the east from each position to the next. Both: whole microdegrees, [PLANES, FIXES]."""
    north = (latitude[:, 1:] - latitude[:, :-1]).float() * 1e-6
    east = (longitude[:, 1:] - longitude[:, :-1]).float() * 1e-6
    across = torch.cos(torch.deg2rad(latitude[:, 1:].float() * 1e-6))
    return torch.deg2rad(torch.stack([north, east * across], -1)) * EARTH / 1000


def pauses(clock):
    """Seconds between positions. clock: whole milliseconds of the day."""
    return (clock[:, 1:] - clock[:, :-1]).float() / 1000


def turned(heading):
    """By how many degrees each has turned, to the right. heading: whole tenths of a degree."""
    turn = (heading[:, 1:] - heading[:, :-1] + 1800) % 3600 - 1800
    return turn.float() / 10


def flown(step):
    """Kilometres since the first position, at each."""
    return step.float().norm(dim=-1).cumsum(-1)


def climbed(pascal, start):
    """Metres above the runway, by the pressure there and now. Both: whole pascals."""
    return -8434.0 * torch.log1p((pascal - start).float() / start.float())


def closest(apart, speed):
    """The square of the least distance of two that fly on straight. apart: kilometres; speed: of one beside the other, [PAIRS, 2]."""
    apart, speed = apart.float(), speed.float()
    beside = apart[..., 0] * speed[..., 1] - apart[..., 1] * speed[..., 0]
    return beside.square() / speed.square().sum(-1)


def arc(there, here):
    """The angle between two places on the globe. Both: unit vectors."""
    there, here = there.float(), here.float()
    return 2 * torch.asin((there - here).norm(dim=-1) / 2)


def globe(latitude, longitude):
    north, east = torch.deg2rad(latitude.float() * 1e-6), torch.deg2rad(longitude.float() * 1e-6)
    return torch.stack([north.cos() * east.cos(), north.cos() * east.sin(), north.sin()], -1)


class Flights(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.past = nn.Linear(6, DIM), nn.Conv1d(DIM, DIM, 5, padding=2)
        self.mix, self.ahead = nn.Linear(DIM, DIM), nn.Linear(DIM, 2)

    def forward(self, latitude, longitude, clock, heading, pascal, runway, airport):
        kind = self.enter.weight.dtype
        with torch.autocast("cpu", enabled=False):
            step, pause, turn = steps(latitude, longitude), pauses(clock), turned(heading)
            high = climbed(pascal, runway)
            told = torch.cat([step, pause[..., None] / 10, turn[..., None] / 5, high[:, 1:, None] / 1000, flown(step)[..., None] / 50], -1)
            left = arc(globe(latitude[:, -1], longitude[:, -1]), globe(airport[0], airport[1])) * EARTH / 1000
        x = F.gelu(self.enter(told.to(kind)))
        x = x + F.gelu(self.past(x.mT)).mT
        ahead = self.ahead(F.gelu(self.mix(x[:, -4:].mean(1))))
        with torch.autocast("cpu", enabled=False):
            speed = step[:, -1] / pause[:, -1:] + ahead.float() / 100
            apart = step[:PAIRS].sum(1) * 0.3 + 20 * speed[:PAIRS]
            near = closest(apart, speed[:PAIRS] + 0.02 * step[PAIRS:, 0])
        return {"ahead": ahead, "near": near, "high": high, "left": left, "turn": turn, "pause": pause, "step": step}


def make():
    torch.manual_seed(0)
    return Flights()


def batch():
    generator = torch.Generator().manual_seed(230)

    def whole(least, most, *size):
        return torch.randint(least, most, size, generator=generator)

    latitude = whole(46_000_000, 54_000_000, PLANES, 1) + whole(5_000, 15_000, PLANES, FIXES).cumsum(-1)
    longitude = whole(6_000_000, 14_000_000, PLANES, 1) + whole(8_000, 20_000, PLANES, FIXES).cumsum(-1)
    return {
        "latitude": latitude,
        "longitude": longitude,
        "clock": whole(20_000_000, 80_000_000, PLANES, 1) + whole(4_000, 12_000, PLANES, FIXES).cumsum(-1),
        "heading": (whole(0, 3600, PLANES, 1) + whole(-30, 30, PLANES, FIXES).cumsum(-1)) % 3600,
        "pascal": whole(94_000, 97_000, PLANES, FIXES),
        "runway": whole(99_500, 101_500, PLANES, 1),
        "airport": torch.stack([latitude[:, -1] + whole(900_000, 4_000_000, PLANES), longitude[:, -1] + whole(900_000, 4_000_000, PLANES)]),
    }


def loss(output):
    wrong = (output["ahead"].float() - output["step"][:, -1]).square().mean()
    told = output["high"].mean() / 1000 + output["left"].mean() / 100 + output["turn"].square().mean() / 10
    return wrong + 0.1 * output["near"].mean() + 1e-2 * told + 1e-3 * output["pause"].mean()


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
