"""How long patients live: a network of their records, a likelihood of who dies first, and a chance to die in each of some intervals."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
PATIENTS, MEASURES, GROUPS, WIDTH, INTERVALS = 384, 10, 6, 48, 120


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def observed(entered: torch.Tensor, left: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """For how many days, of two days since 1970."""
    return (left - entered).float()


def edges(days: torch.Tensor) -> torch.Tensor:
    """The intervals: as many patients leave in each."""
    return torch.quantile(days.float(), torch.linspace(0, 1, INTERVALS + 1).float())[1:-1]


def interval_of(days: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The interval in which each patient left."""
    return torch.bucketize(days, edges(days))


def stay_in_study(days: torch.Tensor, died: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The chance that a patient was still observed when he left, by Kaplan and Meier."""
    order = days.argsort()
    left = PATIENTS - torch.arange(PATIENTS).float()
    lost = (~died[order]).float()
    stay = torch.cumprod(1 - lost / left, 0)
    return torch.empty_like(stay).scatter(0, order, stay).clamp_min(0.05).float()


def first_to_die(risk: torch.Tensor, days: torch.Tensor, died: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Less the logarithm of the chance that whoever died did so before all who lived longer; for each patient."""
    order = days.argsort(descending=True)
    risk, died = risk.float()[order], died[order]
    top = risk.detach().max()
    sums = torch.exp(risk - top).cumsum(0)
    return (torch.log(sums + 1e-9) + top - risk).float() * died


def alive(hazard: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The chance to live through each interval."""
    return torch.exp(functional.logsigmoid(-hazard.float()).cumsum(-1))


def standardised(x: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return ((x.float() - mean.float()) / spread.float()).to(x.dtype)


class Survival(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group = nn.Embedding(GROUPS, WIDTH)
        self.first, self.second = nn.Linear(MEASURES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.risk, self.hazard = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, INTERVALS)

    def forward(
        self, measures: torch.Tensor, group: torch.Tensor, entered: torch.Tensor, left: torch.Tensor, died: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        low = low_dtype(self.first.weight)
        with torch.autocast(measures.device.type, enabled=False):
            centre, spread = measures.float().mean(0), measures.float().std(0)
            x = standardised(measures, centre, spread, low)
        x = torch.relu(self.first(x) + self.group(group))
        x = self.norm(x + functional.gelu(self.second(x)))
        risk, hazard = self.risk(x).squeeze(-1), self.hazard(x)
        with torch.autocast(measures.device.type, enabled=False):
            days = observed(entered, left, low)
            cox = first_to_die(14 * risk, days, died, low)
            at = interval_of(days, low)
            chance = alive(hazard - 6.5, low)
            weight = died / stay_in_study(days, died, low)
            later = (torch.arange(INTERVALS) < at.unsqueeze(-1)).float()
            brier = (weight.unsqueeze(-1) * (later - chance).square()).mean()
            own = functional.binary_cross_entropy_with_logits(hazard.float().gather(1, at.unsqueeze(-1)).squeeze(-1) - 6.5, died.float())
        return {"loss": cox.sum() / died.sum() + brier + own, "alive": chance, "risk": risk}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Survival()


def batch() -> dict[str, torch.Tensor]:
    """Dates are days since 1970; measures have means of 0 to 3."""
    generator = torch.Generator().manual_seed(1)
    entered = 14000 + torch.randint(0, 3000, (PATIENTS,), generator=generator)
    return {
        "measures": torch.randn(PATIENTS, MEASURES, generator=generator) + torch.linspace(0, 3, MEASURES),
        "group": torch.randint(0, GROUPS, (PATIENTS,), generator=generator),
        "entered": entered,
        "left": entered + 20 + torch.randperm(3600, generator=generator)[:PATIENTS],
        "died": torch.rand(PATIENTS, generator=generator) < 0.6,
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
