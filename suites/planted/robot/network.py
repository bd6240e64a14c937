"""An arm with a camera: gyroscope ticks integrated as quaternions, a filter of its heading, places on a map, and a network that corrects
the pose.

Positions on a map and covariances are float32 whatever the network computes in, so this model is trained in mixed precision only.
"""

from __future__ import annotations

import torch
from torch import nn

PRECISIONS = ("bf16-mixed", "16-mixed")
STEPS = 1
TICKS, ARMS, SENSORS, WIDTH, TIME = 200, 6, 9, 32, 0.005


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Hamilton's, of quaternions (w, x, y, z)."""
    w, v, u, r = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    return torch.cat([w * u - (v * r).sum(-1, keepdim=True), w * r + u * v + torch.linalg.cross(v, r)], -1)


def normalised(turn: torch.Tensor) -> torch.Tensor:
    """Of length one; a sensor that is off gives zero, and stays so."""
    turn = turn.float()
    return turn / turn.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def integrated(rates: torch.Tensor, start: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The attitude after all ticks of a gyroscope, in radians a second."""
    attitude = start.float()
    for rate in rates.float().unbind(1):
        half = 0.5 * TIME * rate
        attitude = attitude + product(attitude, torch.cat([torch.zeros_like(half[..., :1]), half], -1))
    return normalised(attitude).float()


def angle(a: torch.Tensor, b: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How far apart two attitudes are, in radians."""
    apart = product(a * a.new_tensor([1.0, -1.0, -1.0, -1.0]), b)
    return (2 * torch.atan2(apart[..., 1:].norm(dim=-1), apart[..., 0].abs())).float()


def local_places(places: torch.Tensor, origin: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Places on a map, in metres from the arm."""
    return (places - origin).float()


def filtered(seen: torch.Tensor, spread: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A Kalman filter of each arm's heading and how fast it turns; nothing is known at first. Returns the last covariance."""
    step = torch.tensor([[1.0, TIME], [0.0, 1.0]])
    covariance = 1e4 * torch.eye(2).expand(seen.shape[0], 2, 2).float()
    for now in range(seen.shape[1]):
        covariance = step @ covariance @ step.T + 1e-5 * torch.eye(2)
        gain = covariance[:, :, :1] / (covariance[:, :1, :1] + spread[:, now, None, None].float())
        covariance = covariance - gain @ covariance[:, :1]
    return covariance.float()


class Arm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SENSORS + 3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.turn, self.bias = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 3)

    def forward(
        self,
        sensors: torch.Tensor,
        rates: torch.Tensor,
        start: torch.Tensor,
        goal: torch.Tensor,
        places: torch.Tensor,
        origin: torch.Tensor,
        spread: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else sensors.dtype
        with torch.autocast(sensors.device.type, enabled=False):
            near = local_places(places, origin, low)
        hidden = self.body(torch.cat([sensors, near / 10], -1))
        correction, drift = 0.02 * self.turn(hidden), 0.01 * self.bias(hidden)
        on = (sensors != 0).any(-1, keepdim=True)
        with torch.autocast(sensors.device.type, enabled=False):
            still = torch.tensor([1.0, 0.0, 0.0, 0.0])
            unit = normalised((correction + still.to(correction.dtype)) * on)
            unit = torch.where(on, unit.float(), still)
            attitude = integrated(rates - drift.float().unsqueeze(1), start, low)
            apart = angle(product(attitude, unit), goal, low)
            covariance = filtered(rates[..., 0], spread, low)
        doubt = covariance[:, 0, 0].detach().clamp_min(1e-6)
        return {"apart": apart, "loss": (apart.square() / doubt.sqrt() * on.squeeze(-1)).mean(), "covariance": covariance}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Arm()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    sensors = torch.randn(ARMS, SENSORS, generator=generator)
    sensors[2] = 0
    rates = 0.2 * torch.randn(ARMS, 1, 3, generator=generator) + 0.05 * torch.randn(ARMS, TICKS, 3, generator=generator)
    start = nn.functional.normalize(torch.randn(ARMS, 4, generator=generator), dim=-1)
    goal = integrated(rates, start, torch.float32)
    origin = torch.tensor([448250.5, 5411930.25, 312.0]).expand(ARMS, 3)
    return {
        "sensors": sensors,
        "rates": rates,
        "start": start,
        "goal": nn.functional.normalize(goal + 0.01 * torch.randn(goal.shape, generator=generator), dim=-1),
        "places": origin + 5 * torch.randn(ARMS, 3, generator=generator),
        "origin": origin.contiguous(),
        "spread": 0.01 + 0.02 * torch.rand(ARMS, TICKS, generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
