"""Physics, geometry and control around networks in low precision: states, residuals and matrices are float32 or wider, and steps are added there."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

from healthy.crafts import net

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def string_that_is_plucked() -> torch.Tensor:
    """A string by leapfrog in float32; how fast each piece of it loses its swing is what a network in bfloat16 says once, beforehand."""
    place = torch.linspace(0, 1, 65)
    with torch.no_grad(), torch.autocast("cpu", LOW):
        loss = 0.02 * functional.softplus(net(2, 16, 1)(torch.stack([place, place.square()], -1)).float()).squeeze(-1)
    now = torch.minimum(place, (1 - place) / 3)
    before = now.clone()
    for _ in range(80):
        bend = functional.pad(now[2:] - 2 * now[1:-1] + now[:-2], (1, 1))
        now, before = now + (1 - loss) * (now - before) + 0.25 * bend, now
    return now


def rod_by_implicit_steps() -> torch.Tensor:
    """Heat in a rod by implicit steps, whose matrix is factored once in float64; sources are a network's in half."""
    with torch.no_grad():
        source = 0.05 * torch.sigmoid(net(1, 16, 1).to(HALF)(torch.linspace(-1, 1, 40)[:, None].to(HALF))).float().squeeze(-1)
    beside = torch.ones(39, dtype=DOUBLE)
    matrix = 3 * torch.eye(40, dtype=DOUBLE) - torch.diag(beside, 1) - torch.diag(beside, -1)
    factor = torch.linalg.cholesky(matrix)
    warm = torch.zeros(40)
    for _ in range(20):
        warm = torch.cholesky_solve((warm + source).double()[:, None], factor).squeeze(-1).float()
    return warm


def corrections_in_bfloat16() -> torch.Tensor:
    """A potential by refinement: residuals and the sum of corrections are float32, and each correction is a few sweeps in bfloat16."""
    charge = torch.zeros(24, 24)
    charge[6, 7], charge[17, 15] = 1, -0.8
    found = torch.zeros(24, 24)

    def around(field: torch.Tensor) -> torch.Tensor:
        wide = functional.pad(field, (1, 1, 1, 1))
        return wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]

    for _ in range(16):
        residual = charge - (4.4 * found - around(found))
        scale = residual.abs().amax()
        low, move = (residual / scale).to(LOW), torch.zeros(24, 24, dtype=LOW)
        for _ in range(4):
            move = (low + around(move)) / 4.4
        found = found + scale * move.float()
    return found


def arm_that_reaches() -> torch.Tensor:
    """Angles of an arm of four links by damped least squares in float32, from a first guess of a network in bfloat16; places are what counts."""
    goals = torch.stack([1.5 + uniform(6), uniform(6, seed=1) - 0.5], -1)
    with torch.no_grad():
        angles = (0.3 * net(2, 16, 4).to(LOW)(goals.to(LOW))).float() + torch.tensor([0.4, -0.3, 0.5, -0.4])

    def ends(angles: torch.Tensor) -> torch.Tensor:
        turned = angles.cumsum(-1)
        return torch.stack([turned.cos().sum(-1), turned.sin().sum(-1)], -1)

    for _ in range(12):
        turned = angles.cumsum(-1)
        slopes = torch.stack([-turned.sin(), turned.cos()], -2).flip(-1).cumsum(-1).flip(-1)
        square = slopes @ slopes.mT + 1e-3 * torch.eye(2)
        angles = angles + (slopes.mT @ torch.linalg.solve(square, (goals - ends(angles))[..., None])).squeeze(-1)
    return ends(angles)


def cloth_by_constraints() -> torch.Tensor:
    """A cloth by its places, before and after each step, in float32; what is handed to a screen is half, beside the middle of the cloth."""
    row, column = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    now = torch.stack([row, column, torch.zeros(8, 8)], -1) / 8
    before, held = now.clone(), torch.ones(8, 8, 1)
    held[0, ::7] = 0
    for _ in range(20):
        now, before = now + held * (now - before + torch.tensor([0.0, 0, -2e-4])), now
        for axis in (0, 1):
            for start in (0, 1):
                first, second = (now.narrow(axis, start + one, 7 - start).index_select(axis, torch.arange(0, 7 - start, 2)) for one in (0, 1))
                away = second - first
                move = 0.5 * (1 - 0.125 / away.norm(dim=-1, keepdim=True)) * away
                places = torch.arange(start, 7, 2)
                now = now.index_add(axis, places, move * held.index_select(axis, places))
                now = now.index_add(axis, places + 1, -move * held.index_select(axis, places + 1))
    return (now - now.mean((0, 1))).to(HALF).float()


def orbit_with_half_masses() -> torch.Tensor:
    """Three bodies by leapfrog in float64, whose masses come out of a file in half and are widened before anything is done with them."""
    masses = torch.tensor([1.0, 1e-3, 3e-3]).to(HALF).double()
    place = torch.tensor([[0.0, 0], [1, 0], [-1.6, 0]], dtype=DOUBLE)
    speed = torch.tensor([[0.0, 0], [0, 1], [0, -0.79]], dtype=DOUBLE)

    def pull(place: torch.Tensor) -> torch.Tensor:
        away = place - place[:, None]
        cube = (away.square().sum(-1) + 1e-6) ** 1.5
        return (masses[:, None] * away / cube[..., None]).sum(1)

    for _ in range(200):
        speed = speed + 0.01 * pull(place)
        place = place + 0.02 * speed
        speed = speed + 0.01 * pull(place)
    return torch.cat([place, speed], -1).float()


