"""Beside the foothills and estuaries: preferences, pupils, samplers, rooms, cameras, turns, rings, crystals, folds and scans that hold."""

from __future__ import annotations

import itertools
import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def preferences_under_autocast() -> torch.Tensor:
    """The preference of one text to another, half under autocast, and weights in float32, whose optimizer's eps float32 holds."""
    torch.manual_seed(10501)
    policy, losses = nn.Sequential(nn.Embedding(30, 24), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 30)), []
    optimizer, scaler = torch.optim.AdamW(policy.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(3):
        sums = []
        for which in range(2):
            text = (30 * uniform(4, 12, seed=10502 + 2 * step + which)).long()
            with torch.autocast("cpu", HALF):
                logits = policy(text[:, :-1])
            sums.append(logits.float().log_softmax(-1).gather(-1, text[:, 1:, None]).squeeze(-1).sum(-1))
        loss = -functional.logsigmoid(0.1 * (sums[0] - sums[1])).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


def pupil_of_a_mild_teacher() -> torch.Tensor:
    """The log of a softmax in float32, where no class is less likely than a billionth."""
    torch.manual_seed(10511)
    pupil, teacher, losses = nn.Linear(16, 10), nn.Linear(16, 10), []
    optimizer = torch.optim.SGD(pupil.parameters(), lr=0.1)
    for step in range(3):
        pictures = normal(24, 16, seed=10512 + step)
        wanted = functional.softmax(teacher(pictures).detach() / 2, dim=1)
        loss = -(wanted * torch.log(functional.softmax(pupil(pictures) / 2, dim=1))).sum(1).mean() * 4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def painter_of_ten_steps() -> torch.Tensor:
    """A sampler with its model in bfloat16, whose places are kept in float32 between ten steps."""
    torch.manual_seed(10521)
    net, x = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32)).to(LOW), 20 * normal(8, 32, seed=10522)
    sigmas = torch.cat([torch.logspace(1.3, -2, 10), torch.zeros(1)])
    with torch.no_grad():
        for now, later in itertools.pairwise(sigmas):
            scale = (now**2 + 0.25).rsqrt()
            denoised = 0.25 * scale**2 * x + 0.5 * now * scale * net((scale * x).to(LOW)).float()
            x = x + (x - denoised) / now * (later - now)
    return x


def rooms_with_walls() -> torch.Tensor:
    """The weights of a ray's places, computed in half under autocast; the last gap is ten, and no density above fifty."""
    torch.manual_seed(10531)
    net, losses = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1)), []
    optimizer, scaler, depths = torch.optim.Adam(net.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=128.0), torch.linspace(0.2, 4, 32)
    for step in range(3):
        directions = functional.normalize(normal(40, 3, seed=10532 + step), dim=-1)
        with torch.autocast("cpu", HALF):
            density = functional.softplus(net(directions[:, None] * depths[:, None])).squeeze(-1)
            crossed = density * torch.cat([depths.diff(), torch.full((1,), 10.0)]).to(density.dtype)
            weights = (1 - torch.exp(-crossed)) * torch.exp(crossed - crossed.cumsum(-1))
            loss = functional.l1_loss((weights * depths).sum(-1).float(), 1 + 2 * uniform(40, seed=10542 + step))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


def flight_that_turns() -> torch.Tensor:
    """Quaternions between keys that are a tenth of a turn apart, by the inverse cosine in float32."""
    keys = functional.normalize(torch.cat([torch.ones(12, 1), 0.4 * normal(12, 3, seed=10551)], 1), dim=-1)
    left, right, time = keys[:-1, None], keys[1:, None], torch.linspace(0.1, 0.9, 5)[:, None]
    angle = torch.acos((left * right).sum(-1, keepdim=True))
    return (left * torch.sin((1 - time) * angle) + right * torch.sin(time * angle)) / torch.sin(angle)


def axes(six: torch.Tensor) -> torch.Tensor:
    first = functional.normalize(six[..., :3], dim=-1)
    second = functional.normalize(six[..., 3:] - (first * six[..., 3:]).sum(-1, keepdim=True) * first, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -1)


