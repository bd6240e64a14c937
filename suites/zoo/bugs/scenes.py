"""Scenes: positions in a buffer of halves, depths read back, tiny spheres far away, a tone that runs for hours, spread samples."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform, wider

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


class Buffer:
    """What the first pass of a renderer leaves for the second: where each pixel's surface is, as seen from the camera."""

    def __init__(self, kind: torch.dtype) -> None:
        self.kind = kind

    def write(self, places: torch.Tensor) -> None:
        self.places = places.to(self.kind)  # culprit: lamps-of-a-far-ship

    def lit(self, lamps: torch.Tensor, reach: float) -> torch.Tensor:
        """How bright lamps make each pixel. Their light ends at their reach."""
        away = lamps[:, None].to(self.kind) - self.places  # culprit: lamps-of-a-far-ship
        near = 1 - wider(away).norm(dim=-1) / reach
        return near.clamp_min(0).sum(0)


def shone(kind: torch.dtype, distance: float = 21_340.0) -> torch.Tensor:
    """The light of three lamps on the hull of a ship that is twenty kilometres away. It comes in blocks."""
    across, up = torch.meshgrid(torch.linspace(-40, 40, 24, dtype=DOUBLE), torch.linspace(-12, 12, 10, dtype=DOUBLE), indexing="ij")
    hull = torch.stack([across, up, distance + 0.2 * across], -1).reshape(-1, 3)
    lamps = torch.tensor([[-20.0, 3.0, distance - 9.0], [4.0, -5.0, distance - 3.0], [22.0, 6.0, distance + 1.0]], dtype=DOUBLE)
    buffer = Buffer(kind)
    buffer.write(hull)
    return buffer.lit(lamps, 16.0)


class Camera:
    """A camera whose depths are kept as OpenGL keeps them, and are read back by robots in metres."""

    def __init__(self, near: float, far: float) -> None:
        self.near, self.far = near, far

    def stored(self, metres: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        return (self.far / (self.far - self.near) * (1 - self.near / metres)).to(kind)  # culprit: metres-of-a-depth-camera

    def metres(self, stored: torch.Tensor) -> torch.Tensor:
        return self.near / (1 - stored * (1 - self.near / self.far))  # culprit: metres-of-a-depth-camera


def steps_of_stairs(kind: torch.dtype) -> torch.Tensor:
    """How high each of thirty stairs is, thirty metres away. They are of different heights."""
    camera = Camera(0.0004, 50.0)
    stairs = 30 + 0.17 * torch.arange(30, dtype=DOUBLE)
    return wider(camera.metres(camera.stored(stairs, kind))).diff()  # culprit: metres-of-a-depth-camera


class Ball:
    """A ball that rays of light are to meet."""

    def __init__(self, middle: torch.Tensor, radius: float) -> None:
        self.middle, self.radius = middle, radius

    def meet(self, origin: torch.Tensor, way: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where along its way each ray meets the ball first, and whether it does."""
        there = origin - self.middle
        half = (there * way).sum(-1)
        rest = (there * there).sum(-1) - self.radius * self.radius  # culprit: lamp-of-a-tiny-ball
        inside = half * half - rest  # culprit: lamp-of-a-tiny-ball
        return -half - inside.clamp_min(0).sqrt(), inside > 0


def highlights(kind: torch.dtype) -> torch.Tensor:
    """How much light rays bring from a lamp that is a tiny ball, by the angle at which they meet it. Nearly none do."""
    middle = torch.tensor([0.3, 7.0, -21.0], dtype=kind)
    ball = Ball(middle, 0.005)
    origin = torch.tensor([0.0, 6.0, 40.0], dtype=kind)
    aims = middle + 0.004 * normal(200, 3, seed=21).to(kind)
    way = torch.nn.functional.normalize(aims - origin, dim=-1)
    along, met = ball.meet(origin, way)
    out = torch.nn.functional.normalize(origin + along[:, None] * way - middle, dim=-1)
    return torch.where(met, -(out * way).sum(-1), 0.0)


class Tone:
    """A tone of one pitch, from the count of samples that were played already."""

    def __init__(self, pitch: float, rate: int, kind: torch.dtype) -> None:
        self.pitch, self.rate, self.kind, self.played = pitch, rate, kind, 0

    def more(self, many: int) -> torch.Tensor:
        count = (self.played + torch.arange(many)).to(self.kind)  # culprit: tone-that-runs-for-hours
        self.played += many
        phase = count * self.pitch / self.rate  # culprit: tone-that-runs-for-hours
        return torch.sin(2 * math.pi * phase)  # culprit: tone-that-runs-for-hours


def heard(kind: torch.dtype, hours: float = 1.0) -> torch.Tensor:
    """A block of a tone after an hour. It rattles."""
    tone = Tone(439.3, 8000, kind)
    tone.played = int(hours * 3600 * 8000)
    return wider(tone.more(96))


class Spreader:
    """Sums samples at any places into waves, by way of a fine grid onto which each sample is spread in three directions."""

    def __init__(self, cells: int, width: int) -> None:
        self.cells, self.width, self.steep = cells, width, 2.3 * width

    def bell(self, apart: torch.Tensor) -> torch.Tensor:
        inside = 1 - (2 * apart / self.width) ** 2
        return torch.exp(self.steep * inside.clamp_min(0).sqrt()) * (inside > 0)

    def spread(self, places: torch.Tensor, strengths: torch.Tensor) -> torch.Tensor:
        apart = places[..., None] - torch.arange(self.cells, dtype=places.dtype)
        one, two, three = self.bell(apart).unbind(1)
        return torch.einsum("n,ni,nj,nk->ijk", strengths, one, two, three)  # culprit: waves-of-strong-samples

    def modes(self, grid: torch.Tensor) -> torch.Tensor:
        """The waves of lowest frequency, from which the spreading is divided out."""
        shape = self.bell(torch.arange(self.cells, dtype=grid.dtype) - self.cells // 2).sum()
        return grid.sum((1, 2)) / shape**3


def waves(kind: torch.dtype) -> torch.Tensor:
    """How much of sixty strong samples is in each layer of a grid. Infinite."""
    places = 4 + 8 * uniform(60, 3, seed=22).to(kind)
    strengths = 1e16 * (1 + uniform(60, seed=23).to(kind))
    spreader = Spreader(16, 8)
    return spreader.modes(spreader.spread(places, strengths)) / 1e16


BUGS = (
    Bug("lamps-of-a-far-ship", "scp-fs2open/fs2open.github.com#7245", ("integer-rounding", "cancellation"), "aten._to_copy.default",
        lambda: shone(HALF), lambda: shone(DOUBLE)),
    Bug("metres-of-a-depth-camera", "google-deepmind/mujoco#978", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: steps_of_stairs(SINGLE), lambda: steps_of_stairs(DOUBLE), precision="32-true"),
    Bug("lamp-of-a-tiny-ball", "TzuChieh/Photon-v2#7", ("cancellation", "amplified-rounding", "absorption"), "aten.sub.Tensor",
        lambda: highlights(SINGLE), lambda: highlights(DOUBLE), precision="32-true"),
    Bug("tone-that-runs-for-hours", "libsdl-org/SDL#12013", ("amplified-rounding", "integer-rounding", "cancellation"), "aten.mul.Tensor",
        lambda: heard(SINGLE), lambda: heard(DOUBLE), precision="32-true"),
    Bug("waves-of-strong-samples", "flatironinstitute/finufft#454", ("overflow",), "aten.bmm.default",
        lambda: waves(SINGLE), lambda: waves(DOUBLE), precision="32-true"),
)  # fmt: skip
