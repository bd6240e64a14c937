"""Shadows, rays, depths, turns and grains of a picture: what a renderer stores as a power of e, offsets by a little, or divides by what is left."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


class ShadowMap(nn.Module):
    """Soft shadows: how much light passes what is nearest to the lamp, by a filtered power of e of its depth."""

    def __init__(self, depth: torch.Tensor, steep: float, stored: torch.dtype) -> None:
        super().__init__()
        self.steep, self.stored, self.depth = steep, stored, depth

    def forward(self, receiver: torch.Tensor) -> torch.Tensor:
        if self.stored == HALF:
            blockers = torch.exp(self.steep * self.depth.to(HALF))  # culprit: shadow-by-a-power-of-e
            blurred = functional.avg_pool2d(blockers[None, None], 5, 1, 2, count_include_pad=False)[0, 0]  # culprit: shadow-by-a-power-of-e
            return (blurred * torch.exp(-self.steep * receiver.to(HALF))).clamp(max=1).float()
        patches = functional.unfold(functional.pad(self.depth[None, None], (2, 2, 2, 2), mode="replicate"), 5)[0]
        return torch.exp(self.steep * (patches - receiver.flatten())).mean(0).clamp(max=1).view_as(receiver)


def shade(stored: torch.dtype) -> torch.Tensor:
    """Light on a floor behind a post; in half the power of e of all depths beyond a quarter is infinite, and light is NaN."""
    depth = torch.full((24, 24), 0.8)
    depth[6:18, 9:14] = 0.35
    return ShadowMap(depth, 40.0, stored)(torch.full((24, 24), 0.8))


def nearest(origin: torch.Tensor, way: torch.Tensor, centre: torch.Tensor, radius: float, least: torch.Tensor) -> torch.Tensor:
    """How far along rays a ball is met first, beyond the least distance; Inf where it is not."""
    to = origin - centre
    along = (to * way).sum(-1)
    across = to - along[:, None] * way
    root = radius**2 - across.square().sum(-1)
    half = root.clamp(min=0).sqrt()
    near, far = -along - half, -along + half
    met = torch.where(near > least, near, torch.where(far > least, far, torch.inf))
    return torch.where(root > 0, met, torch.inf)


def lit(epsilon: float, relative: bool) -> torch.Tensor:
    """Brightness of 200 places of a ball of 40 metres in millimetres; rays to the lamp start within it where the offset is lost. Off by 98 %."""
    centre, radius, camera = torch.tensor([61000.0, -27000, 182000]), 40000.0, torch.zeros(3)
    way = functional.normalize(centre + 22000 * (2 * uniform(200, 3) - 1) - camera, dim=-1)
    place = camera + nearest(camera.expand(200, 3), way, centre, radius, torch.zeros(()))[:, None] * way
    normals, lamp = functional.normalize(place - centre, dim=-1), functional.normalize(torch.tensor([0.3, 0.5, -0.8]), dim=0)
    offset = epsilon * place.abs().amax(-1) if relative else torch.full((200,), epsilon)
    start = place + normals * offset[:, None]  # culprit: shadow-of-itself
    seen = torch.isinf(nearest(start, lamp.expand(200, 3), centre, radius, offset))
    return (normals @ lamp).clamp(min=0) * seen


class Fractal:
    """How many turns it takes until a number of the set of Mandelbrot's neighbourhood runs away, for a grid of pixels."""

    def __init__(self, real: float, imaginary: float, width: float, pixels: int) -> None:
        self.centre, self.turns = (real, imaginary), 240
        line = (torch.arange(pixels) - pixels / 2) * (width / pixels)
        self.up, self.right = torch.meshgrid(line, line, indexing="ij")

    def direct(self) -> torch.Tensor:
        """Each pixel by its own number."""
        a, b = self.centre[0] + self.right, self.centre[1] + self.up  # culprit: deep-zoom
        x, y, count = torch.zeros_like(a), torch.zeros_like(a), torch.zeros_like(a)
        for _ in range(self.turns):
            x, y = (x * x - y * y + a).clamp(-1e3, 1e3), (2 * x * y + b).clamp(-1e3, 1e3)  # culprit: deep-zoom
            count = count + (x * x + y * y < 4)
        return count

    def beside_the_middle(self) -> torch.Tensor:
        """Each pixel by how it differs from the middle one, which Python follows."""
        middle, c = 0j, complex(*self.centre)
        u, v, count = torch.zeros_like(self.up), torch.zeros_like(self.up), torch.zeros_like(self.up)
        for _ in range(self.turns):
            x, y = middle.real, middle.imag
            u, v = 2 * (x * u - y * v) + u * u - v * v + self.right, 2 * (x * v + y * u) + 2 * u * v + self.up
            middle = middle * middle + c
            u, v = u.clamp(-1e3, 1e3), v.clamp(-1e3, 1e3)
            count = count + ((u + middle.real).square() + (v + middle.imag).square() < 4)
        return count


