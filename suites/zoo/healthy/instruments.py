"""Filters, particles, fluids, rays, turns, curves, sound and light around networks in low precision: states and phases are float32 or wider."""

from __future__ import annotations

import itertools
import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

from healthy.crafts import net

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def tracked_by_josephs_form() -> torch.Tensor:
    """A Kalman filter in float32 with Joseph's form of the update, which cannot become negative, on what a network in bfloat16 measures."""
    eye, look = torch.eye(4), torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0]])
    move = eye + 0.1 * torch.diag(torch.ones(2), 2)
    state, spread, model, found = torch.zeros(4), 10 * eye, net(6, 16, 2), []
    for turn in range(20):
        with torch.no_grad(), torch.autocast("cpu", LOW):
            seen = model(torch.cat([0.3 * normal(4, seed=turn), torch.tensor([math.sin(turn / 5), math.cos(turn / 5)])])).float()
        state, spread = move @ state, move @ spread @ move.T + 0.01 * eye
        gain = torch.linalg.solve(look @ spread @ look.T + 0.05 * torch.eye(2), look @ spread).T
        left = eye - gain @ look
        state, spread = state + gain @ (seen - look @ state), left @ spread @ left.T + 0.05 * gain @ gain.T
        found.append(state)
    return torch.stack(found)


def atoms_by_verlet() -> torch.Tensor:
    """Atoms on a lattice whose places and speeds are float32; a network in bfloat16 gives a small part of each bond's strength, by distances."""
    first, second = torch.triu_indices(8, 8, 1)
    places, speeds, model = 1.1 * torch.cartesian_prod(*[torch.arange(2.0)] * 3) + 0.02 * normal(8, 3), 0.1 * normal(8, 3, seed=1), net(1, 16, 1)
    model.requires_grad_(False)

    def forces(at: torch.Tensor) -> torch.Tensor:
        away = at[first] - at[second]
        squares = away.square().sum(-1)
        near = squares.reciprocal() ** 3
        with torch.autocast("cpu", LOW):
            part = model(squares[:, None])
        pull = ((48 * near * near - 24 * near) / squares + 0.1 * torch.tanh(part.float()).squeeze(-1))[:, None] * away
        return torch.zeros_like(at).index_add(0, first, pull).index_add(0, second, -pull)

    push = forces(places)
    for _ in range(40):
        speeds = speeds + 0.002 * push
        places = places + 0.004 * speeds
        push = forces(places)
        speeds = speeds + 0.002 * push
    return torch.cat([places, speeds])


def solution_that_is_refined() -> torch.Tensor:
    """A system that is solved by an inverse in bfloat16 again and again, for a residual in float32: each turn takes two digits off the error."""
    matrix = torch.eye(24) + normal(24, 24) / 12
    goal = normal(24, seed=1)
    rough = torch.linalg.inv(matrix).to(LOW)
    x = torch.zeros(24)
    for _ in range(8):
        residual = goal - matrix @ x
        x = x + (rough @ residual.to(LOW)).float()
    return x


def vortices_with_a_closure() -> torch.Tensor:
    """Vorticity on a periodic grid in float32, by transforms; a network under autocast gives the eddy viscosity, which is small and positive."""
    wave = torch.fft.fftfreq(32, 1 / 32)
    x, y = torch.meshgrid(wave, wave, indexing="ij")
    squares, model = x.square() + y.square(), net(3, 16, 1)
    model.requires_grad_(False)
    inverse = torch.where(squares > 0, 1 / squares.clamp_min(1), 0.0)
    grid = 2 * math.pi * torch.arange(32) / 32
    now = torch.fft.fft2(torch.sin(grid)[:, None] * torch.cos(2 * grid) + 0.3 * torch.cos(3 * grid)[:, None] * torch.ones(32))
    for _ in range(12):
        stream = now * inverse
        parts = [torch.fft.ifft2(each).real for each in (1j * y * stream, -1j * x * stream, 1j * x * now, 1j * y * now)]
        with torch.autocast("cpu", LOW):
            eddy = model(torch.stack([parts[0], parts[1], torch.fft.ifft2(now).real], -1))
        rate = 0.01 * functional.softplus(eddy.float()).squeeze(-1)
        spread = torch.fft.ifft2(-squares * now).real
        now = now + 0.01 * torch.fft.fft2(rate * spread - parts[0] * parts[2] - parts[1] * parts[3]) * (squares < 100)
    return torch.fft.ifft2(now).real


