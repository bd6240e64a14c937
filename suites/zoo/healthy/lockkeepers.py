"""Beside the estuaries: fluxes, tracers, clouds, drifters, distances, haze and times whose float32 is enough."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform


def heat_by_anomalies() -> torch.Tensor:
    """Running covariances of wind and heat in float32, by means of products less products of means; heat is kept as an anomaly of a few degrees."""
    means, products = torch.zeros(2, 12), torch.zeros(2, 12)
    for step in range(20):
        eddies = normal(256, 12, seed=7401 + step)
        wind, heat = 0.4 + 0.4 * eddies, 1.5 - 1.2 * eddies + normal(256, 12, seed=7431 + step)
        means = means + (torch.stack([wind.mean(0), heat.mean(0)]) - means) / (step + 1)
        products = products + (torch.stack([(wind * heat).mean(0), (heat * heat).mean(0)]) - products) / (step + 1)
    return products - means * means[1]


def tracer_in_an_even_stream() -> torch.Tensor:
    """A tracer that two streams of like strength carry, whose four fluxes are added from left to right in float32."""
    tracer = 1 + 0.4 * torch.sin(0.26 * torch.arange(24.0)) * torch.cos(0.26 * torch.arange(24.0))[:, None]
    for _ in range(4):
        fx, fy = 0.37 * torch.cat([tracer[:, -1:], tracer], 1), 0.21 * torch.cat([tracer[-1:], tracer], 0)
        tracer = tracer + 0.5 * (fx[:, :-1] - fx[:, 1:] + fy[:-1] - fy[1:])
    return tracer


def cloud_that_absorbs() -> torch.Tensor:
    """What layers of soot-laden cloud reflect, by exponentials of k times depth; k is a third."""
    tau, g, albedo = 0.2 + 4 * uniform(5, 16, seed=7441), 0.75 + 0.1 * uniform(5, 16, seed=7442), 0.9 - 0.2 * uniform(5, 16, seed=7443)
    gamma1, gamma2 = (8 - albedo * (5 + 3 * g)) / 4, 3 * albedo * (1 - g) / 4
    k = ((gamma1 - gamma2) * (gamma1 + gamma2)).clamp_min(1e-12).sqrt()
    twice = torch.exp(-2 * tau * k)
    term = 1 / (k * (1 + twice) + gamma1 * (1 - twice))
    up, down, ground = term * gamma2 * (1 - twice), term * 2 * k * torch.exp(-tau * k), torch.full((16,), 0.15)
    for layer in reversed(range(5)):
        ground = up[layer] + down[layer] ** 2 * ground / (1 - up[layer] * ground)
    return ground


def drifters_in_long_steps() -> torch.Tensor:
    """How far drifters came in float32 degrees in ten days of steps of an hour, at a knot or so."""
    lat = torch.linspace(-10, 80, 30)
    lon = start = -45 + 5 * uniform(30, seed=7451)
    for _ in range(240):
        lon = lon + 1800 / (1852 * 60 * torch.cos(torch.deg2rad(lat)))
    return (lon - start) * 1852 * 60 * torch.cos(torch.deg2rad(lat))


def waves_over_an_ocean() -> torch.Tensor:
    """Heights of waves by the two nearest buoys in float32, by arc cosines of angles of many degrees."""
    lon, lat = torch.deg2rad(9.0 * torch.arange(40)), torch.deg2rad(torch.tensor(10.0))
    here = torch.deg2rad(3 + 18 * torch.arange(20.0))[:, None]
    cosine = torch.sin(lat) ** 2 + torch.cos(lat) ** 2 * torch.cos(here - lon)
    near, where = torch.acos(cosine.clamp(-1, 1)).topk(2, dim=1, largest=False)
    return ((2 + normal(40, seed=7461))[where] * near.flip(1)).sum(1) / near.sum(1)


def sunlight_in_thick_air() -> torch.Tensor:
    """How much sunlight each of twenty layers absorbs in float32, by one less an exponential; no layer is thinner than a hundredth."""
    sun, taken = torch.linspace(200, 1300, 12), []
    for layer in range(20):
        part = sun * (1 - torch.exp(-(0.01 + 0.3 * uniform(12, seed=7471 + layer))))
        sun = sun - part
        taken.append(part)
    return torch.stack(taken)


def noise_in_even_pieces() -> torch.Tensor:
    """A process in pieces, whose numbers of steps are cut off in float32; the step is an eighth, and all times are multiples of it."""
    x, start, means = 0.2 + 0.05 * normal(200, seed=7481), torch.tensor(0.0), []
    for index, until in enumerate((0.375, 0.5, 0.875, 1.25)):
        steps = ((until - start) / 0.125).long()
        for step in range(int(steps)):
            x = x - 0.25 * x * (x * x - 1) + 0.07 * normal(200, seed=7482 + 10 * index + step)
        start = start + 0.125 * steps
        means.append(x.mean())
    return torch.stack(means)


IDIOMS = (
    heat_by_anomalies,
    tracer_in_an_even_stream,
    cloud_that_absorbs,
    drifters_in_long_steps,
    waves_over_an_ocean,
    sunlight_in_thick_air,
    noise_in_even_pieces,
)
EXACT = ("heat_by_anomalies", "tracer_in_an_even_stream", "cloud_that_absorbs", "drifters_in_long_steps", "waves_over_an_ocean",
         "sunlight_in_thick_air", "noise_in_even_pieces")  # fmt: skip
