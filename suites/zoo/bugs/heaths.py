"""Heaths: spreads of atoms, notes that go on, actions at the edge, histograms of many cells, ships far out, gestures, old trees."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64


class Descriptor(nn.Module):
    """Features of an atom, from the distances of its neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, width)

    def forward(self, distances: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(distances)))


def std_over_samples(values: torch.Tensor, system: torch.Tensor, systems: int, centred: bool) -> torch.Tensor:
    """The standard deviation of each feature over the atoms of a system."""
    empty = torch.zeros(systems, values.shape[1])
    count = torch.zeros(systems).index_add(0, system, torch.ones(len(system)))[:, None]
    mean = empty.index_add(0, system, values) / count
    if centred:
        return torch.sqrt(empty.index_add(0, system, (values - mean[system]) ** 2) / count)
    square = empty.index_add(0, system, values**2) / count
    return torch.sqrt(square - mean**2)  # culprit: spread-of-like-atoms


def described(centred: bool) -> torch.Tensor:
    """How much the features of ten crystals vary; the four atoms of each have surroundings that are almost the same."""
    torch.manual_seed(7101)
    model, system = Descriptor(8), torch.arange(10).repeat_interleave(4)
    distances = normal(10, 6, seed=7102)[system] + 3e-4 * normal(40, 6, seed=7103)
    with torch.no_grad():
        return std_over_samples(model(distances), system, 10, centred)


class SineWave:
    """A source of sound that counts its samples."""

    def __init__(self, frequency: int, rate: int, whole: bool) -> None:
        self.frequency, self.rate, self.whole, self.sample = frequency, rate, whole, 0

    def skip(self, seconds: int) -> SineWave:
        self.sample += seconds * self.rate
        return self

    def block(self, length: int) -> torch.Tensor:
        samples = torch.arange(self.sample, self.sample + length)
        self.sample += length
        if self.whole:
            return torch.sin(2 * math.pi * (samples * self.frequency % self.rate).float() / self.rate)
        value = 2 * math.pi * self.frequency * samples.float() / self.rate  # culprit: note-that-goes-on
        return torch.sin(value)


def played(whole: bool) -> torch.Tensor:
    """A block of three notes after two minutes, mixed and faded in."""
    notes = [SineWave(each, 48000, whole).skip(120) for each in (440, 1760, 3000)]
    return 0.3 * torch.linspace(0.2, 1, 480) * torch.stack([each.block(480) for each in notes]).sum(0)