def zoomed(directly: bool) -> torch.Tensor:
    """Counts of 24 by 24 pixels of a view that is a millionth wide, whose pixels are closer than numbers of float32. Off by 17 %."""
    view = Fractal(-0.6492704688, 0.368744117, 1e-6, 24)
    return view.direct() if directly else view.beside_the_middle()


def depth_of(distance: torch.Tensor, near: float, far: float) -> torch.Tensor:
    """What a depth buffer holds: nought at the near plane and one at the far one."""
    return far / (far - near) - far * near / ((far - near) * distance)


def positions(linear: bool) -> torch.Tensor:
    """Places in metres of what a deferred renderer sees, out of its depth buffer, with a near plane at two millimetres. Off by 7 %."""
    near, far, distance = 0.002, 4000.0, torch.logspace(0, 3.5, 60)
    way = functional.normalize(normal(60, 3) / 4 + torch.tensor([0.0, 0, 1]), dim=-1)
    if linear:
        found = distance / far * far
    else:
        depth = depth_of(distance, near, far)
        found = near * far / (far - depth * (far - near))  # culprit: place-from-depth
    return way * (found / way[:, 2])[:, None]


def slerp(first: torch.Tensor, second: torch.Tensor, share: torch.Tensor, by_lengths: bool) -> torch.Tensor:
    """Turns between two turns, as quaternions, at even speed."""
    if by_lengths:
        angle = 2 * torch.atan2((first - second).norm(dim=-1, keepdim=True), (first + second).norm(dim=-1, keepdim=True))
        scale = torch.sinc(angle / torch.pi)
        return ((1 - share) * torch.sinc((1 - share) * angle / torch.pi) * first + share * torch.sinc(share * angle / torch.pi) * second) / scale
    angle = torch.acos((first * second).sum(-1, keepdim=True))  # culprit: turn-between-like-poses
    return (torch.sin((1 - share) * angle) * first + torch.sin(share * angle) * second) / torch.sin(angle)


def animated(by_lengths: bool) -> torch.Tensor:
    """Poses of forty bones between two frames that are a hundredth of a degree apart; products of some with themselves exceed one. NaN."""
    first = functional.normalize(normal(40, 4), dim=-1)
    second = functional.normalize(first + 1e-4 * normal(40, 4, seed=1), dim=-1)
    return slerp(first, second, torch.full((40, 1), 0.7), by_lengths)


def photons(rate: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Counts of photons by Knuth's way: how many chances may be multiplied before the product is below e to the minus rate."""
    least = torch.exp(-rate)  # culprit: photons-of-a-bright-pixel
    product, count = torch.ones_like(rate), -torch.ones(rate.shape)
    for chance in chances:
        count = count + (product > least)  # culprit: photons-of-a-bright-pixel
        product = product * chance.to(rate.dtype)  # culprit: photons-of-a-bright-pixel
    return count + (product > least)


def noisy(dtype: torch.dtype) -> torch.Tensor:
    """A picture of 8 by 8 with noise of photons, of three to sixty at a pixel; in half none has more than about two dozen. Off by 76 %."""
    rate = torch.linspace(3, 60, 64).view(8, 8).round()
    return photons(rate.to(dtype), uniform(110, 8, 8).clamp_min(1e-3))


BUGS = (
    Bug("shadow-by-a-power-of-e", "o3de/o3de#1302", ("overflow", "nan"), "aten.exp.default", lambda: shade(HALF), lambda: shade(WIDE),
        module="ShadowMap"),
    Bug("shadow-of-itself", "knightcrawler25/GLSL-PathTracer#35", ("cancellation", "absorption", "decision-flip", "amplified-rounding"),
        "aten.add.Tensor", lambda: lit(3e-4, False), lambda: lit(3e-6, True), precision="32-true",
        wrong_line="it is on the difference that decides whether a ray is blocked; the offset was lost when it was added to a place"),
    Bug("deep-zoom", "danyshaanan/mandelbrot#1", ("amplified-rounding", "cancellation", "absorption", "decision-flip"), "aten.add.Tensor",
        lambda: zoomed(True), lambda: zoomed(False), precision="32-true",
        note="with places in float64 the map alone is off by 16 %, and with the map in float64 the places alone are: both lines are at fault"),
    Bug("place-from-depth", "TeamWisp/WispRenderer#239", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar", lambda: positions(False),
        lambda: positions(True), precision="32-true"),
    Bug("turn-between-like-poses", "redorav/hlslpp#68", ("amplified-rounding", "nan"), "aten.acos.default", lambda: animated(False),
        lambda: animated(True), precision="32-true"),
    Bug("photons-of-a-bright-pixel", "imagej/imagej-ops#641", ("accumulated-drift", "underflow", "decision-flip"), "aten.mul.Tensor",
        lambda: noisy(HALF), lambda: noisy(WIDE)),
)  # fmt: skip
