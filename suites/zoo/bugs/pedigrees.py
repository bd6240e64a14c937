"""Pedigrees: spreads of genes, messages of a large family, structures beside themselves, edges of molecules, densities, radial parts."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64


class Aggregate:
    """Means and variances of genes, by the kind of cell."""

    def __init__(self, kinds: torch.Tensor, many: int) -> None:
        self.belongs = kinds == torch.arange(many)[:, None]
        self.counts = self.belongs.sum(-1, keepdim=True)

    def mean_var(self, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        belongs = self.belongs.to(cells.dtype)
        mean = belongs @ cells / self.counts
        squares = belongs @ (cells * cells) / self.counts  # culprit: spread-of-a-gene
        variance = squares - mean * mean  # culprit: spread-of-a-gene
        return mean, variance * (self.counts / (self.counts - 1))


def spreads(kind: torch.dtype) -> torch.Tensor:
    """How much eight genes that are never silent vary in three kinds of cells. Some vary by less than nothing."""
    cells = (3000 + 300 * torch.arange(8) + (0.4 + 0.1 * torch.arange(8)) * normal(120, 8, seed=301)).to(kind)
    return Aggregate(torch.arange(120) % 3, 3).mean_var(cells)[1]


class Ancestor:
    """Somebody whose state is to be guessed from what the children know."""

    def __init__(self, children: list[Ancestor], known: torch.Tensor | None = None) -> None:
        self.children, self.known = children, known

    def message(self, passing: torch.Tensor) -> torch.Tensor:
        """How likely the leaves are, for each state of the parent."""
        return passing @ self.profile(passing)

    def profile(self, passing: torch.Tensor) -> torch.Tensor:
        if self.known is not None:
            return self.known
        product = torch.ones(len(passing), dtype=passing.dtype)
        for child in self.children:
            product = product * child.message(passing)  # culprit: message-of-a-large-family
        return product / product.sum()


def guessed(kind: torch.dtype, states: int = 60, many: int = 45) -> torch.Tensor:
    """Where an ancestor of forty-five lived, of sixty countries. Nowhere."""
    passing = (torch.eye(states, dtype=DOUBLE) * 0.4 + 0.6 / states * (0.5 + uniform(states, states, seed=302).double())).to(kind)
    homes = (8 * uniform(many, seed=303)).long()
    leaves = [Ancestor([], torch.eye(states, dtype=kind)[home]) for home in homes]
    return Ancestor(leaves).profile(passing)


def key_matrix(product: torch.Tensor) -> torch.Tensor:
    """The matrix of four by four whose largest eigenvalue says how well two structures fit onto each other."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = product
    rows = [[xx + yy + zz, yz - zy, zx - xz, xy - yx], [yz - zy, xx - yy - zz, xy + yx, zx + xz],
            [zx - xz, xy + yx, yy - xx - zz, yz + zy], [xy - yx, zx + xz, yz + zy, zz - xx - yy]]  # fmt: skip
    return torch.stack([torch.stack(row) for row in rows])