class SquashedPolicy(nn.Module):
    """A Gaussian over what is squashed into actions between -1 and 1."""

    def __init__(self, by_softplus: bool) -> None:
        super().__init__()
        torch.manual_seed(7121)
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6))
        self.by_softplus = by_softplus
        with torch.no_grad():
            self.body[-1].weight[:3] *= 4  # a trained policy goes all out

    def forward(self, state: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.body(state).chunk(2, -1)
        log_std = spread.clamp(-2, 1)
        raw = mean + log_std.exp() * noise
        density = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        action = torch.tanh(raw)
        if self.by_softplus:
            return action, density - 2 * (math.log(2.0) - raw - nn.functional.softplus(-2 * raw)).sum(-1)
        return action, density - torch.log(1 - action**2).sum(-1)  # culprit: actions-at-the-edge


def squashed(by_softplus: bool) -> torch.Tensor:
    """The loss of an actor in three batches: the temperature times how likely its actions were, less their value."""
    policy, losses = SquashedPolicy(by_softplus), []
    for batch in range(3):
        action, likely = policy(2 * normal(64, 8, seed=7122 + batch), normal(64, 3, seed=7132 + batch))
        losses.append((0.2 * likely - action.mean(-1)).mean())
    return torch.stack(losses)


class Histogram:
    """Counts the cells of a simulation by their values, one domain after another."""

    def __init__(self, edges: torch.Tensor, counts: torch.Tensor) -> None:
        self.edges, self.counts = edges, counts

    def execute(self, cells: torch.Tensor) -> None:
        which = torch.bucketize(cells, self.edges)
        self.counts.index_add_(0, which, torch.ones(len(cells), dtype=self.counts.dtype))  # culprit: cells-by-the-million


def tallied(kind: torch.dtype) -> torch.Tensor:
    """Two bins of a run of which 33 million cells were counted before; ten more domains come in."""
    histogram = Histogram(torch.tensor([0.0]), torch.tensor([16.7e6, 16.6e6], dtype=kind))
    for domain in range(10):
        histogram.execute(normal(200_000, seed=7141 + domain) + 0.1)
    return histogram.counts


class Renderer:
    """Draws ships, whose places in space are known in float64; matrices are in float32, as shaders want them."""

    def __init__(self, eye: torch.Tensor, turn: torch.Tensor, relative: bool) -> None:
        self.eye, self.turn, self.relative = eye, turn, relative

    def view(self) -> torch.Tensor:
        matrix = torch.eye(4)
        matrix[:3, :3] = self.turn
        if not self.relative:
            matrix[:3, 3] = -(self.turn @ self.eye.float())  # culprit: ships-far-out
        return matrix

    def world(self, position: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        matrix = torch.eye(4)
        matrix[:3, :3] = turn
        matrix[:3, 3] = (position - self.eye).float() if self.relative else position.float()  # culprit: ships-far-out
        return matrix

    def draw(self, mesh: torch.Tensor, position: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        seen = self.view() @ self.world(position, turn) @ mesh
        return seen[:2] / seen[2]


def rotation(angle: float) -> torch.Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def drawn(relative: bool) -> torch.Tensor:
    """Where eight corners of each of three ships are on the screen; all are twenty thousand kilometres from the sun."""
    eye = torch.tensor([1.7e7, 3.1e6, 9.3e6], dtype=DOUBLE) + uniform(3, seed=7151).double()
    renderer = Renderer(eye, rotation(0.4), relative)
    mesh = torch.cat([2 * normal(3, 8, seed=7152), torch.ones(1, 8)])
    ahead = rotation(-0.4).double() @ torch.tensor([0.0, 0.0, 60.0], dtype=DOUBLE)
    places = [eye + ahead + 9 * normal(3, seed=7153 + ship).double() for ship in range(3)]
    return torch.stack([renderer.draw(mesh, place, rotation(0.3 * ship)) for ship, place in enumerate(places)])


class SoftmaxOp(nn.Module):
    """What a graph for a microcontroller ends in."""

    def __init__(self, shifted: bool) -> None:
        super().__init__()
        self.shifted = shifted

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        if self.shifted:
            logits = logits - logits.amax(-1, keepdim=True)
        likely = torch.exp(logits)  # culprit: gestures-in-raw-units
        return likely / likely.sum(-1, keepdim=True)


def gestured(shifted: bool) -> torch.Tensor:
    """Which of five gestures twelve windows of an accelerometer are; it gives thousandths of g, which nobody scaled."""
    torch.manual_seed(7161)
    model = nn.Sequential(nn.Linear(33, 20), nn.ReLU(), nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 5), SoftmaxOp(shifted))
    with torch.no_grad():
        return model(2600 * normal(12, 33, seed=7162))


class LogLikelihoods:
    """Messages up a tree, in logarithms, over a grid of times."""

    def __init__(self, times: torch.Tensor, rate: float, streaming: bool) -> None:
        self.times, self.rate, self.streaming = times, rate, streaming
        self.gaps = (times[:, None] - times).clamp(min=1e-3)
        self.below = torch.where(times[:, None] > times, 0.0, -torch.inf)

    def logsumexp(self, x: torch.Tensor) -> torch.Tensor:
        if self.streaming:
            return torch.logsumexp(x, -1)
        return torch.log(torch.exp(x).sum(-1))  # culprit: dates-of-ancestors

    def up(self, child: torch.Tensor, mutations: int) -> torch.Tensor:
        span = self.rate * self.gaps
        branch = mutations * torch.log(span) - span - math.lgamma(mutations + 1)
        return self.logsumexp(branch + self.below + child)


def dated(streaming: bool) -> torch.Tensor:
    """How likely the times on a grid are for the root of two lines; those that are near the present are far from what its mutations say."""
    likelihoods = LogLikelihoods(torch.linspace(0, 1, 20), 150.0, streaming)
    root = torch.zeros(20)
    for line in range(2):
        message = torch.full((20,), -torch.inf)
        message[0] = 0.0
        for branch in range(2):
            message = likelihoods.up(message, 95 + 10 * branch + 5 * line)
        root = root + message
    return root[2:] - root[2:].amax()


BUGS = (
    Bug("spread-of-like-atoms", "metatensor/metatensor#902", ("cancellation", "amplified-rounding", "nan"), "aten.sub.Tensor",
        lambda: described(centred=False), lambda: described(centred=True), phase="data", precision="32-true"),
    Bug("note-that-goes-on", "RustAudio/rodio#207", ("amplified-rounding",), "aten.div.Tensor",
        lambda: played(whole=False), lambda: played(whole=True), precision="32-true"),
    Bug("actions-at-the-edge", "rail-berkeley/softlearning#52", ("overflow", "cancellation", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: squashed(by_softplus=False), lambda: squashed(by_softplus=True), precision="32-true"),
    Bug("cells-by-the-million", "visit-dav/visit#2104", ("integer-rounding", "absorption", "accumulated-drift"), "aten.index_add_.default",
        lambda: tallied(SINGLE), lambda: tallied(DOUBLE), precision="32-true"),
    Bug("ships-far-out", "Limit-Theory-Redux/ltheory#281", ("cancellation", "amplified-rounding"), "aten.mm.default",
        lambda: drawn(relative=False), lambda: drawn(relative=True), precision="32-true",
        expected_miss="three of sixteen elements of a product of two matrices cancel: too few to count as lost digits"),
    Bug("gestures-in-raw-units", "uTensor/uTensor#175", ("overflow",), "aten.exp.default",
        lambda: gestured(shifted=False), lambda: gestured(shifted=True), module="5", precision="32-true"),
    Bug("dates-of-ancestors", "tskit-dev/tsdate#171", ("underflow", "overflow"), "aten.exp.default",
        lambda: dated(streaming=False), lambda: dated(streaming=True), precision="32-true"),
)  # fmt: skip