def light_along_rays() -> torch.Tensor:
    """Colours of rays through a thin fog: what a piece stops is -expm1 of its depth, and what is left is exp of a sum, in float32."""
    model, origins, ways = net(6, 48, 4), normal(16, 1, 3) / 4, functional.normalize(normal(16, 1, 3, seed=1), dim=-1)
    model.requires_grad_(False)
    ends = torch.linspace(0.5, 4, 49)
    middles, steps = (ends[1:] + ends[:-1]) / 2, ends[1:] - ends[:-1]
    points = origins + middles[:, None] * ways
    with torch.autocast("cpu", HALF):
        density, colour = model(torch.cat([points, ways.expand_as(points)], -1)).split([1, 3], -1)
    depth = 0.02 * functional.softplus(density.float()).squeeze(-1) * steps
    left = torch.exp(-(depth.cumsum(-1) - depth))
    return ((left * -torch.expm1(-depth))[..., None] * torch.sigmoid(colour.float())).sum(1)


def product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The product of quaternions, whose real part is first."""
    a, u, b, v = one[..., :1], one[..., 1:], other[..., :1], other[..., 1:]
    return torch.cat([a * b - (u * v).sum(-1, keepdim=True), a * v + b * u + torch.linalg.cross(u, v)], -1)


def turns_between_poses() -> torch.Tensor:
    """Poses between two that are close, from a head in bfloat16: in float32, with the angle by atan2 and sin(x)/x by sinc, near zero as well."""
    model = net(8, 32, 8).to(LOW)
    with torch.no_grad():
        said = model(normal(12, 8, seed=1).to(LOW)).float().view(12, 2, 4)
    start = functional.normalize(said[:, 0] + torch.tensor([2.0, 0, 0, 0]), dim=-1)
    step = functional.normalize(0.1 * said[:, 1] + torch.tensor([2.0, 0, 0, 0]), dim=-1)
    angle = 2 * torch.atan2(step[:, 1:].norm(dim=-1), step[:, 0])
    axis = step[:, 1:] / torch.sinc(angle / (2 * math.pi)).unsqueeze(-1) * 2
    found = []
    for share in torch.linspace(0, 1, 5):
        half = share * axis / 2
        part = torch.cat([half.norm(dim=-1, keepdim=True).cos(), half * torch.sinc(half.norm(dim=-1, keepdim=True) / math.pi)], -1)
        found.append(product(start, part))
    return torch.stack(found)


def curve_through_knots() -> torch.Tensor:
    """A natural cubic spline through knots that a network in half says: its slopes by elimination in float32, of a matrix that is dominant."""
    with torch.no_grad(), torch.autocast("cpu", HALF):
        knots = net(4, 32, 12)(normal(6, 4, seed=1)).float()
    away = 6 * (knots[:, 2:] - 2 * knots[:, 1:-1] + knots[:, :-2])
    pivots, rest = [torch.tensor(4.0)], [away[:, 0]]
    for place in range(1, away.shape[1]):
        rest.append(away[:, place] - rest[-1] / pivots[-1])
        pivots.append(4 - 1 / pivots[-1])
    bend = [rest[-1] / pivots[-1]]
    for value, pivot in zip(rest[-2::-1], pivots[-2::-1], strict=True):
        bend.append((value - bend[-1]) / pivot)
    bends = functional.pad(torch.stack(bend[::-1], -1), (1, 1))
    at = torch.linspace(0, 10.99, 60)
    piece = at.long()
    right, left = at - piece, 1 - (at - piece)
    cubic = (left**3 - left) * bends[:, piece] / 6 + (right**3 - right) * bends[:, piece + 1] / 6
    return left * knots[:, piece] + right * knots[:, piece + 1] + cubic


def voice_by_a_mask() -> torch.Tensor:
    """Speech out of noise: spectra are complex in float32, a network under autocast sees their logarithms and says a mask between zero and one."""
    window, time = torch.hann_window(128), torch.arange(1600) / 8000
    noisy = torch.sin(2 * math.pi * 440 * time) * torch.exp(-3 * time) + 0.1 * normal(1600)
    spectrum = torch.stft(noisy, 128, 32, window=window, return_complex=True)
    features = torch.log1p(100 * spectrum.abs()).T
    with torch.no_grad(), torch.autocast("cpu", LOW):
        mask = torch.sigmoid(net(65, 64, 65)(features).float())
    return torch.istft(spectrum * mask.T, 128, 32, window=window, length=1600)


def pitch_by_squared_differences() -> torch.Tensor:
    """The period of notes by YIN: differences are squared and added up as such in float32, and the dip is read between samples."""
    time, periods = torch.arange(512.0), 40 + 20 * uniform(6, 1)
    note = torch.sin(2 * math.pi * time / periods) + 0.3 * torch.sin(4 * math.pi * time / periods + 1)
    sums = torch.stack([(note[:, :400] - note[:, lag : lag + 400]).square().sum(-1) for lag in range(1, 100)], -1)
    ratio = sums * torch.arange(1, 100) / sums.cumsum(-1)
    best = ratio[:, 20:75].argmin(-1, keepdim=True) + 20
    before, here, after = (ratio.gather(1, best + way) for way in (-1, 0, 1))
    return best + 1 + 0.5 * (before - after) / (before - 2 * here + after)


def adaptive_steps_with_a_wide_clock() -> torch.Tensor:
    """An adaptive solver with a clock in float64 and a state in float32; the slope is a network in bfloat16, whose error is below the tolerance."""
    model, t, step, y = net(3, 24, 2), torch.zeros((), dtype=DOUBLE), torch.tensor(0.05, dtype=DOUBLE), normal(8, 2, seed=1)

    def slope(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", LOW):
            return torch.tanh(model(torch.cat([y, t.to(y.dtype).expand(len(y), 1)], -1)).float()) - 0.5 * y

    while t < 2:
        size = min(float(step), 2 - float(t))
        one = slope(t, y)
        two = slope(t + size / 2, y + size / 2 * one)
        three = slope(t + 3 * size / 4, y + 0.75 * size * two)
        new = y + size * (2 * one + 3 * two + 4 * three) / 9
        four = slope(t + size, new)
        error = (size * (-5 / 72 * one + two / 12 + three / 9 - four / 8)).abs().max() / 0.03
        if error <= 1:
            t, y = t + size, new
        step = step * (0.9 / float(error.clamp(0.03, 10)) ** (1 / 3))
    return y


def picture_of_a_hologram() -> torch.Tensor:
    """A picture at a distance of many waves: phases are counted in float64, whole turns are taken off, and the rest is float32."""
    wave = torch.fft.fftfreq(32, 8e-6, dtype=DOUBLE)
    turns = 0.05 * (1 / 633e-9**2 - wave[:, None].square() - wave.square()).sqrt()
    phase = (2 * math.pi * (turns - turns.floor())).float()
    with torch.no_grad(), torch.autocast("cpu", LOW):
        lens = torch.sigmoid(net(2, 32, 1)(torch.cartesian_prod(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32)))).view(32, 32)
    field = torch.fft.ifft2(torch.fft.fft2(torch.polar(torch.ones(32, 32), 6.28 * lens.float())) * torch.polar(torch.ones(32, 32), phase))
    return field.abs().square()


def tones_in_two_registers() -> torch.Tensor:
    """A bank of oscillators whose phase is whole steps in int64 of a turn in 2**32 parts: no sum is rounded, however long the note."""
    steps = (torch.tensor([261.6, 329.6, 392.0]) / 48000 * 2**32).long()
    samples = torch.arange(10**6, 10**6 + 240)
    phase = (steps[:, None] * samples) % 2**32
    tone = torch.sin(2 * math.pi * phase.double() / 2**32).float()
    loud = torch.stack([tone[0], 0.5 * tone[1], 0.25 * tone[2]]).to(LOW)
    return torch.stack([first.float() + second.float() for first, second in itertools.pairwise(loud)])


IDIOMS = (
    tracked_by_josephs_form, atoms_by_verlet, solution_that_is_refined, vortices_with_a_closure, light_along_rays, turns_between_poses,
    curve_through_knots, voice_by_a_mask, pitch_by_squared_differences, adaptive_steps_with_a_wide_clock, picture_of_a_hologram,
    tones_in_two_registers,
)  # fmt: skip
EXACT = ("pitch_by_squared_differences",)
