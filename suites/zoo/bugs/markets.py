"""Markets and lattices: heat of a magnet, spreads of a price, odds of a sure thing, slopes by differences, draws from a tree, shares of a flow."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Heat:
    """The heat capacity of a model of spins, of the energies of its samples as they come."""

    def __init__(self, online: bool, dtype: torch.dtype) -> None:
        self.online, self.count = online, 0
        self.mean, self.power = torch.zeros((), dtype=dtype), torch.zeros((), dtype=dtype)

    def note(self, energies: torch.Tensor) -> None:
        for energy in energies:
            self.count += 1
            step = energy - self.mean
            self.mean = self.mean + step / self.count
            if self.online:
                self.power = self.power + step * (energy - self.mean)
            else:
                self.power = self.power + (energy * energy - self.power) / self.count  # culprit: heat-of-a-magnet

    def capacity(self, temperature: float) -> torch.Tensor:
        variance = self.power / self.count if self.online else self.power - self.mean * self.mean  # culprit: heat-of-a-magnet
        return variance / temperature**2


def magnet(online: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Of 60 samples of a lattice whose energy is six thousand, and changes by a quarter. It is garbage."""
    heat = Heat(online, dtype)
    heat.note((-6000 + 0.25 * normal(60)).to(dtype))
    return heat.capacity(1.5)


class Bands:
    """A moving mean of prices and a band about it, both by exponential averages."""

    def __init__(self, weight: float, centred: bool) -> None:
        self.weight, self.centred = weight, centred

    def widths(self, prices: torch.Tensor) -> torch.Tensor:
        mean, second = prices[0], torch.zeros_like(prices[0]) if self.centred else prices[0] * prices[0]
        widths = []
        for price in prices[1:]:
            gap = price - mean
            if self.centred:
                second = (1 - self.weight) * (second + self.weight * gap * gap)
            else:
                second = second + self.weight * (price * price - second)  # culprit: band-about-a-price
            mean = mean + self.weight * gap
            variance = second if self.centred else second - mean * mean  # culprit: band-about-a-price
            widths.append(variance.clamp_min(0).sqrt())
        return torch.stack(widths)


