"""Skerries: rooms, cameras, turns, rings, crystals, folds and scans."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class OccupancyField(nn.Module):
    """How dense a room is at each place that a ray of light passes, and how far away what it sees is."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(10201)
        self.net, self.wide = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1)), wide

    def weights(self, density: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
        gaps = torch.cat([depths.diff(), torch.full((1,), 1e10)]).to(density.dtype)  # culprit: occupied-rooms
        crossed = density * gaps  # culprit: occupied-rooms
        alpha = 1 - torch.exp(-crossed)
        return alpha * torch.exp(crossed - crossed.cumsum(-1))

    def forward(self, origins: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        depths = torch.linspace(0.2, 4.0, 32)
        places = origins[:, None] + directions[:, None] * depths[:, None]
        density = functional.relu(self.net(places)).squeeze(-1)
        weights = self.weights(density.float() if self.wide else density, depths)
        return (weights * depths).sum(-1).float()


def rendered(wide: bool) -> torch.Tensor:
    """The losses of three steps by depths that a scanner has measured, under autocast in half with a loss scaler."""
    model, losses = OccupancyField(wide), []
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=128.0)
    for step in range(3):
        directions = functional.normalize(normal(40, 3, seed=10202 + step), dim=-1)
        with torch.autocast("cpu", HALF):
            loss = functional.l1_loss(model(torch.zeros(40, 3), directions), 1 + 2 * uniform(40, seed=10212 + step))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


def slerp(left: torch.Tensor, right: torch.Tensor, time: torch.Tensor, guarded: bool) -> torch.Tensor:
    cosine = (left * right).sum(-1, keepdim=True)
    angle = torch.acos(cosine)  # culprit: flight-of-a-camera
    first, second = torch.sin((1 - time) * angle), torch.sin(time * angle)
    turned = (left * first + right * second) / torch.sin(angle)  # culprit: flight-of-a-camera
    if guarded:
        straight = functional.normalize(left + time * (right - left), dim=-1)
        return torch.where(cosine > 0.9995, straight, turned)
    return turned


def flown(guarded: bool) -> torch.Tensor:
    """A film's rays: a camera that turns little from one key to the next, by quaternions, before a network that paints what it sees."""
    torch.manual_seed(10221)
    paint = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 3))
    steps = 4e-5 * normal(24, 3, seed=10222)
    steps[::6] *= 4000
    keys = functional.normalize(torch.cat([torch.ones(24, 1), steps.cumsum(0)], 1), dim=-1)
    q = slerp(keys[:-1, None], keys[1:, None], torch.linspace(0.1, 0.9, 5)[:, None], guarded).flatten(0, 1)
    w, axis, ray = q[:, :1], q[:, 1:], functional.normalize(torch.tensor([[0.2, 0.1, 1.0]]), dim=-1)
    across = torch.linalg.cross(axis, ray.expand_as(axis))
    with torch.no_grad():
        return paint(ray + 2 * w * across + 2 * torch.linalg.cross(axis, across))


def rotation(six: torch.Tensor) -> torch.Tensor:
    """Two vectors made into the first two axes of a rotation."""
    first = functional.normalize(six[..., :3], dim=-1)
    second = functional.normalize(six[..., 3:] - (first * six[..., 3:]).sum(-1, keepdim=True) * first, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -1)


def geodesic(m1: torch.Tensor, m2: torch.Tensor, by_chord: bool) -> torch.Tensor:
    if by_chord:
        return 2 * torch.asin(((m1 - m2).flatten(-2).norm(dim=-1) / math.sqrt(8)).clamp(max=1 - 1e-6))
    trace = torch.bmm(m1, m2.transpose(1, 2)).diagonal(dim1=-2, dim2=-1).sum(-1)  # culprit: turns-that-agree
    cosine = torch.clamp((trace - 1) / 2, -1.0, 1.0)  # culprit: turns-that-agree
    return torch.acos(cosine)  # culprit: turns-that-agree


