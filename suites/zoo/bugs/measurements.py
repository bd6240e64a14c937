"""What is measured and looked up: distances of landmarks, spreads of prices, laser scans, voxels, priorities, neighbours."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

WIDE, DOUBLE = torch.float32, torch.float64


def distance_matrix(x: torch.Tensor, y: torch.Tensor, apart: bool) -> torch.Tensor:
    if apart:
        return (x[:, None] - y[None]).norm(dim=-1)
    squares = x.square().sum(1)[:, None] + y.square().sum(1)[None]
    squares = squares - 2 * x @ y.T  # culprit: landmark-distances
    return squares.sqrt()  # culprit: landmark-distances


def registered(apart: bool) -> torch.Tensor:
    """How far each landmark of a scan is off its partner when two scans are aligned, in millimetres of the scanner's frame."""
    fixed = torch.tensor([120.0, -240.0, 610.0]) + 60 * normal(40, 3)
    moved = fixed + 0.02 * normal(40, 3, seed=1)
    return distance_matrix(fixed, moved, apart).amin(1)


def rolling_spread(prices: torch.Tensor, window: int, shifted: bool) -> torch.Tensor:
    """The standard deviation of the last prices, by sums that go on: what comes in is added, what leaves is taken away."""
    values = (prices.double() - prices[0].double()) if shifted else prices
    sums = torch.cat([values.new_zeros(1), values.cumsum(0)])  # culprit: rolling-spread
    squares = torch.cat([values.new_zeros(1), (values * values).cumsum(0)])  # culprit: rolling-spread
    total = sums[window:] - sums[:-window]
    square = squares[window:] - squares[:-window]  # culprit: rolling-spread
    variance = (square - total * total / window) / (window - 1)  # culprit: rolling-spread
    return variance.clamp_min(0).sqrt().float()


def volatility(shifted: bool) -> torch.Tensor:
    """A stock of 180 that moves by cents, over twenty minutes each."""
    return rolling_spread(180 + 0.05 * normal(600).cumsum(0), 20, shifted)


class RieglTransform:
    """From a scanner's own frame to the map's, by the matrix that its file has."""

    def __init__(self, yaw: float, origin: tuple[float, float, float], dtype: torch.dtype) -> None:
        cosine, sine = math.cos(yaw), math.sin(yaw)
        self.rotation = torch.tensor([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]], dtype=dtype)
        self.origin = torch.tensor(origin, dtype=dtype)

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        return points.to(self.rotation.dtype) @ self.rotation.T + self.origin  # culprit: scan-in-utm


def scanned(dtype: torch.dtype) -> torch.Tensor:
    """How far neighbouring returns of a trunk lie apart, in a map whose northings are seven million metres."""
    angles = torch.linspace(0, 2, 120)
    trunk = torch.stack([12 + 0.4 * angles.cos(), 7 + 0.4 * angles.sin(), 0.02 * torch.arange(120.0)], 1) + 0.003 * normal(120, 3)
    places = RieglTransform(0.7, (512_345.125, 6_912_345.25, 41.5), dtype)(trunk)
    return (places[1:] - places[:-1]).norm(dim=-1).float()  # culprit: scan-in-utm


def voxel_places(numbers: torch.Tensor, sizes: tuple[int, int, int], whole: bool) -> torch.Tensor:
    """A voxel's place in its grid, from its number."""
    if whole:
        width, height = sizes[0], sizes[1]
        z = torch.div(numbers, width * height, rounding_mode="floor")
        y = torch.div(numbers - z * width * height, width, rounding_mode="floor")
        return torch.stack([numbers - z * width * height - y * width, y, z], 1)
    width, height = torch.tensor(float(sizes[0])), torch.tensor(float(sizes[1]))
    z = (numbers[:, None] / width / height).long()[:, 0]  # culprit: voxel-numbers
    y = ((numbers[:, None] - z[:, None] * width * height) / width).long()[:, 0]  # culprit: voxel-numbers
    x = (numbers[:, None] - z[:, None] * width * height - y[:, None] * width)[:, 0]  # culprit: voxel-numbers
    return torch.stack([x.long(), y, z], 1)


