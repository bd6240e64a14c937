"""Estuaries: fluxes of a boundary layer, a tracer in a stream, light in clouds and haze, drifters, grids' rims, noise that is sampled in pieces."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64


class Fluxes:
    """What eddies carry across each level: running means of wind, heat and of their products, over all points of a level."""

    def __init__(self, levels: int, shifted: bool) -> None:
        self.count, self.shifted = 0, shifted
        self.origin = torch.zeros(2, levels)
        self.means, self.products = torch.zeros(2, levels), torch.zeros(2, levels)

    def sample(self, wind: torch.Tensor, heat: torch.Tensor) -> None:
        if self.shifted and not self.count:
            self.origin = torch.stack([wind.mean(0), heat.mean(0)])
        self.count += 1
        wind, heat = wind - self.origin[0], heat - self.origin[1]
        self.means = self.means + (torch.stack([wind.mean(0), heat.mean(0)]) - self.means) / self.count
        products = torch.stack([(wind * heat).mean(0), (heat * heat).mean(0)])
        self.products = self.products + (products - self.products) / self.count  # culprit: heat-across-a-level

    def covariances(self) -> torch.Tensor:
        return self.products - self.means * self.means[1]  # culprit: heat-across-a-level


def carried(shifted: bool) -> torch.Tensor:
    """Fluxes and variances of heat of twelve levels, after twenty samples of a large-eddy simulation."""
    fluxes, profile = Fluxes(12, shifted), torch.linspace(263.5, 268.0, 12)
    for step in range(20):
        eddies = normal(256, 12, seed=7101 + step)
        wind = torch.linspace(2, 9, 12) + 0.4 * eddies
        fluxes.sample(wind, profile - 0.04 * eddies + 0.03 * normal(256, 12, seed=7151 + step))
    return fluxes.covariances()


class Transport:
    """Carries a tracer over a grid by what flows through the sides of its cells."""

    def __init__(self, area: torch.Tensor, grouped: bool) -> None:
        self.inverse, self.grouped = 1 / area, grouped

    def convergence(self, fx: torch.Tensor, fy: torch.Tensor) -> torch.Tensor:
        if self.grouped:
            return ((fx[:, :-1] - fx[:, 1:]) + (fy[:-1] - fy[1:])) * self.inverse
        return (fx[:, :-1] - fx[:, 1:] + fy[:-1] - fy[1:]) * self.inverse  # culprit: tracer-in-a-strong-stream

    def step(self, tracer: torch.Tensor, east: torch.Tensor, north: torch.Tensor) -> torch.Tensor:
        """One step with the values of the cells to the west and to the south; the grid is a torus."""
        around = torch.cat([tracer[:, -1:], tracer], 1)
        below = torch.cat([tracer[-1:], tracer], 0)
        return self.convergence(east * around, north * below)


def streamed(grouped: bool) -> torch.Tensor:
    """How a tracer changes in four steps, where a strong stream runs along columns in which it is even, and a weak one across them."""
    wave = 1 + 0.004 * torch.sin(0.26 * torch.arange(24.0)).expand(24, 24)
    transport, tracer, changes = Transport(1.3 + 0.2 * uniform(1, 24, seed=7111), grouped), wave, []
    for _ in range(4):
        change = transport.step(tracer, torch.tensor(0.37), torch.full((25, 24), 2_187.34))
        tracer = tracer + 0.1 * change
        changes.append(change)
    return torch.stack(changes)


class TwoStream:
    """What a layer of air and cloud reflects and lets through, of diffuse light and of the sun's beam."""

    def __init__(self, least: float) -> None:
        self.least = least

    def layer(self, tau: torch.Tensor, albedo: torch.Tensor, g: torch.Tensor, sun: float) -> tuple[torch.Tensor, ...]:
        gamma1, gamma2 = (8 - albedo * (5 + 3 * g)) / 4, 3 * albedo * (1 - g) / 4
        gamma3 = (2 - 3 * sun * g) / 4
        gamma4 = 1 - gamma3
        alpha1, alpha2 = gamma1 * gamma4 + gamma2 * gamma3, gamma1 * gamma3 + gamma2 * gamma4
        k = ((gamma1 - gamma2) * (gamma1 + gamma2)).clamp_min(self.least).sqrt()  # culprit: cloud-that-absorbs-nothing
        once = torch.exp(-tau * k)
        twice = once * once
        term = 1 / (k * (1 + twice) + gamma1 * (1 - twice))
        diffuse_up, diffuse_down = term * gamma2 * (1 - twice), term * 2 * k * once
        beam, k_sun, k3, k4 = torch.exp(-tau / sun), k * sun, k * gamma3, k * gamma4
        term = albedo * term / (1 - k_sun * k_sun)
        up = (1 - k_sun) * (alpha2 + k3) - (1 + k_sun) * (alpha2 - k3) * twice  # culprit: cloud-that-absorbs-nothing
        up = term * (up - 2 * (k3 - alpha2 * k_sun) * once * beam)  # culprit: cloud-that-absorbs-nothing
        down = (1 + k_sun) * (alpha1 + k4) * beam - (1 - k_sun) * (alpha1 - k4) * twice * beam  # culprit: cloud-that-absorbs-nothing
        down = term * (2 * (k4 + alpha1 * k_sun) * once - down)  # culprit: cloud-that-absorbs-nothing
        return diffuse_up, diffuse_down, up, down, beam

    def column(self, tau: torch.Tensor, albedo: torch.Tensor, g: torch.Tensor, sun: float, ground: float) -> torch.Tensor:
        """Light that leaves the top, by adding layer to layer from the ground."""
        layers = [self.layer(*each, sun) for each in zip(tau, albedo, g, strict=True)]
        beams = torch.cumprod(torch.stack([torch.ones_like(tau[0]), *(each[4] for each in layers)]), 0)
        below, source = torch.full_like(tau[0], ground), ground * beams[-1]
        for index in reversed(range(len(layers))):
            diffuse_up, diffuse_down, up, down, _ = layers[index]
            between = diffuse_down / (1 - diffuse_up * below)
            source = beams[index] * up + between * (source + below * beams[index] * down)
            below = diffuse_up + diffuse_down * between * below
        return source


