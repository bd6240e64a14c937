"""Wells: channels that alternate, scores of a cache, gradients of many small batches, turned pictures, heights, filters, sums from the end."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class InstanceNorm(nn.Module):
    """Brings each channel of each volume to mean 0 and variance 1."""

    def __init__(self, wide: bool, eps: float = 1e-5) -> None:
        super().__init__()
        self.wide, self.eps = wide, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x.dtype
        if self.wide:
            x = x.float()
        around = x - x.mean((2, 3, 4), keepdim=True)
        variance = around.square().mean((2, 3, 4), keepdim=True)  # culprit: channel-that-alternates
        return (around * (variance + self.eps).rsqrt()).to(given)


class Segmenter(nn.Module):
    """The first stages of a network that finds organs in scans."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(7001)
        self.first, self.last = nn.Conv3d(1, 6, 3, padding=1, bias=False), nn.Conv3d(6, 3, 1)
        self.norm = InstanceNorm(wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(functional.leaky_relu(self.norm(self.first(x))))


def segmented(wide: bool) -> torch.Tensor:
    """Two scans in half, of numbers up to a thousand as scanners give them."""
    scans = 500 * normal(2, 1, 6, 8, 8, seed=7002)
    model, found = Segmenter(wide).to(HALF), []
    with torch.no_grad():
        for scan in scans.to(HALF):
            found.append(model(scan[None]).float())
    return torch.cat(found)


class ByteCache:
    """Keys and values of the words so far, as bytes with a scale for each word."""

    def __init__(self) -> None:
        self.keys: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.values: list[tuple[torch.Tensor, torch.Tensor]] = []

    @staticmethod
    def pack(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.float().abs().amax(-1, keepdim=True) / 127
        return (x.float() / scale).round().to(torch.int8), scale

    def append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self.keys.append(self.pack(key))
        self.values.append(self.pack(value))

    @staticmethod
    def unpack(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        return torch.stack([codes.float() * scale for codes, scale in parts])


class Decoder(nn.Module):
    """Attention of one word to those before it, whose products are summed in float32."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(7011)
        self.query, self.key, self.value = (nn.Linear(64, 64, bias=False) for _ in range(3))
        self.wide = wide

    def forward(self, word: torch.Tensor, cache: ByteCache) -> torch.Tensor:
        cache.append(self.key(word), self.value(word))
        sums = cache.unpack(cache.keys) @ self.query(word).float() / math.sqrt(64)
        scores = sums if self.wide else sums.to(HALF)  # culprit: scores-of-a-cache
        scores = scores - scores.max()
        weights = scores.exp() / scores.exp().sum()
        return (weights.float() @ cache.unpack(cache.values)).to(HALF)


def decoded(wide: bool) -> torch.Tensor:
    """Twelve words in half of a model whose activations are large."""
    model, cache, out = Decoder(wide).to(HALF), ByteCache(), []
    with torch.no_grad():
        for word in (800 * normal(12, 64, seed=7012)).to(HALF):
            out.append(model(word, cache).float())
    return torch.stack(out)


class Engine:
    """Adds up the gradients of many small batches before each step."""

    def __init__(self, model: nn.Module, rate: float, wide: bool) -> None:
        self.parameters, self.rate = list(model.parameters()), rate
        self.sums = [torch.zeros_like(each, dtype=SINGLE if wide else each.dtype) for each in self.parameters]
        self.count = 0

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        for parameter, total in zip(self.parameters, self.sums, strict=True):
            total += parameter.grad  # culprit: gradients-of-small-batches
            parameter.grad = None
        self.count += 1

    @torch.no_grad()
    def step(self) -> None:
        for parameter, total in zip(self.parameters, self.sums, strict=True):
            parameter -= (self.rate / self.count * total).to(parameter.dtype)
            total.zero_()
        self.count = 0


def accumulated(wide: bool) -> torch.Tensor:
    """What is added up for a layer in bfloat16 over 130 batches of two; a few long texts come first, whose losses are large."""
    torch.manual_seed(7021)
    model = nn.Linear(6, 3).to(LOW)
    engine = Engine(model, 0.1, wide)
    for batch in range(130):
        x = (1 + 0.3 * normal(2, 6, seed=7022 + batch)).to(LOW)
        engine.backward((model(x) + 4).float().sum() * (60 if batch < 8 else 1))
    return torch.cat([total.flatten().float() for total in engine.sums])


class Turner:
    """Turns pictures by an angle; places of the new pixels are computed in the dtype of the picture."""

    def __init__(self, degrees: float, wide: bool) -> None:
        self.angle, self.wide = math.radians(degrees), wide

    def grid(self, height: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        kind = SINGLE if self.wide else dtype
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        x = torch.linspace(-width / 2 + 0.5, width / 2 - 0.5, width).to(kind)  # culprit: picture-turned-a-little
        y = torch.linspace(-height / 2 + 0.5, height / 2 - 0.5, height).to(kind)  # culprit: picture-turned-a-little
        places = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], -1)
        turn = torch.tensor([[cos, sin], [-sin, cos]], dtype=kind).T / torch.tensor([width / 2, height / 2], dtype=kind)
        return (places.view(-1, 2) @ turn).view(1, height, width, 2)  # culprit: picture-turned-a-little

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        grid = self.grid(*picture.shape[-2:], picture.dtype)
        return functional.grid_sample(picture[None].float(), grid.float(), align_corners=False)[0].to(picture.dtype)


def turned(wide: bool) -> torch.Tensor:
    """Three colours of 280 by 280 in bfloat16, turned by four degrees."""
    return Turner(4, wide)(uniform(3, 280, 280, seed=7031).to(LOW)).float()


class Terrain:
    """The height of the ground at any place, from points that a laser has measured."""

    def __init__(self, points: torch.Tensor, origin: torch.Tensor) -> None:
        self.origin = origin
        self.points = (points - origin).to(SINGLE)  # culprit: heights-of-checkpoints

    def height(self, places: torch.Tensor, near: int = 4) -> torch.Tensor:
        places = (places - self.origin[:2]).to(SINGLE)  # culprit: heights-of-checkpoints
        apart = (places[:, None] - self.points[:, :2]).square().sum(-1)
        apart, who = apart.topk(near, largest=False)
        weights = 1 / (apart + 1e-4)
        return (weights * self.points[who, 2]).sum(1) / weights.sum(1) + self.origin[2].to(SINGLE)


def surveyed(moves: bool) -> torch.Tensor:
    """How far thirty checkpoints are above the ground, in metres; northings are millions of metres."""
    corner = torch.tensor([271_000.0, 3_287_000.0, 0.0], dtype=DOUBLE)
    ground = torch.cat([30 * uniform(900, 2, seed=7041), torch.zeros(900, 1)], 1).double()
    ground[:, 2] = 20 + 0.4 * ground[:, 0] + 0.9 * ground[:, 1]
    places = (3 + 24 * uniform(30, 2, seed=7042)).double()
    terrain = Terrain(ground + corner, corner if moves else torch.zeros_like(corner))
    heights = 20 + 0.4 * places[:, 0] + 0.9 * places[:, 1] + 0.05
    return heights.to(SINGLE) - terrain.height(places + corner[:2])


class KalmanFilter:
    """Follows a place and a speed by measured places."""

    def __init__(self, spread: float, noise: float, joseph: bool) -> None:
        self.mean, self.covariance = torch.zeros(2), spread * torch.eye(2)
        self.move, self.sees = torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
        self.noise, self.joseph = torch.tensor([[noise]]), joseph

    def predict(self) -> None:
        self.mean = self.move @ self.mean
        self.covariance = self.move @ self.covariance @ self.move.T

    def correct(self, measured: torch.Tensor) -> None:
        expected = self.sees @ self.covariance @ self.sees.T + self.noise
        gain = self.covariance @ self.sees.T / expected
        self.mean = self.mean + (gain @ (measured - self.sees @ self.mean))
        if self.joseph:
            left = torch.stack([torch.stack([self.noise[0, 0] / expected[0, 0], torch.tensor(0.0)]), torch.stack([-gain[1, 0], torch.tensor(1.0)])])
            self.covariance = left @ self.covariance @ left.T + gain @ self.noise @ gain.T
        else:
            self.covariance = self.covariance - gain @ self.sees @ self.covariance  # culprit: track-of-a-filter


def tracked(joseph: bool) -> torch.Tensor:
    """How sure a filter is of its place after each of five steps: nothing is known at first, and what it sees is exact to a centimetre."""
    kalman, sure = KalmanFilter(1e3, 1e-4, joseph), []
    for step in range(5):
        kalman.predict()
        kalman.correct(torch.tensor([3.0 * step]))
        sure.append(1e4 * kalman.covariance[0, 0])
    return torch.stack(sure)


class Gates:
    """A layer with a gate for each word, whose gradient is a sum over all words from there to the end of a chunk."""

    def __init__(self, reverse: bool) -> None:
        self.reverse = reverse

    def sums(self, x: torch.Tensor) -> torch.Tensor:
        if self.reverse:
            return x.flip(-1).cumsum(-1).flip(-1)
        reached = x.cumsum(-1)
        return reached[..., -1:] - reached + x  # culprit: sums-from-the-end

    def gradient(self, query: torch.Tensor, key: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
        return self.sums((outer * query - outer.roll(1, -1) * key).sum(-1))


def gated(reverse: bool) -> torch.Tensor:
    """Gradients of the gates of the last words of three chunks, which begin with words that weigh much more."""
    gates, found = Gates(reverse), []
    for chunk in range(3):
        query, key, outer = (normal(2, 64, 16, seed=7061 + 3 * chunk + each) for each in range(3))
        outer[:, :32] *= 1e7
        found.append(gates.gradient(query, key, outer)[:, 34:])
    return torch.stack(found)


BUGS = (
    Bug("channel-that-alternates", "ml-explore/mlx#4230", ("overflow",), "aten.pow.Tensor_Scalar",
        lambda: segmented(wide=False), lambda: segmented(wide=True), module="norm"),
    Bug("scores-of-a-cache", "microsoft/onnxruntime#32284", ("overflow", "nan"), "aten._to_copy.default",
        lambda: decoded(wide=False), lambda: decoded(wide=True)),
    Bug("gradients-of-small-batches", "deepspeedai/DeepSpeed#1800", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: accumulated(wide=False), lambda: accumulated(wide=True)),
    Bug("picture-turned-a-little", "pytorch/vision#9029", ("amplified-rounding", "local-drift", "integer-rounding"), "aten.mm.default",
        lambda: turned(wide=False), lambda: turned(wide=True)),
    Bug("heights-of-checkpoints", "Aurtechmx/openlidarviewer#834", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: surveyed(moves=False), lambda: surveyed(moves=True), precision="32-true"),
    Bug("track-of-a-filter", "pykalman/pykalman#211", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: tracked(joseph=False), lambda: tracked(joseph=True), precision="32-true"),
    Bug("sums-from-the-end", "fla-org/flash-linear-attention#1095", ("cancellation", "amplified-rounding", "absorption"), "aten.add.Tensor",
        lambda: gated(reverse=False), lambda: gated(reverse=True), precision="32-true"),
)  # fmt: skip