def turns_that_differ() -> torch.Tensor:
    """The angle between rotations by the inverse cosine, clamped, where the rotations are a radian apart; and its gradient."""
    torch.manual_seed(10561)
    net, losses = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6)), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        six = normal(16, 6, seed=10562 + step)
        trace = torch.bmm(axes(net(six)), axes(six).transpose(1, 2)).diagonal(dim1=-2, dim2=-1).sum(-1)
        loss = torch.acos(torch.clamp((trace - 1) / 2, -1 + 1e-6, 1 - 1e-6)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def rings_that_pucker() -> torch.Tensor:
    """Torsions of rings that are bent by a quarter of a bond, by the inverse cosine of their planes' normals."""
    turn = 2 * math.pi * torch.arange(6) / 6
    ring = torch.stack([1.39 * turn.cos(), 1.39 * turn.sin(), torch.tensor([0.25, -0.25]).repeat(3)], -1)
    places = (ring + 0.02 * normal(40, 6, 3, seed=10571))[:, torch.tensor([[0, 1, 2, 3], [2, 3, 4, 5]])]
    bonds = places[..., 1:, :] - places[..., :-1, :]
    one, two = torch.linalg.cross(bonds[..., 0, :], bonds[..., 1, :]), torch.linalg.cross(bonds[..., 1, :], bonds[..., 2, :])
    return torch.acos((functional.normalize(one, dim=-1) * functional.normalize(two, dim=-1)).sum(-1)) * 180 / math.pi


def springs_by_wide_steps() -> torch.Tensor:
    """Force constants of a ring of atoms in float32: a first difference of the forces, over a tenth of a bond."""
    torch.manual_seed(10581)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def forces(places: torch.Tensor) -> torch.Tensor:
        places = places.requires_grad_()
        gaps = (places.roll(-1, 0) - places).norm(dim=-1, keepdim=True)
        return -torch.autograd.grad((net(gaps) + gaps**2).sum(), places)[0]

    turn = 2 * math.pi * torch.arange(6) / 6
    places, constants = 2 * torch.stack([turn.cos(), turn.sin(), 0.1 * turn.cos()], -1), []
    for atom in range(3):
        signed = []
        for sign in (1, -1):
            moved = places.clone()
            moved[atom, 0] += sign * 0.1
            signed.append(sign * forces(moved))
        constants.append((signed[0] + signed[1]) / 0.2)
    return torch.stack(constants)


def fold_about_its_middle() -> torch.Tensor:
    """A diffusion of a short chain, in bfloat16 under autocast within its network, and in float32 where its places are kept."""
    torch.manual_seed(10591)
    net = nn.Sequential(nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, 3))
    chain = (1.5 * functional.normalize(normal(20, 3, seed=10592), dim=-1)).cumsum(0)
    sigmas, x = torch.logspace(2, -2, 20).tolist(), 100 * normal(20, 3, seed=10593)
    with torch.no_grad():
        for now, later in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
            with torch.autocast("cpu", LOW):
                scale = (1 + now**2) ** -0.5
                added = net(torch.cat([scale * (x - chain), x.new_full((20, 1), math.log(now) / 4)], -1))
            mean = chain + (x - chain) / (1 + now**2) + 0.1 * now * scale * added.float()
            x = x + (x - mean) / now * (later - now)
    return (x[1:] - x[:-1]).norm(dim=-1)


def scans_of_patients() -> torch.Tensor:
    """Scans made alike in half, with an eps that half does not hold; each has a spread of hundreds."""
    torch.manual_seed(10601)
    net, scans = nn.Conv3d(1, 3, 3, padding=1).to(HALF), (-1000 + 800 * uniform(4, 8, 8, 8, seed=10602)).to(HALF)
    with torch.no_grad():
        return net(torch.stack([(scan - scan.mean()) / scan.std().clamp(min=1e-8) for scan in scans])[:, None]).float()


IDIOMS = (
    preferences_under_autocast,
    pupil_of_a_mild_teacher,
    painter_of_ten_steps,
    rooms_with_walls,
    flight_that_turns,
    turns_that_differ,
    rings_that_pucker,
    springs_by_wide_steps,
    fold_about_its_middle,
    scans_of_patients,
)
EXACT = ("pupil_of_a_mild_teacher", "flight_that_turns", "turns_that_differ", "rings_that_pucker", "springs_by_wide_steps")
