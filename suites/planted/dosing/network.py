"""Pharmacokinetics whose rates a network predicts from covariates, after NONMEM: doses, samples, and what an assay cannot see."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn as nn

STEPS = 1


@dataclasses.dataclass(frozen=True)
class Config:
    patients: int = 16
    covariates: int = 5
    hidden: int = 32
    rates: int = 4
    sigma: float = 0.08
    limit: float = 30.0  # ng/ml; the assay sees nothing below it
    pump_every: float = 0.25  # hours
    steepness: float = 5.0
    half_effect: float = 40.0
    grid: int = 240


def hours_since(taken, sampled):
    """From each dose to each sample. Both are minutes since admission."""
    return (sampled - taken).float() / 60


def filtration(creatinine, age):
    """The kidneys' rate by CKD-EPI. Creatinine is in hundredths of mg/dl."""
    ratio = creatinine.float() / 90
    return 142 * ratio.clamp(max=1) ** -0.302 * ratio.clamp(min=1) ** -1.2 * torch.exp(age * math.log(0.9938))


def rhythm(sampled):
    """What the time of day adds."""
    angle = 2 * math.pi * (sampled % 1440).float() / 1440
    return 0.1 * torch.cos(angle)


def bateman(dose, into, out, volume, hours):
    """The concentration after a dose that is absorbed at one rate and leaves at another."""
    gap = into - out
    rise = -torch.expm1(-gap * hours) * torch.exp(-out * hours)
    return 1000 * dose * into / (volume * gap) * rise


def pumped(out, cfg):
    """How much higher the level of a pump's small doses is than that of one."""
    return -1 / torch.expm1(-out * cfg.pump_every)


def effect(level, cfg):
    """Of the greatest effect, by Hill."""
    return torch.sigmoid(cfg.steepness * (level.log() - math.log(cfg.half_effect)))


def residual(observed, predicted, cfg):
    """In standard deviations, of logarithms."""
    return (observed.float().log() - predicted.log()) / cfg.sigma


def censored(predicted, cfg):
    """The logarithm of the chance that an assay sees nothing."""
    apart = (math.log(cfg.limit) - predicted.log()) / 0.25
    return torch.special.log_ndtr(apart)


def exposure(curve, spacing):
    """The area below each patient's curve."""
    return torch.trapezoid(curve, dx=spacing, dim=1)


def shrinkage(eta, lower):
    """How unlikely a patient's rates are in the population."""
    with torch.autocast(eta.device.type, enabled=False):
        omega = lower.float() @ lower.float().T
    return (eta * torch.linalg.solve(omega, eta.T).T).sum(1)


class Rates(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cfg.covariates, cfg.hidden), nn.SiLU(), nn.LayerNorm(cfg.hidden), nn.Linear(cfg.hidden, cfg.rates))
        self.typical = nn.Parameter(torch.tensor([0.084, 0.072, 58.0, 1.0]).log())

    def forward(self, covariates):
        eta = 0.02 * torch.tanh(self.net(covariates).float())
        return eta, (self.typical.float() + eta).exp()


class Population(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.rates = cfg, Rates(cfg)
        across = torch.full((cfg.rates, cfg.rates), 0.995) + 0.005 * torch.eye(cfg.rates)
        self.register_buffer("lower", torch.linalg.cholesky(across))

    def covariates(self, age, weight, creatinine, sex):
        cleared = filtration(creatinine, age)
        size = (weight.float() / 70) ** 0.75
        columns = (age / 50 - 1, size - 1, cleared / 100 - 1, sex - 0.5, creatinine / 90 - 1)
        return torch.stack([column.float() for column in columns], 1)

    def forward(self, age, weight, creatinine, sex, taken, sampled, dose, observed):
        cfg, read = self.cfg, self.rates.typical.dtype
        eta, rates = self.rates(self.covariates(age, weight, creatinine, sex).to(read))
        into, out, volume, share = (each[:, None] for each in rates.unbind(1))
        level = share * bateman(dose[:, None].float(), into, out, volume, hours_since(taken[:, None], sampled))
        level = level * (1 + rhythm(sampled))
        times = torch.linspace(0.1, 48, cfg.grid)
        curve = share * bateman(dose[:, None].float(), into, out, volume, times)
        return {
            "level": level,
            "effect": effect(level, cfg),
            "residual": residual(observed, level, cfg),
            "unseen": censored(level, cfg),
            "area": exposure(curve, 0.2),
            "pump": pumped(out, cfg),
            "shrunk": shrinkage(eta, self.lower),
        }


def loss(output):
    fit = output["residual"].square().mean() + 1e-3 * output["unseen"].square().mean() + 1e-6 * output["area"].mean()
    return fit + 0.01 * output["pump"].log().mean() + 0.1 * output["shrunk"].mean() - 0.1 * output["effect"].mean()


def make():
    torch.manual_seed(0)
    return Population(Config())


def batch():
    generator = torch.Generator().manual_seed(27)
    rows = Config.patients
    taken = torch.randint(2_100, 7_400, (rows,), generator=generator)
    sampled = taken[:, None] + torch.randint(50, 420, (rows, 8), generator=generator)
    dose = torch.randint(8, 25, (rows,), generator=generator)
    hours = (sampled - taken[:, None]) / 60
    true = 1000 * dose[:, None] * 0.084 / (58 * 0.012) * -torch.expm1(-0.012 * hours) * torch.exp(-0.072 * hours)
    true = true * (1 + 0.1 * torch.cos(2 * math.pi * (sampled % 1440) / 1440)) * (0.09 * torch.randn(true.shape, generator=generator)).exp()
    return {
        "age": torch.randint(30, 90, (rows,), generator=generator),
        "weight": torch.randint(50, 110, (rows,), generator=generator),
        "creatinine": torch.randint(60, 240, (rows,), generator=generator),
        "sex": torch.randint(0, 2, (rows,), generator=generator),
        "taken": taken,
        "sampled": sampled,
        "dose": dose,
        "observed": true.round().clamp(min=1).long(),
    }


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-2, weight_decay=0.0)