def traded(centred: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Bands about three prices of a coin near 61 000, which move by a few units a tick. Off by 200 %."""
    prices = 61_000 + torch.cumsum(2.5 * normal(32, 3), 0)
    return Bands(0.1, centred).widths(prices.to(dtype))[10:]


class Calibrator:
    """Scales the odds of a classifier, which gives probabilities."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, probability: torch.Tensor) -> torch.Tensor:
        odds = torch.log(probability) - torch.log1p(-probability)
        return torch.sigmoid(odds / self.temperature)


def calibrated(kept: torch.dtype) -> torch.Tensor:
    """How often a sure classifier is wrong, when it is told to be less sure; its probabilities are kept in bfloat16. Off by 6 %."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.4)
    with torch.no_grad():
        probability = torch.sigmoid(4.2 + 0.4 * network(normal(80, 6)).squeeze(-1)).to(kept)  # culprit: odds-of-a-sure-thing
    return 1 - Calibrator(2.0)(wider(probability))


class Simulator(nn.Module):
    """A surrogate of a machine, of which users want slopes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(4, 24), nn.Linear(24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 + self.second(torch.tanh(self.first(x))).squeeze(-1)  # culprit: slopes-of-a-surrogate


def slopes(dtype: torch.dtype, step: float = 0.0625) -> torch.Tensor:
    """Slopes along four settings by differences, from a surrogate in bfloat16. Off by 45 %."""
    machine, x = Simulator().to(dtype), (0.5 * normal(10, 4)).to(LOW).to(dtype)
    out = []
    with torch.no_grad():
        for axis in torch.eye(4).to(dtype):
            ahead, behind = machine(x + step * axis), machine(x - step * axis)  # culprit: slopes-of-a-surrogate
            out.append((ahead - behind) / (2 * step))  # culprit: slopes-of-a-surrogate
    return wider(torch.stack(out, 1))


class Surrogate(nn.Module):
    """A model of flows over a mesh, whose loss is of small errors."""

    def __init__(self, wide_head: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.wide_head = wide_head
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=LOW):
            hidden = torch.relu(self.body(x))
            if not self.wide_head:
                return self.head(hidden)  # culprit: errors-of-a-surrogate
        return self.head(hidden.float())


def losses_of_a_mesh(wide_head: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared errors on a mesh of 50 places, of which the model is right to a thousandth, and their mean. Off by 30 %."""
    model, x = Surrogate(wide_head), normal(50, 6)
    with torch.no_grad():
        target = Surrogate(True)(x) + 2e-3 * normal(50, 2, seed=1)
        error = model(x) - target  # culprit: errors-of-a-surrogate
        squares = error.square()
        share = torch.where(torch.arange(50) < 12, 4.0, 1.0)[:, None]
        return squares, (squares * share).sum() / (2 * share.sum())


def binned(kept: torch.dtype) -> torch.Tensor:
    """Calls to a service in the minutes of ten hours, whose times in hours are kept in half. Off by 33 %."""
    times = (10 * uniform(600)).to(kept)  # culprit: calls-in-a-minute
    minute = (times.float() * 60).floor().long().clamp(0, 599)
    return torch.bincount(minute, minlength=600).float()


def flow_probabilities(wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What a policy of a flow network gives along twelve steps, with a part for exploring, under autocast. Off by 10 %."""
    torch.manual_seed(6)
    policy = nn.Linear(8, 40)
    states, total = normal(12, 8), torch.zeros(())
    with torch.no_grad(), torch.autocast("cpu", dtype=LOW):
        for state in states:
            logits = policy(state)
            logits = logits.float() if wide else logits
            chances = torch.exp(logits) / torch.exp(logits).sum()  # culprit: flow-along-a-path
            chances = 0.95 * chances + 0.05 / 40  # culprit: flow-along-a-path
            total = total.to(chances.dtype) + chances.amax().log()  # culprit: flow-along-a-path
    return wider(total.exp()), wider(total)


BUGS = (
    Bug("heat-of-a-magnet", "drckf/paysage#100", ("cancellation", "amplified-rounding", "absorption"), "aten.sub.Tensor",
        lambda: magnet(False), lambda: magnet(True), precision="32-true",
        wrong_line="a difference of single numbers, which chance makes small in one of sixty turns, comes first; the right line is next"),
    Bug("band-about-a-price", "", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: traded(False), lambda: traded(True), precision="32-true"),
    Bug("odds-of-a-sure-thing", "", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: calibrated(LOW), lambda: calibrated(SINGLE),
        expected_miss="a function rounds what it hands to another one, as the precision does; a logarithm there enlarges it 16 times"),
    Bug("slopes-of-a-surrogate", "", ("amplified-rounding", "cancellation"), "aten.add.Tensor", lambda: slopes(LOW), lambda: slopes(SINGLE)),
    Bug("errors-of-a-surrogate", "wandb/senpai#328", ("amplified-rounding", "cancellation"), "aten.addmm.default",
        lambda: losses_of_a_mesh(False), lambda: losses_of_a_mesh(True),
        expected_miss="a result less its target is told only where no digit is left, since autocast rounds all results, and here a third is off"),
    Bug("calls-in-a-minute", "", ("integer-rounding", "decision-flip", "amplified-rounding"), "aten._to_copy.default",
        lambda: binned(HALF), lambda: binned(SINGLE),
        expected_miss="neighbouring bins: a rounding of each time explains as many calls in the next minute as are found there"),
    Bug("flow-along-a-path", "GFNOrg/torchgfn#390", ("amplified-rounding", "accumulated-drift"), "aten.add.Tensor",
        lambda: flow_probabilities(False), lambda: flow_probabilities(True), phase="data"),
)  # fmt: skip
