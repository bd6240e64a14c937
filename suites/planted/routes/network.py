"""A pointer network that plans routes: places in a country's grid, time windows, loads, log-chances of whole routes, advantages over a mean."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
MAPS, PLACES, STARTS, WIDTH, HEADS, CLIP, FULL = 3, 15, 4, 48, 4, 10.0, 200
DIM = WIDTH // HEADS


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def centred(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Kilometres from the middle of the map, of metres in the country's grid."""
    places = places.double()
    return ((places - places.mean(1, keepdim=True)) / 1000).float()


def driven(places: torch.Tensor, tours: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Kilometres of each leg of each tour: [maps, starts, legs]."""
    along = places.float().unsqueeze(1).expand(-1, STARTS, -1, -1).gather(2, tours.unsqueeze(-1).expand(-1, -1, -1, 2))
    return (along[:, :, 1:] - along[:, :, :-1]).norm(dim=-1)


def arrivals(legs: torch.Tensor, begin: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The second of the day at which each stop is reached, at 36 km/h and with two minutes at each stop."""
    return begin.float().view(-1, 1, 1) + (100 * legs + 120).cumsum(-1)


def late(reached: torch.Tensor, due: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Hours of lateness at each stop."""
    return (reached - due.float()).clamp(min=0) / 3600


def room(loads: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much still fits in after each stop, as a share; loads are whole numbers of boxes."""
    return (FULL - loads.cumsum(-1)).float() / FULL


def pointed(scores: torch.Tensor, free: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Log-chances of the next stop: scores that are bent at ten, of the stops that are left."""
    bent = CLIP * torch.tanh(scores.float())
    return functional.log_softmax(bent.masked_fill(~free, -torch.inf), -1)


def whole(steps: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The log-chance of a route."""
    return steps.float().sum(-1)


def advantages(costs: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much longer each route is than the mean of its map, in standard deviations; one map's routes are alike."""
    apart = costs.float() - costs.float().mean(1, keepdim=True)
    return apart / (apart.square().mean(1, keepdim=True).sqrt() + 1e-6)


def ratio(new: torch.Tensor, old: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much likelier a route has become."""
    return torch.exp(new.float() - old.float())


def pairs(tours: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """One number for each leg, of where it begins and ends, with which legs of all maps are counted."""
    maps = torch.arange(MAPS).view(-1, 1, 1)
    return (maps * PLACES + tours[:, :, :-1]) * PLACES + tours[:, :, 1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        query, key, value = (each.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for each in self.qkv(self.first(x).to(x.dtype)).chunk(3, -1))
        scores = query @ key.transpose(-1, -2) / DIM**0.5 - far.unsqueeze(1).to(query.dtype)
        x = x + self.out((torch.softmax(scores, -1).to(value.dtype) @ value).transpose(1, 2).flatten(2))
        return x + self.narrow(functional.relu(self.wide(self.second(x).to(x.dtype))))


class Routes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Linear(3, WIDTH), nn.ModuleList(Block() for _ in range(2))
        self.ask, self.keys, self.level = nn.Linear(2 * WIDTH + 2, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.used = nn.Parameter(torch.zeros(61))

    def forward(
        self, places: torch.Tensor, boxes: torch.Tensor, due: torch.Tensor, begin: torch.Tensor, tours: torch.Tensor, shifts: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        weight = self.enter.weight
        low = low_dtype(weight)
        with torch.autocast("cpu", enabled=False):
            near = centred(places, low)
            far = torch.cdist(near, near) / 10
            legs = driven(near, tours, low)
            reached = arrivals(legs, begin, low)
            along = tours[:, :, 1:]
            lateness = late(reached, due.unsqueeze(1).expand(-1, STARTS, -1).gather(-1, along), low)
            filled = room(boxes.unsqueeze(1).expand(-1, STARTS, -1).gather(-1, along), low)
            numbers = pairs(tours, low) % 61
        x = self.enter(torch.cat([near / 10, boxes.float().unsqueeze(-1) / 20], -1).to(weight.dtype))
        for block in self.blocks:
            x = block(x, far)
        keys = self.keys(x)
        at = x.unsqueeze(1).expand(-1, STARTS, -1, -1).gather(2, tours[:, :, :-1].unsqueeze(-1).expand(-1, -1, -1, WIDTH))
        state = torch.stack([functional.pad(filled[..., :-1], (1, 0), value=1.0), functional.pad(lateness[..., :-1], (1, 0))], -1)
        ask = self.ask(torch.cat([at, x.mean(1)[:, None, None].expand_as(at), state.to(at.dtype)], -1))
        scores = torch.einsum("msld,mpd->mslp", ask, keys) / WIDTH**0.5
        gone = functional.one_hot(tours[:, :, :-1], PLACES).cumsum(2) > 0
        guess = self.level(x.mean(1)).squeeze(-1)
        with torch.autocast("cpu", enabled=False):
            chances = pointed(scores + self.used.to(scores.dtype)[numbers].unsqueeze(-1), ~gone, low)
            steps = chances.gather(-1, along.unsqueeze(-1)).squeeze(-1)
            new = whole(steps, low)
            better = advantages(legs.sum(-1) + lateness.sum(-1), low)
            by = ratio(new, new.detach() + shifts.float(), low)
            cost = torch.maximum(better * by, better * by.clamp(0.8, 1.2)).mean()
            cost = cost + 0.1 * (guess.float() - legs.sum(-1).mean(1) / 100).square().mean()
        return {"loss": cost, "new": new, "better": better, "ratio": by, "lateness": lateness, "room": filled}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Routes()


def batch() -> dict[str, torch.Tensor]:
    """Stops in towns, in metres of a grid that begins far away; all routes of the last map are one."""
    generator = torch.Generator().manual_seed(25)
    middle = torch.tensor([[[412_300, 5_654_100]], [[691_750, 5_334_800]], [[565_200, 5_933_400]]])
    tours = torch.rand(MAPS, STARTS, PLACES, generator=generator).argsort(-1)
    tours[2] = tours[2, :1]
    return {
        "places": middle + torch.randint(-6_000, 6_000, (MAPS, PLACES, 2), generator=generator),
        "boxes": torch.randint(1, 13, (MAPS, PLACES), generator=generator),
        "due": torch.randint(30_000, 42_000, (MAPS, PLACES), generator=generator),
        "begin": torch.tensor([28_800, 30_600, 27_900]),
        "tours": tours,
        "shifts": torch.randint(-8, 9, (MAPS, STARTS), generator=generator) / 32,
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