def lit(least: float) -> torch.Tensor:
    """Light above forty-eight columns of five layers, whose drops absorb a hundred-millionth."""
    tau, g = 0.2 + 4 * uniform(5, 48, seed=7121), 0.75 + 0.1 * uniform(5, 48, seed=7122)
    albedo = 1 - 1e-8 * uniform(5, 48, seed=7123)
    return TwoStream(least).column(tau, albedo, g, 0.6, 0.15)


class Drifters:
    """Particles in an ocean, by longitude and latitude in degrees; a field says how fast it flows."""

    def __init__(self, lon: torch.Tensor, lat: torch.Tensor, kind: torch.dtype) -> None:
        self.lon, self.lat = lon.to(kind), lat.to(kind)
        self.start = self.lon

    def speed(self) -> torch.Tensor:
        """A kilometre a day to the east, in degrees per second."""
        return (1000 / 86400) / (1852 * 60 * torch.cos(torch.deg2rad(self.lat)))

    def execute(self, runtime: float, dt: float) -> None:
        for _ in range(round(runtime / dt)):
            self.lon = self.lon + self.speed() * dt  # culprit: drifters-in-short-steps

    def travelled(self) -> torch.Tensor:
        return (self.lon - self.start) * 1852 * 60 * torch.cos(torch.deg2rad(self.lat))


def drifted_east(kind: torch.dtype) -> torch.Tensor:
    """How many metres thirty drifters came in an hour, in steps of a minute."""
    drifters = Drifters(-45 + 5 * uniform(30, seed=7131), torch.linspace(-10, 80, 30), kind)
    drifters.execute(3600.0, 60.0)
    return drifters.travelled()


class Rim:
    """Waves that come in over the rim of a fine grid, from points of a coarse one."""

    def __init__(self, lon: torch.Tensor, lat: torch.Tensor, haversine: bool) -> None:
        self.lon, self.lat, self.haversine = torch.deg2rad(lon), torch.deg2rad(lat), haversine

    def apart(self, lon: torch.Tensor, lat: torch.Tensor) -> torch.Tensor:
        """Angles from here to each point of the rim."""
        lon, lat = torch.deg2rad(lon)[:, None], torch.deg2rad(lat)[:, None]
        if self.haversine:
            half = torch.sin((lat - self.lat) / 2) ** 2 + torch.cos(lat) * torch.cos(self.lat) * torch.sin((lon - self.lon) / 2) ** 2
            return 2 * torch.asin(half.sqrt())
        across = torch.cos(lat) * torch.cos(self.lat) * torch.cos(lon - self.lon)
        cosine = torch.sin(lat) * torch.sin(self.lat) + across  # culprit: waves-over-the-rim
        return torch.acos(cosine.clamp(-1, 1))  # culprit: waves-over-the-rim

    def interpolated(self, lon: torch.Tensor, lat: torch.Tensor, heights: torch.Tensor) -> torch.Tensor:
        """By the two nearest points, the nearer one the more."""
        near, where = self.apart(lon, lat).topk(2, dim=1, largest=False)
        return (heights[where] * near.flip(1)).sum(1) / near.sum(1)


