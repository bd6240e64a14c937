"""Beacons: angles and ways between directions, noise and ages and waves: float32 near its ends, and a day's light in half."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
EXACT = "32-true"


def loudness(noise: torch.Tensor, rooted: bool) -> torch.Tensor:
    """The power of a noise in each window, as the masking threshold of an attack reads it."""
    window = torch.hann_window(64)
    spectrum = torch.stft(noise, 64, 16, window=window, return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()  # culprit: noise-that-nobody-hears
    if rooted:
        power = torch.sqrt(power).square()  # culprit: noise-that-nobody-hears
    return power * (8 / 3) / 64**2


def unheard(rooted: bool) -> torch.Tensor:
    """The gradient that a noise gets which is still nearly nothing at first. Not a number."""
    noise = (1e-25 * normal(512, seed=3301)).requires_grad_()
    torch.relu(loudness(noise, rooted) - 1e-3 * uniform(33, 33, seed=3302) + 1e-2).mean().backward()
    return noise.grad


def angular(first: torch.Tensor, second: torch.Tensor, bounded: bool) -> torch.Tensor:
    """How alike sentences are by the angle between their places."""
    cosine = torch.nn.functional.cosine_similarity(first, second, dim=-1)
    if bounded:
        cosine = cosine.clamp(-1.0, 1.0)
    return 1 - torch.acos(cosine) / torch.pi  # culprit: sentences-that-are-one


def alike(bounded: bool) -> torch.Tensor:
    """How alike attacked sentences are to what they were; the attack left most as they were."""
    places = normal(64, 96, seed=3311)
    attacked = places.clone()
    attacked[::4] += 0.4 * normal(16, 96, seed=3312)
    return angular(places * 0.7, attacked * 1.9, bounded)


def between(first: torch.Tensor, second: torch.Tensor, share: float, straight: bool) -> torch.Tensor:
    """A direction that lies between two, at the same speed all the way."""
    angle = torch.acos((first * second).sum(-1, keepdim=True).clamp(-1, 1))  # culprit: way-between-two-directions
    sine = torch.sin(angle)
    way = torch.sin((1 - share) * angle) / sine * first + torch.sin(share * angle) / sine * second
    if straight:
        return torch.where(sine < 1e-3, first + share * (second - first), way)
    return way


def ways(straight: bool) -> torch.Tensor:
    """By how much a direction turns on a third of the way to another that is next to it."""
    first = torch.nn.functional.normalize(normal(40, 3, seed=3321).double(), dim=-1)
    second = torch.nn.functional.normalize(first + 3e-5 * normal(40, 3, seed=3322).double(), dim=-1)
    first, second = first.float(), second.float()
    return (between(first, second, 1 / 3, straight) - first) / 3e-5


def ages(kind: torch.dtype) -> torch.Tensor:
    """How old the messages of a robot's sensors are, in seconds, whose times are sent with them."""
    now = 1_511_049_600.25
    sent = (now - 5 * uniform(40, seed=3331).double()).to(kind)  # culprit: ages-of-messages
    return (torch.tensor(now, dtype=kind) - sent).float()  # culprit: ages-of-messages


class Wave:
    """A filter on a buoy that follows a wave's height, speed and bias from its acceleration."""

    def __init__(self, joseph: bool) -> None:
        self.joseph = joseph
        self.place, self.spread = torch.zeros(3), torch.diag(torch.tensor([1e6, 1e6, 1.0]))

    def follow(self, push: torch.Tensor, seen: torch.Tensor, step: float = 0.1) -> None:
        turn = torch.tensor([[1.0, step, -(step**2) / 2], [0.0, 1.0, -step], [0.0, 0.0, 1.0]])
        self.place = turn @ self.place + torch.stack([push * step**2 / 2, push * step, push * 0])
        self.spread = turn @ self.spread @ turn.T + 1e-6 * torch.eye(3)
        look, noise = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1e-3]])
        gain = self.spread @ look.T @ torch.linalg.inv(look @ self.spread @ look.T + noise)
        self.place = self.place + (gain @ (seen - look @ self.place)[:, None]).squeeze(-1)
        rest = torch.eye(3) - gain @ look
        if self.joseph:
            self.spread = rest @ self.spread @ rest.T + gain @ noise @ gain.T
        else:
            self.spread = rest @ self.spread  # culprit: waves-under-a-filter


def waves(joseph: bool) -> torch.Tensor:
    """How sure a filter is of a wave's height after its first sights. Surer than it may be."""
    buoy, sure = Wave(joseph), []
    for turn in range(3):
        buoy.follow(0.1 * normal(1, seed=3341 + turn)[0], normal(1, seed=3351 + turn))
        sure.append(buoy.spread.diagonal()[0])
    return torch.stack(sure)


def light(kind: torch.dtype) -> torch.Tensor:
    """The light that fell on a country since the morning, in joules, as a forecast's data set keeps it."""
    hours = torch.arange(1, 25)[:, None, None]
    fallen = 40_000 * hours * (1 + 0.3 * uniform(24, 8, 8, seed=3361))
    kept = fallen.to(kind)  # culprit: light-of-a-day
    return ((kept.float() - 5e5) / 3e5).mean((1, 2))


BUGS = (
    Bug("noise-that-nobody-hears", "Trusted-AI/adversarial-robustness-toolbox#1658", ("underflow", "nan"), "aten.pow.Tensor_Scalar",
        lambda: unheard(rooted=True), lambda: unheard(rooted=False), precision=EXACT),
    Bug("sentences-that-are-one", "QData/TextAttack#804", ("amplified-rounding", "nan"), "aten.acos.default",
        lambda: alike(bounded=False), lambda: alike(bounded=True), precision=EXACT),
    Bug("way-between-two-directions", "toji/gl-matrix#500", ("amplified-rounding", "nan", "cancellation"), "aten.sum.dim_IntList",
        lambda: ways(straight=False), lambda: ways(straight=True), precision=EXACT),
    Bug("ages-of-messages", "pioneers/PieCentral#464", ("cancellation", "amplified-rounding", "integer-rounding", "local-drift"),
        "aten._to_copy.default or aten.sub.Tensor", lambda: ages(SINGLE), lambda: ages(DOUBLE), precision=EXACT),
    Bug("waves-under-a-filter", "bareboat-necessities/bbn-wave-period-esp32#54", ("cancellation", "amplified-rounding"), "aten.mm.default",
        lambda: waves(joseph=False), lambda: waves(joseph=True), precision=EXACT,
        expected_miss="one of nine numbers of a matrix loses its digits, which is measured as a whole; it is picked out after a product"),
    Bug("light-of-a-day", "openclimatefix-archives/nowcasting_dataset#370", ("overflow",), "aten._to_copy.default",
        lambda: light(HALF), lambda: light(SINGLE)),
)  # fmt: skip
