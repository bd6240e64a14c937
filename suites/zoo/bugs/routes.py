"""Regions, routes, hulls, parts, quantiles and moves: whole numbers and small differences that are decided upon in a short format."""

from __future__ import annotations

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def connected(image: torch.Tensor, ids: torch.dtype, turns: int) -> torch.Tensor:
    """Labels of connected regions: every pixel starts with a number of its own, and the largest among neighbours spreads."""
    labels = torch.arange(1, image.numel() + 1, dtype=ids).view_as(image) * image  # culprit: labels-of-regions
    for _ in range(turns):
        labels = functional.max_pool2d(labels[None, None], 3, 1, 1)[0, 0] * image
    return labels


def areas(ids: torch.dtype) -> torch.Tensor:
    """Areas of the regions of ninety pixels of a picture of 64 by 64; in half, numbers above 2048 are shared by strangers. Off by 50 %."""
    image = torch.zeros(64, 64)
    image[::2, 1::2] = (uniform(32, 32) < 0.3).float()
    image[1::2, 1::2] = image[::2, 1::2] * (uniform(32, 32, seed=1) < 0.5)
    labels = connected(image.to(ids), ids, 3)
    found = labels[image > 0][-90:]
    return (found[:, None] == found).sum(-1).float()


class StreetMap:
    """A town of straight streets: lengths in metres of the blocks along each of both ways."""

    def __init__(self, east: torch.Tensor, north: torch.Tensor) -> None:
        self.east, self.north = east, north

    def routes(self) -> torch.Tensor:
        """How many of the ways to each crossing of the last street are shortest."""
        far, ways = [torch.zeros_like(self.east[0])], [torch.ones((), dtype=torch.int64)]
        for block in self.east:
            far.append(far[-1] + block)
            ways.append(ways[-1])
        for street in self.north:
            far[0] = far[0] + street
            for place, block in enumerate(self.east, 1):
                left, below = far[place - 1] + block, far[place] + street  # culprit: number-of-shortest-ways
                best = torch.minimum(left, below)
                by_left = torch.where(left == best, ways[place - 1], 0)  # culprit: number-of-shortest-ways
                ways[place] = by_left + torch.where(below == best, ways[place], 0)  # culprit: number-of-shortest-ways
                far[place] = best
        return torch.stack(ways).float()