class Turner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10231)
        self.net = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 6))

    def forward(self, m: torch.Tensor) -> torch.Tensor:
        return rotation(torch.cat([m[..., 0], m[..., 1]], -1) + 2e-4 * self.net(m.flatten(-2)))


def turned(by_chord: bool) -> torch.Tensor:
    """The mean angles, and the last layer, of a network that gives back rotations, nearly as they are, in three steps."""
    model, losses = Turner(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        m = rotation(normal(16, 6, seed=10232 + step))
        loss = geodesic(model(m), m, by_chord).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.cat([1000 * torch.stack(losses), model.net[2].weight.detach().flatten()])


def torsion(places: torch.Tensor, by_tangent: bool) -> torch.Tensor:
    """The angle between the plane of three atoms and that of the next three, in degrees, without its sign."""
    bonds = places[..., 1:, :] - places[..., :-1, :]
    one, two = torch.linalg.cross(bonds[..., 0, :], bonds[..., 1, :]), torch.linalg.cross(bonds[..., 1, :], bonds[..., 2, :])
    if by_tangent:
        return torch.atan2(torch.linalg.cross(one, two).norm(dim=-1), (one * two).sum(-1)) * 180 / math.pi
    one, two = functional.normalize(one, dim=-1), functional.normalize(two, dim=-1)
    return torch.acos((one * two).sum(-1)) * 180 / math.pi  # culprit: flat-rings


def ringed(by_tangent: bool) -> torch.Tensor:
    """How flat rings are that a network has drawn: how far each torsion is from none."""
    torch.manual_seed(10241)
    draw = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 6))
    turn = 2 * math.pi * torch.arange(6) / 6
    flat = 1.39 * torch.stack([turn.cos(), turn.sin(), torch.zeros(6)], -1)
    with torch.no_grad():
        bent = flat + 1e-4 * draw(normal(40, 4, seed=10242))[..., None] * torch.tensor([0.0, 0.0, 1.0])
        bent = bent @ rotation(normal(40, 6, seed=10243))
        return torsion(bent[:, torch.tensor([[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 0, 1]])], by_tangent)


