"""A Gaussian process over what a small network makes of a place and a year: its likelihood, and what it says of new places."""

from __future__ import annotations

import torch
from torch import nn

PRECISIONS = ("bf16-mixed", "16-mixed")  # years are inputs, which a conversion of everything would round
STEPS = 1
KNOWN, NEW, PLACES, WIDTH, FEATURES = 72, 24, 3, 32, 2


def low_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.get_default_dtype()


def since(years: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Decades since the middle of the record."""
    return ((years - 1995.0) / 10).float()


def apart(one: torch.Tensor, two: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Squared distances."""
    return (one.unsqueeze(-2) - two.unsqueeze(-3)).square().sum(-1).float()


def kernel(square: torch.Tensor, scale: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return (scale.float() * torch.exp(-0.5 * square)).float()


def rooted(matrix: torch.Tensor, noise: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The Cholesky factor, with noise on the diagonal; more noise if it has none."""
    matrix = matrix + noise.float() * torch.eye(len(matrix))
    for extra in (0.0, 1e-4, 1e-3, 1e-2, 1e-1):
        factor, failed = torch.linalg.cholesky_ex(matrix + extra * torch.eye(len(matrix)))
        if not failed:
            break
    return factor


def log_determinant(factor: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return (2 * factor.diagonal().log().sum()).float()


def doubt(own: torch.Tensor, solved: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The variance at a new place: what it was before anything was known, less what is known."""
    return (own - solved.square().sum(0)).float()


class Process(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(PLACES + 1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, FEATURES))
        self.length, self.scale, self.noise = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(-5.5))

    def features(self, places: torch.Tensor, years: torch.Tensor) -> torch.Tensor:
        low = low_dtype()
        with torch.autocast(places.device.type, enabled=False):
            time = since(years, low)
        x = torch.cat([places, time.unsqueeze(-1)], -1)
        return self.body(x).float() + x[:, :FEATURES].float()

    def forward(
        self,
        places: torch.Tensor,
        years: torch.Tensor,
        values: torch.Tensor,
        new_places: torch.Tensor,
        new_years: torch.Tensor,
        new_values: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        low = low_dtype()
        known, new = self.features(places, years), self.features(new_places, new_years)
        with torch.autocast(places.device.type, enabled=False):
            width, scale, noise = self.length.exp(), self.scale.exp(), self.noise.exp()
            centre = known.mean(0).detach() - 6
            known, new = (known - centre) / width, (new - centre) / width
            factor = rooted(kernel(apart(known, known, low), scale, low), noise, low)
            whitened = torch.linalg.solve_triangular(factor, values.unsqueeze(-1).to(factor.dtype), upper=False)
            fit = whitened.square().sum()
            loss = 0.5 * (fit + log_determinant(factor, low)) / KNOWN
            solved = torch.linalg.solve_triangular(factor, kernel(apart(known, new, low), scale, low), upper=False)
            mean = (solved.T @ whitened).squeeze(-1)
            variance = doubt(scale.float(), solved, low) + noise
            own = (0.5 * (new_values - mean).square() / variance.clamp_min(1e-6) + 0.5 * variance.clamp_min(1e-6).log()).mean()
        return {"loss": loss + own, "mean": mean, "variance": variance}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Process()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def values(places: torch.Tensor, years: torch.Tensor) -> torch.Tensor:
        return torch.sin(places[:, 0] + (years - 1995) / 10) + 0.3 * places[:, 1] + 0.06 * torch.randn(len(places), generator=generator)

    places, years = torch.randn(KNOWN, PLACES, generator=generator), 1980 + 30 * torch.rand(KNOWN, generator=generator)
    new_places, new_years = torch.randn(NEW, PLACES, generator=generator), 1980 + 30 * torch.rand(NEW, generator=generator)
    return {
        "places": places,
        "years": years,
        "values": values(places, years),
        "new_places": new_places,
        "new_years": new_years,
        "new_values": values(new_places, new_years),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