def spins_by_a_table() -> torch.Tensor:
    """Spins on a grid by turns of black and white: sums of neighbours are whole numbers in bfloat16, and chances come from a table in float32."""
    spins = torch.where(uniform(16, 16) < 0.7, 1.0, -1.0).to(LOW)
    chances = 1 / (1 + torch.exp(-2 * torch.arange(-4.0, 5) / 2.0))
    white, found = (torch.arange(16)[:, None] + torch.arange(16)) % 2, []
    for turn in range(20):
        for colour in (0, 1):
            sums = spins.roll(1, 0) + spins.roll(-1, 0) + spins.roll(1, 1) + spins.roll(-1, 1)
            up = uniform(16, 16, seed=10 + 2 * turn + colour) < chances[sums.long() + 4]
            spins = torch.where(white == colour, torch.where(up, 1.0, -1.0).to(LOW), spins)
        found.append(spins.float().mean())
    return torch.stack(found)


def light_through_a_lens() -> torch.Tensor:
    """Rays through a ball lens by Snell's law in float32, for three colours whose shares are half: how far off each ray meets the axis."""
    height = torch.linspace(0.05, 0.6, 31)
    shares, found = torch.softmax(torch.tensor([0.2, 0.5, 0.1]).to(HALF).float(), -1), []
    for index in (1.50, 1.515, 1.53):
        first = torch.asin(height)
        inner = torch.asin(height / index)
        found.append(torch.sin(first) / torch.sin(2 * (first - inner)))
    return shares[:, None] * torch.stack(found)


def pendulum_on_a_cart() -> torch.Tensor:
    """A cart that is held by gains of Riccati's recursion in float64, seen through an observer, with friction by a network in bfloat16."""
    moves = torch.tensor([[1, 0.05, 0, 0], [0, 1, -0.05, 0], [0, 0, 1, 0.05], [0, 0, 0.5, 1]], dtype=DOUBLE)
    push = torch.tensor([[0.0], [0.05], [0], [-0.05]], dtype=DOUBLE)
    cost, gain = torch.eye(4, dtype=DOUBLE), torch.zeros(1, 4, dtype=DOUBLE)
    for _ in range(200):
        gain = torch.linalg.solve(0.5 * torch.eye(1, dtype=DOUBLE) + push.mT @ cost @ push, push.mT @ cost @ moves)
        cost = torch.eye(4, dtype=DOUBLE) + moves.mT @ cost @ (moves - push @ gain)
    state, model, gains = torch.tensor([0.2, 0, 0.1, 0]), net(4, 16, 1), gain.float()
    found = []
    for _ in range(60):
        with torch.no_grad(), torch.autocast("cpu", LOW):
            friction = 0.02 * torch.tanh(model(state[None]).float())[0]
        force = -(gains @ state) + friction
        state = moves.float() @ state + push.float() @ force
        found.append(state)
    return torch.stack(found)


def plans_by_cross_entropy() -> torch.Tensor:
    """Plans for a car that slides, by samples and the mean of the best: costs are float32, and a network under autocast says how it slides."""
    model, middle, spread = net(4, 24, 2), torch.zeros(10, 2), torch.ones(10, 2)
    for turn in range(4):
        plans = middle + spread * normal(64, 10, 2, seed=turn)
        place, speed, cost = torch.zeros(64, 2), torch.zeros(64, 2), torch.zeros(64)
        for step in range(10):
            with torch.no_grad(), torch.autocast("cpu", LOW):
                slide = 0.1 * torch.tanh(model(torch.cat([speed, plans[:, step]], -1)).float())
            speed = 0.9 * speed + 0.2 * torch.tanh(plans[:, step]) + slide
            place = place + 0.3 * speed
            cost = cost + (place - torch.tensor([1.0, -0.5])).square().sum(-1) + 0.05 * plans[:, step].square().sum(-1)
        shares = torch.softmax(-(cost - cost.amin()) / 2, 0)
        middle = (shares[:, None, None] * plans).sum(0)
        spread = ((shares[:, None, None] * (plans - middle).square()).sum(0)).sqrt().clamp(min=0.2)
    return middle


def heater_with_an_integral() -> torch.Tensor:
    """A heater by its error, the sum of it and its slope, all in float32; the room is a network in half plus a law that is known."""
    model, warm, total, before, found = net(2, 16, 1).to(HALF), torch.tensor(15.0), torch.zeros(()), torch.tensor(6.0), []
    for step in range(120):
        error = 21 - warm
        total = (total + 0.1 * error).clamp(-20, 20)
        power = (0.8 * error + 0.5 * total + 0.1 * (error - before)).clamp(0, 10)
        before = error
        with torch.no_grad():
            draught = model(torch.stack([(warm - 18) / 5, torch.tensor(math.sin(step / 20))])[None].to(HALF)).float().squeeze()
        warm = warm + 0.02 * (power - 0.3 * (warm - 8) + 0.3 * torch.tanh(draught))
        found.append(warm)
    return torch.stack(found)


IDIOMS = (
    string_that_is_plucked, rod_by_implicit_steps, corrections_in_bfloat16, arm_that_reaches, cloth_by_constraints, orbit_with_half_masses,
    spins_by_a_table, light_through_a_lens, pendulum_on_a_cart, plans_by_cross_entropy, heater_with_an_integral,
)  # fmt: skip