def waved(haversine: bool) -> torch.Tensor:
    """Heights of waves at twenty points of a rim, between points that lie three kilometres apart."""
    rim = Rim(-124 + 0.04 * torch.arange(40.0), torch.full((40,), 44.6), haversine)
    heights = 2 + normal(40, seed=7141)
    return rim.interpolated(-124 + 1.5 * uniform(20, seed=7142), torch.full((20,), 44.6005), heights)


class Haze:
    """How sunlight warms thin air, layer by layer from the top."""

    def __init__(self, careful: bool) -> None:
        self.careful = careful

    def absorbed(self, tau: torch.Tensor) -> torch.Tensor:
        return -torch.expm1(-tau) if self.careful else 1 - torch.exp(-tau)  # culprit: sunlight-in-thin-air

    def heating(self, sun: torch.Tensor, tau: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
        """Degrees a day."""
        warmed = []
        for layer in range(len(tau)):
            taken = sun * self.absorbed(tau[layer])
            sun = sun - taken
            warmed.append(86400 * taken / (1004 * mass[layer]))
        return torch.stack(warmed)


def hazed(careful: bool) -> torch.Tensor:
    """Twelve columns of twenty layers, whose uppermost hold a ten-millionth of an optical depth."""
    pressure = torch.logspace(-1, 4, 21)
    mass = pressure.diff() / 9.81
    tau = 6e-7 * mass[:, None] * (0.5 + uniform(20, 12, seed=7161))
    return Haze(careful).heating(torch.linspace(200, 1300, 12), tau, mass)


class Diffusion:
    """A particle in a well, kicked at random; its times are float32."""

    def __init__(self, dt: float, rounds: bool) -> None:
        self.dt, self.rounds = dt, rounds

    def steps(self, span: torch.Tensor) -> torch.Tensor:
        count = span / self.dt  # culprit: noise-in-pieces
        return count.round().long() if self.rounds else count.long()  # culprit: noise-in-pieces

    def trajectory(self, x: torch.Tensor, start: torch.Tensor, span: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        times = start + self.dt * torch.arange(self.steps(span) + 1)  # culprit: noise-in-pieces
        for step in range(len(times) - 1):
            x = x - self.dt * 2 * x * (x * x - 1) + 0.2 * math.sqrt(self.dt) * normal(len(x), seed=seed + step)
        return times, x


def kicked(rounds: bool) -> torch.Tensor:
    """Mean places of two hundred particles at six times, each piece from where the last one ended."""
    process, x, start, means = Diffusion(0.1, rounds), 0.2 + 0.05 * normal(200, seed=7171), torch.tensor(0.0), []
    for index, until in enumerate((0.3, 0.5, 0.8, 1.0, 1.3, 1.7)):
        times, x = process.trajectory(x, start, until - start, 7180 + 20 * index)
        start = times[-1]
        means.append(x.mean())
    return torch.stack(means)


BUGS = (
    Bug("heat-across-a-level", "ExtremeFLOW/neko#2529", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: carried(shifted=False), lambda: carried(shifted=True), precision="32-true"),
    Bug("tracer-in-a-strong-stream", "NOAA-GFDL/GFDL_atmos_cubed_sphere#323", ("cancellation", "amplified-rounding", "absorption"), "aten.sub.Tensor",
        lambda: streamed(grouped=False), lambda: streamed(grouped=True), precision="32-true"),
    Bug("cloud-that-absorbs-nothing", "earth-system-radiation/rte-rrtmgp#94", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: lit(1e-12), lambda: lit(1e4 * torch.finfo(SINGLE).eps), precision="32-true"),
    Bug("drifters-in-short-steps", "Parcels-code/Parcels#1384", ("absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: drifted_east(SINGLE), lambda: drifted_east(DOUBLE), precision="32-true"),
    Bug("waves-over-the-rim", "NOAA-EMC/WW3#1392", ("amplified-rounding", "cancellation"), "aten.acos.default",
        lambda: waved(haversine=False), lambda: waved(haversine=True), precision="32-true"),
    Bug("sunlight-in-thin-air", "climate-analytics-lab/jax-gcm#571", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: hazed(careful=False), lambda: hazed(careful=True), precision="32-true"),
    Bug("noise-in-pieces", "cbherbert/stochrare#22", ("integer-rounding", "decision-flip"), "aten.div.Tensor",
        lambda: kicked(rounds=False), lambda: kicked(rounds=True), precision="32-true"),
)  # fmt: skip