def pillars(whole: bool) -> torch.Tensor:
    """What a detector is given of each point: how far it is off the middle of its voxel."""
    sizes, low, edge = (1440, 1440, 41), torch.tensor([-54.0, -54.0, -5.0]), torch.tensor([0.075, 0.075, 0.2])
    points = low + edge * torch.tensor([1440.0, 1440.0, 41.0]) * (0.05 + 0.9 * uniform(300, 3))
    place = ((points - low) / edge).floor().long()
    numbers = place[:, 0] + sizes[0] * (place[:, 1] + sizes[1] * place[:, 2])
    return points - (low + edge * (voxel_places(numbers, sizes, whole) + 0.5))


class SumTree:
    """Priorities of a replay buffer: a node is the sum of its two children, and a change goes up to the root."""

    def __init__(self, depth: int, dtype: torch.dtype) -> None:
        self.depth, self.nodes = depth, torch.zeros(2 ** (depth + 1) - 1, dtype=dtype)

    def set(self, index: int, priority: torch.Tensor) -> None:
        node = index + 2**self.depth - 1
        change = priority.to(self.nodes.dtype) - self.nodes[node]  # culprit: priority-tree
        self.nodes[node] += change  # culprit: priority-tree
        while node > 0:
            node = (node - 1) // 2
            self.nodes[node] += change  # culprit: priority-tree

    def probabilities(self) -> torch.Tensor:
        return self.nodes[2**self.depth - 1 :] / self.nodes[0]  # culprit: priority-tree


def prioritised(dtype: torch.dtype) -> torch.Tensor:
    """Transitions come in with the largest error so far, which is of an untrained critic; training brings them down."""
    tree = SumTree(5, dtype)
    for index in range(32):
        tree.set(index, 4.0e5 * (1 + uniform(1, seed=index)[0]))
    for index in range(32):
        tree.set(index, 0.05 * (1 + uniform(1, seed=100 + index)[0]))
    return tree.probabilities().float()


def searched(by_distance: bool) -> torch.Tensor:
    """The distances of the ten neighbours that a search in vectors of small integers gives; similar is exp(-distance)."""
    vectors, query = (190 * uniform(400, 8)).round(), (190 * uniform(8, seed=1)).round()
    distances = (vectors - query).norm(dim=-1)
    similarities = torch.exp(-distances)  # culprit: far-neighbours
    order = distances.argsort() if by_distance else similarities.argsort(descending=True, stable=True)  # culprit: far-neighbours
    return distances[order[:10]]


BUGS = (
    Bug("landmark-distances", "BioMedIA/deepali#51", ("cancellation", "amplified-rounding", "nan"), "aten.sub.Tensor", lambda: registered(False),
        lambda: registered(True), precision="32-true"),
    Bug("rolling-spread", "numbagg/numbagg#770", ("cancellation", "amplified-rounding", "accumulated-drift"), "aten.sub.Tensor",
        lambda: volatility(False), lambda: volatility(True), precision="32-true"),
    Bug("scan-in-utm", "ubarsc/pylidar#3", ("amplified-rounding", "cancellation"), "aten.add.Tensor", lambda: scanned(WIDE), lambda: scanned(DOUBLE),
        precision="32-true"),
    Bug("voxel-numbers", "PaddlePaddle/Paddle3D#38", ("integer-rounding", "cancellation", "decision-flip"), "aten.sub.Tensor", lambda: pillars(False),
        lambda: pillars(True), precision="32-true"),
    Bug("priority-tree", "instadeepai/flashbax#52", ("cancellation", "accumulated-drift", "absorption", "amplified-rounding"), "aten.add_.Tensor",
        lambda: prioritised(WIDE), lambda: prioritised(DOUBLE), precision="32-true"),
    Bug("far-neighbours", "mosuka/laurus#933", ("decision-flip", "underflow"), "aten.exp.default", lambda: searched(False), lambda: searched(True),
        precision="32-true"),
)  # fmt: skip
