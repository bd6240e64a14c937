"""An energy-based model of small pictures: samples by Langevin steps, a penalty on gradients, scores of noisy pictures, energies of classes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
ROWS, SIZE, WIDTH, CLASSES, TURNS, LEVELS = 12, 12, 24, 5, 6, 200
STRIDE, NOISE, BASE = 0.02, 0.0005, 40.0


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def scaled(levels: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Pictures of 256 levels, from minus one to one."""
    return levels.float() / 127.5 - 1


def noise_levels(index: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Standard deviations from 0.0002 to 40, evenly spread on a scale of logarithms."""
    share = index.float() / (LEVELS - 1)
    return torch.exp(share * 12.206 - 8.517)


def spread_out(picture: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return picture + sigma.view(-1, 1, 1, 1) * noise.float()


def target(noisy: torch.Tensor, picture: torch.Tensor, sigma: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The noise that was added, with its sign changed."""
    return (picture - noisy) / sigma.view(-1, 1, 1, 1)


def balance(sigma: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """How much of the noisy picture the answer keeps, and by what the network's input is divided, for pictures with a spread of a half."""
    both = sigma.square() + 0.25
    return 0.25 / both, torch.sqrt(both)


def stepped(sample: torch.Tensor, slope: torch.Tensor, noise: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A Langevin step: down the slope, and somewhere by chance."""
    return (sample - STRIDE * slope.float().clamp(-0.1, 0.1) + NOISE * noise.float()).clamp(-1, 1)


def wandered(sample: torch.Tensor, begin: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How far each sample has come."""
    return (sample - begin).flatten(1).norm(dim=-1)


def contrast(given: torch.Tensor, made: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much higher the energy of each picture is than that of each sample."""
    return given.float() - made.float()


def steepness(slope: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The length of each picture's gradient."""
    return torch.sqrt(slope.float().square().flatten(1).sum(-1) + 1e-12)


def evidence(energies: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The logarithm of the mean chance of a batch, of energies of some tens."""
    return torch.logsumexp(-energies.float(), 0) - torch.log(torch.tensor(float(len(energies))))


class Energy(nn.Module):
    """Logits of classes, whose exponentials add up to what a picture's energy says, and noise that is guessed."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle = nn.Conv2d(1, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.classes, self.guess, self.level = nn.Linear(WIDTH, CLASSES), nn.Conv2d(WIDTH, 1, 3, padding=1), nn.Linear(2, WIDTH)

    def features(self, x: torch.Tensor, level: torch.Tensor | None = None) -> torch.Tensor:
        x = functional.silu(self.enter(x.to(self.enter.weight.dtype)))
        if level is not None:
            x = x + self.level(level.to(self.enter.weight.dtype)).to(x.dtype)[..., None, None]
        return functional.silu(x + self.middle(x))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.classes(self.features(x).mean((-1, -2)))

    def energy(self, x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        logits = self.logits(x)
        with torch.autocast("cpu", enabled=False):
            return BASE - torch.logsumexp(8 * logits.float(), -1)

    def slope(self, x: torch.Tensor, low: torch.dtype, *, again: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of the energy at pictures, and the energy."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energies = self.energy(x, low)
            return torch.autograd.grad(energies.sum(), x, create_graph=again)[0], energies

    def forward(
        self, levels: torch.Tensor, begin: torch.Tensor, chance: torch.Tensor, noise: torch.Tensor, index: torch.Tensor, kinds: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        low = low_dtype(self.enter.weight)
        with torch.autocast("cpu", enabled=False):
            pictures, first = scaled(levels, low), scaled(begin, low)
        sample = first
        for turn in range(TURNS):
            slope, _ = self.slope(sample, low)
            with torch.autocast("cpu", enabled=False):
                sample = stepped(sample, slope, chance[turn], low)
        given, made = self.energy(pictures, low), self.energy(sample.detach(), low)
        slope, _ = self.slope(pictures, low, again=True)
        with torch.autocast("cpu", enabled=False):
            sigma = noise_levels(index, low)
            noisy = spread_out(pictures, noise, sigma, low)
            wanted = target(noisy, pictures, sigma, low)
            keep, by = balance(sigma, low)
            inner, level = noisy / by.view(-1, 1, 1, 1), torch.stack([torch.log(sigma) / 4, keep], -1)
        guess = self.guess(self.features(inner, level))
        logits = self.logits(pictures)
        with torch.autocast("cpu", enabled=False):
            apart = contrast(given, made, low)
            long = steepness(slope, low)
            cost = apart.mean() + 0.01 * (given.square() + made.square()).mean() / BASE + 0.1 * long.square().mean()
            cost = cost + (guess.float() - wanted).square().mean() + functional.cross_entropy(logits.float(), kinds)
            likely = evidence(torch.cat([given, made]), low)
            far = wandered(sample, first, low)
        return {"loss": cost, "apart": apart, "steep": long, "far": far, "keep": keep, "evidence": likely, "guess": guess}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Energy()


def batch() -> dict[str, torch.Tensor]:
    """Bright pictures, dark samples to begin with, noise of each kind."""
    generator = torch.Generator().manual_seed(23)
    shape = (ROWS, 1, SIZE, SIZE)
    levels = torch.randint(150, 256, shape, generator=generator)
    return {
        "levels": levels,
        "begin": torch.randint(0, 120, shape, generator=generator),
        "chance": torch.randint(-3, 4, (TURNS, *shape), generator=generator),
        "noise": torch.randint(-40, 41, shape, generator=generator) / 16,
        "index": torch.arange(ROWS) * 18,
        "kinds": torch.randint(0, CLASSES, (ROWS,), generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