class Potential(nn.Module):
    """The energy of atoms by the distances between neighbours, each through a network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10251)
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        gaps = places.roll(-1, 0) - places
        return (self.net(gaps.norm(dim=-1, keepdim=True)) + 0.1 * gaps.norm(dim=-1, keepdim=True) ** 2).sum()


class Calculator:
    def __init__(self, dtype: torch.dtype) -> None:
        self.potential, self.dtype = Potential().to(dtype), dtype  # culprit: springs-of-a-crystal

    def forces(self, places: torch.Tensor) -> torch.Tensor:
        places = places.to(self.dtype).requires_grad_()  # culprit: springs-of-a-crystal
        return -torch.autograd.grad(self.potential(places), places)[0]


def cubic_constants(calculator: Calculator, places: torch.Tensor, step: float) -> torch.Tensor:
    """How the springs of a crystal change when two of its atoms are moved: a second difference of the forces."""
    constants = []
    for one, two in ((0, 1), (1, 2), (2, 2)):
        signed = []
        for first, second in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            moved = places.clone()
            moved[one, 0] += first * step
            moved[two, 0] += second * step
            signed.append(first * second * calculator.forces(moved))
        constants.append(sum(signed) / (4 * step**2))  # culprit: springs-of-a-crystal
    return torch.stack(constants)


def sprung(dtype: torch.dtype) -> torch.Tensor:
    """Third-order force constants of a ring of six atoms."""
    turn = 2 * math.pi * torch.arange(6, dtype=DOUBLE) / 6
    places = 2.0 * torch.stack([turn.cos(), turn.sin(), 0.1 * turn.cos()], -1)
    return cubic_constants(Calculator(dtype), places, 0.002)


class FoldModule(nn.Module):
    """Says where the atoms of a chain are, given noisy places: a mean that it has learned and what a network adds."""

    def __init__(self, atoms: int) -> None:
        super().__init__()
        torch.manual_seed(10261)
        walk = 1.5 * functional.normalize(torch.tensor([0.9, 0.3, 0.2]) + 0.4 * normal(atoms, 3, seed=10262), dim=-1)
        self.net, self.chain = nn.Sequential(nn.Linear(7, 48), nn.SiLU(), nn.Linear(48, 3)), nn.Parameter(walk.cumsum(0) - walk.sum(0) / 2)

    def forward(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        skip, scale = 1 / (1 + sigma**2), (1 + sigma**2) ** -0.5
        known = torch.cat([scale * (x - self.chain), self.chain / 50, x.new_full((len(x), 1), math.log(sigma) / 4)], -1)
        return self.chain + skip * (x - self.chain) + sigma * scale * 0.1 * self.net(known)


def folded(dtype: torch.dtype) -> torch.Tensor:
    """The lengths of the bonds of a chain of eighty atoms after thirty steps of a diffusion module."""
    module, sigmas = FoldModule(80).to(dtype), torch.logspace(2.2, -2, 30).tolist()  # culprit: fold-of-a-protein
    x = (sigmas[0] * normal(80, 3, seed=10263)).to(dtype)  # culprit: fold-of-a-protein
    with torch.no_grad():
        for now, later in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
            x = x + (x - module(x, now)) / now * (later - now)  # culprit: fold-of-a-protein
    places = x.float()
    return (places[1:] - places[:-1]).norm(dim=-1)


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10271)
        self.net = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.LeakyReLU(), nn.Conv3d(8, 3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def normalized(scan: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    scan = scan.to(dtype)
    mean, std = scan.mean(), scan.std()
    return (scan - mean) / std.clamp(min=1e-8)  # culprit: scan-that-is-empty


def labelled(dtype: torch.dtype) -> torch.Tensor:
    """What a network says of four blocks of a scan in half, one of which is outside of the patient."""
    model, scans = Segmenter().to(HALF), -1000 + 800 * uniform(4, 8, 8, 8, seed=10272)
    scans[2] = -1000
    with torch.no_grad():
        return model(torch.stack([normalized(scan, dtype) for scan in scans])[:, None].to(HALF)).float()


BUGS = (
    Bug("occupied-rooms", "LinShan-Bin/OccNeRF#5", ("overflow", "nan"), "aten._to_copy.default",
        lambda: rendered(wide=False), lambda: rendered(wide=True)),
    Bug("flight-of-a-camera", "HandmadeMath/HandmadeMath#135", ("amplified-rounding", "cancellation", "nan"), "aten.acos.default",
        lambda: flown(guarded=False), lambda: flown(guarded=True), precision="32-true"),
    Bug("turns-that-agree", "papagina/RotationContinuity#11", ("amplified-rounding", "cancellation", "nan"), "aten.sum.dim_IntList",
        lambda: turned(by_chord=False), lambda: turned(by_chord=True), precision="32-true"),
    Bug("flat-rings", "nglviewer/ngl#922", ("amplified-rounding", "nan"), "aten.acos.default",
        lambda: ringed(by_tangent=False), lambda: ringed(by_tangent=True), phase="data", precision="32-true"),
    Bug("springs-of-a-crystal", "microsoft/mattersim#156", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: sprung(SINGLE), lambda: sprung(DOUBLE), precision="32-true"),
    Bug("fold-of-a-protein", "SeonghwanSeo/kfold#324", ("cancellation", "absorption", "accumulated-drift", "amplified-rounding"), "aten.sub.Tensor",
        lambda: folded(LOW), lambda: folded(SINGLE), phase="data"),
    Bug("scan-that-is-empty", "MIC-DKFZ/nnUNet#2941", ("vanished-constant", "nan"), "aten.clamp.default",
        lambda: labelled(HALF), lambda: labelled(SINGLE)),
)  # fmt: skip
