"""Graphics: hashes made of a sine or of remainders, on GPUs whose `mediump` is float16."""

from __future__ import annotations

import torch

from bugs.bug import Bug


def pixels(size: int) -> torch.Tensor:
    """Pixel coordinates, [size * size, 2]."""
    return torch.cartesian_prod(torch.arange(float(size)), torch.arange(float(size)))


def film_grain(dtype: torch.dtype) -> torch.Tensor:
    """White noise of a position: the fraction of a sine times 43758. The position's phase comes rounded from the vertex shader."""
    phase = (pixels(48) * torch.tensor([12.9898, 78.233])).sum(-1)
    phase = phase.to(dtype)  # culprit: film-grain
    return torch.frac(torch.sin(phase).float() * 43758.5453)


def cell_points(dtype: torch.dtype) -> torch.Tensor:
    """Voronoi cells: each is given a point by two sines of its index times 46839."""
    turn = torch.tensor([[15.27, 99.41], [47.63, 89.98]])
    phase = (pixels(40) @ turn).to(dtype)  # culprit: voronoi-cells
    return torch.frac(torch.sin(phase).float() * 46839.32)


def lattice_hash(dtype: torch.dtype) -> torch.Tensor:
    """Simplex noise permutes lattice points by (34 x + 1) x modulo 289: whole numbers up to 2.8 million."""
    x = torch.arange(289.0).to(dtype)
    return torch.remainder((34 * x + 1) * x, 289)  # culprit: permuted-lattice


def hash_without_sine(dtype: torch.dtype) -> torch.Tensor:
    """The fraction of coordinates times 0.1031, mixed by their dot product and taken the fraction of once more: beyond 2048 a half has none."""
    p = torch.cat([torch.full((400, 1), 31.0), 10 * pixels(20)], -1).to(dtype)
    p = torch.frac(p * 0.1031)  # culprit: grain-without-sine
    p = p + (p * (p.roll(1, -1) + 31.32)).sum(-1, keepdim=True)
    return torch.frac((p[:, 0] + p[:, 1]) * p[:, 2])  # culprit: grain-without-sine


HALF, WIDE = torch.float16, torch.float32
BUGS = (
    Bug("film-grain", "rnc-archive/react-native-webgl#60", ("unstable-reference",), "aten._to_copy.default", lambda: film_grain(HALF),
        lambda: film_grain(WIDE), severity="note", note="float16 gets the blame, and float32 does not determine this noise either"),
    Bug("voronoi-cells", "Unity-Technologies/Graphics#83", ("unstable-reference",), "aten._to_copy.default", lambda: cell_points(HALF),
        lambda: cell_points(WIDE), severity="note"),
    Bug("permuted-lattice", "ashima/webgl-noise#25", ("integer-rounding", "overflow"), "aten.add.Tensor", lambda: lattice_hash(HALF),
        lambda: lattice_hash(WIDE)),
    Bug("grain-without-sine", "gonetz/GLideN64#2837", ("amplified-rounding",), "aten.mul.Tensor",
        lambda: hash_without_sine(HALF), lambda: hash_without_sine(WIDE)),
)  # fmt: skip