def rmsd(mobile: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """How far atoms are from those of a reference onto which they are turned."""
    mobile, reference = mobile - mobile.mean(0), reference - reference.mean(0)
    spread = ((mobile * mobile).sum() + (reference * reference).sum()) / 2  # culprit: structure-beside-itself
    fit = torch.linalg.eigvalsh(key_matrix(mobile.T @ reference))[-1]  # culprit: structure-beside-itself
    return (2 * (spread - fit) / len(mobile)).sqrt()  # culprit: structure-beside-itself


def departures(kind: torch.dtype) -> torch.Tensor:
    """How far a protein is from its first frame, after few steps. As far as noise."""
    first = 18 * normal(150, 3, seed=304).double()
    steps = [0.002 * (1 + step) * normal(150, 3, seed=305 + step).double() for step in range(10)]
    return torch.stack([rmsd((first + step).to(kind), first.to(kind)) for step in steps])


class Neighbours:
    """Which atoms are near to each other, from all distances."""

    def __init__(self, reach: float) -> None:
        self.reach = reach

    def edges(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        apart = torch.cdist(places, places)  # culprit: edges-of-a-molecule
        near = (apart < self.reach) & ~torch.eye(len(places), dtype=torch.bool)
        return near, apart


def bonded(kind: torch.dtype) -> torch.Tensor:
    """The energy of each atom of a chain that has drifted away from its box, by its neighbours. Anything."""
    chain = torch.stack([1.4 * torch.arange(50), torch.zeros(50), torch.zeros(50)], -1).double()
    places = chain + 0.1 * normal(50, 3, seed=320) + torch.tensor([5200.0, -3100.0, 4400.0])
    near, apart = Neighbours(4.0).edges(places.to(kind))
    return torch.where(near, torch.exp(-apart), 0.0).sum(-1)


def log_density(points: torch.Tensor, middle: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """The logarithm of a normal density of many measures."""
    away = points - middle
    quadratic = (away * torch.linalg.solve(covariance, away.T).T).sum(-1)
    return -0.5 * (len(middle) * math.log(2 * math.pi) + torch.log(torch.linalg.det(covariance)) + quadratic)  # culprit: density-of-many-measures


def densities(kind: torch.dtype, measures: int = 50) -> torch.Tensor:
    """How likely six plants are by fifty measures. Infinitely."""
    factors = 0.02 * normal(measures, measures, seed=321).double()
    covariance = factors @ factors.T / measures + 0.0004 * torch.eye(measures, dtype=DOUBLE)
    return log_density((0.03 * normal(6, measures, seed=322)).to(kind), torch.zeros(measures, dtype=kind), covariance.to(kind))


def radial(order: int, place: torch.Tensor) -> torch.Tensor:
    """A modified spherical Bessel function, in closed form."""
    if order == 0:
        return torch.sinh(place) / place
    if order == 1:
        return (place * torch.cosh(place) - torch.sinh(place)) / place**2  # culprit: radial-parts-near-nought
    return ((place**2 + 3) * torch.sinh(place) - 3 * place * torch.cosh(place)) / place**3  # culprit: radial-parts-near-nought


def radial_parts(kind: torch.dtype) -> torch.Tensor:
    """Three radial functions at forty places near nought, each by its first term. Noise."""
    places = torch.linspace(0.01, 0.2, 40, dtype=DOUBLE).to(kind)
    return torch.stack([radial(order, places) * factor / places**order for order, factor in ((0, 1), (1, 3), (2, 15))])


BUGS = (
    Bug("spread-of-a-gene", "scverse/scanpy#4122", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: spreads(SINGLE), lambda: spreads(DOUBLE), precision="32-true"),
    Bug("message-of-a-large-family", "neherlab/treetime#39", ("underflow", "nan"), "aten.mul.Tensor",
        lambda: guessed(SINGLE), lambda: guessed(DOUBLE), precision="32-true"),
    Bug("structure-beside-itself", "MDAnalysis/mdanalysis#111", ("cancellation", "amplified-rounding", "nan"), "aten.sub.Tensor",
        lambda: departures(SINGLE), lambda: departures(DOUBLE), precision="32-true"),
    Bug("edges-of-a-molecule", "orbital-materials/orb-models#91", ("local-drift", "cancellation", "amplified-rounding", "underflow"),
        "aten._euclidean_dist.default", lambda: bonded(SINGLE), lambda: bonded(DOUBLE), precision="32-true"),
    Bug("density-of-many-measures", "kthohr/stats#9", ("underflow", "overflow"), "aten._linalg_det.default",
        lambda: densities(SINGLE), lambda: densities(DOUBLE), precision="32-true"),
    Bug("radial-parts-near-nought", "synesenom/ran#465", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: radial_parts(SINGLE), lambda: radial_parts(DOUBLE), precision="32-true"),
)  # fmt: skip