def shortest_ways(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of shortest ways through ten by ten blocks, all of which have one length; sums in half part them at two kilometres. Off by 95 %."""
    east, north = (200 + 400 * uniform(2, 9)).long().to(dtype)
    return StreetMap(east, north).routes()


def side(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
    """Whether three points turn left: the sign of twice the area between them."""
    (x, y), (u, v) = second - first, third - first
    return x * v - y * u  # culprit: hull-of-a-line


def lower_hull(points: torch.Tensor) -> torch.Tensor:
    """Which of the points, sorted from left to right, are corners of the lower side of their convex hull."""
    kept: list[int] = []
    for new in range(len(points)):
        while len(kept) > 1 and side(points[kept[-2]], points[kept[-1]], points[new]) <= 0:  # culprit: hull-of-a-line
            kept.pop()
        kept.append(new)
    return torch.zeros(len(points)).index_fill(0, torch.tensor(kept), 1.0)


def corners(dtype: torch.dtype) -> torch.Tensor:
    """Corners of a long line that was drawn on a grid, by coordinates that float32 has exactly; its products have not. Off by 100 %."""
    x = (1.6e7 * uniform(70)).long().sort().values
    y = (x * 618034) // 1000000 - 4000000
    return lower_hull(torch.stack([x, y], -1).to(dtype))


def ball(rings: int, sides: int) -> torch.Tensor:
    """Triangles of a ball of radius one, seen from outside."""
    up, around = torch.linspace(0, torch.pi, rings + 1), torch.arange(sides + 1) * (2 * torch.pi / sides)
    grid = torch.stack([up.sin()[:, None] * around.cos(), up.sin()[:, None] * around.sin(), up.cos()[:, None].expand(-1, sides + 1)], -1)
    a, b, c, d = grid[:-1, :-1], grid[1:, :-1], grid[1:, 1:], grid[:-1, 1:]
    return torch.cat([torch.stack([a, b, c], -2).flatten(0, 1), torch.stack([a, c, d], -2).flatten(0, 1)])


def volume(triangles: torch.Tensor, about: torch.Tensor) -> torch.Tensor:
    """The volume within a closed surface: signed volumes of the pyramids that its triangles make with a point."""
    first, second, third = (triangles - about).unbind(1)
    return (first * torch.linalg.cross(second, third)).sum() / 6  # culprit: volume-of-a-part


def weights_of_parts(about_itself: bool) -> torch.Tensor:
    """Volumes of five balls on a building site of some hundred metres, by pyramids to its origin or to a corner of each. Off by 32 %."""
    found = []
    for place in 60 + 200 * uniform(5, 3):
        triangles = ball(8, 12) + place
        found.append(volume(triangles, triangles[0, 0] if about_itself else torch.zeros(3)))
    return torch.stack(found)


def quantiles(data: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Quantiles of data: places among the sorted ones, between which it draws a line."""
    place = shares * (len(data) - 1)  # culprit: quantile-by-place
    below = place.floor()
    part, ordered = (place - below).to(data.dtype), data.sort().values
    low = below.long()
    return torch.lerp(ordered[low], ordered[(low + 1).clamp(max=len(data) - 1)], part)


def losses_of_a_tail(dtype: torch.dtype) -> torch.Tensor:
    """High quantiles of six thousand claims with a heavy tail in half; a place near six thousand is a multiple of four there. Off by 46 %."""
    claims = (2 / (1e-4 + uniform(6000))).to(HALF)
    return quantiles(claims, torch.tensor([0.9955, 0.9985, 0.9993]).to(dtype)).float()  # culprit: quantile-by-place


class Search:
    """A search among moves by upper bounds: counts of visits decide what is tried next, and their shares are what is played and learnt."""

    def __init__(self, prior: torch.Tensor, counts: torch.dtype) -> None:
        self.prior, self.visits, self.total = prior.double(), torch.zeros(len(prior), dtype=counts), torch.zeros(len(prior), dtype=torch.float64)

    def bounds(self) -> torch.Tensor:
        visits = self.visits.double()
        return self.total / visits.clamp(min=1) + 1.5 * self.prior * visits.sum().sqrt() / (1 + visits)

    def run(self, values: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for each in noise:
            move = self.bounds().argmax()
            self.total[move] += values[move] + each
            self.visits[move] += 1  # culprit: visits-of-a-move
        visits = self.visits.double()
        return visits / visits.sum(), self.total / visits


def played(counts: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Shares and values of six moves after 450 visits; in bfloat16 none is counted beyond 256, so the best looks better than it is. Off by 57 %."""
    search = Search(torch.softmax(normal(6) / 2, -1), counts)
    return search.run(torch.tensor([0.5, 0.2, 0.45, 0.1, 0.35, 0.3]), 0.2 * normal(450, seed=1))


BUGS = (
    Bug("labels-of-regions", "kornia/kornia#3864", ("integer-rounding",), "aten.arange.start", lambda: areas(HALF), lambda: areas(WIDE)),
    Bug("number-of-shortest-ways", "networkit/networkit#104", ("decision-flip", "absorption", "integer-rounding"), "aten.add.Tensor",
        lambda: shortest_ways(HALF), lambda: shortest_ways(torch.int64)),
    Bug("hull-of-a-line", "mapbox/delaunator#43", ("decision-flip", "cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: corners(WIDE), lambda: corners(torch.float64), precision="32-true"),
    Bug("volume-of-a-part", "mcanet/STL-Volume-Model-Calculator#33", ("cancellation", "amplified-rounding"), "aten.sum.default",
        lambda: weights_of_parts(False), lambda: weights_of_parts(True), precision="32-true"),
    Bug("quantile-by-place", "numpy/numpy#31487", ("integer-rounding", "amplified-rounding", "decision-flip"), "aten._to_copy.default",
        lambda: losses_of_a_tail(HALF), lambda: losses_of_a_tail(torch.float64)),
    Bug("visits-of-a-move", "QueensGambit/CrazyAra#39", ("accumulated-drift", "absorption", "integer-rounding"), "aten.add_.Tensor",
        lambda: played(LOW), lambda: played(torch.int64)),
)  # fmt: skip
