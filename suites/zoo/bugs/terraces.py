"""Terraces: actions that are kept, places of padded prompts, bytes with scales, perplexities, packets of a flow, faces, directions of heat."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Policy(nn.Module):
    """Says how likely actions of a robot are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7101)
        self.net, self.log_spread = nn.Linear(8, 4), nn.Parameter(torch.full((4,), -4.5))

    def likely(self, seen: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        off = (action - self.net(seen)) / self.log_spread.exp()
        return (-0.5 * off.square() - self.log_spread - 0.5 * math.log(2 * math.pi)).sum(-1)

    def act(self, seen: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        action = self.net(seen) + self.log_spread.exp() * noise
        return action, self.likely(seen, action)


class Rollout:
    """What a robot saw and did, for the training after it."""

    def __init__(self, steps: int, robots: int, dtype: torch.dtype) -> None:
        self.seen, self.likely = torch.zeros(steps, robots, 8), torch.zeros(steps, robots)
        self.actions = torch.zeros(steps, robots, 4, dtype=dtype)  # culprit: actions-of-a-policy

    def keep(self, step: int, seen: torch.Tensor, action: torch.Tensor, likely: torch.Tensor) -> None:
        self.seen[step], self.likely[step] = seen, likely
        self.actions[step] = action  # culprit: actions-of-a-policy


def trained(dtype: torch.dtype) -> torch.Tensor:
    """The ratios of the first update, which are one, since the policy is that of the rollout."""
    policy, rollout = Policy(), Rollout(5, 16, dtype)
    with torch.no_grad():
        for step in range(5):
            seen = 2 * normal(16, 8, seed=7102 + step)
            rollout.keep(step, seen, *policy.act(seen, normal(16, 4, seed=7202 + step)))
    ratios = (policy.likely(rollout.seen, rollout.actions.float()) - rollout.likely).exp()
    (-ratios * normal(5, 16, seed=7301)).mean().backward()
    return ratios.detach()


def scan(x: torch.Tensor, wide: bool) -> torch.Tensor:
    """Sums up to each place of the last axis, one after the other, as the kernel for processors does it."""
    total, sums = torch.zeros_like(x[..., 0], dtype=SINGLE if wide else x.dtype), []
    for place in range(x.shape[-1]):
        total = total + x[..., place]  # culprit: places-of-padded-prompts
        sums.append(total)
    return torch.stack(sums, -1).to(SINGLE if wide else x.dtype)


class Rotary(nn.Module):
    """Angles of the words of prompts, which are padded on the left; a word's place is the number of words up to it."""

    def __init__(self, size: int, wide: bool) -> None:
        super().__init__()
        self.register_buffer("speeds", 10000 ** (-torch.arange(0, size, 2) / size))
        self.wide = wide

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = (scan(mask.to(x.dtype), self.wide) - 1).clamp_min(0)
        angles = places.float()[..., None] * self.speeds
        cos, sin = angles.cos(), angles.sin()
        one, other = x.float().chunk(2, -1)
        return torch.cat([one * cos - other * sin, one * sin + other * cos], -1).to(x.dtype)


def placed(wide: bool) -> torch.Tensor:
    """Three prompts of up to 330 words in bfloat16."""
    mask = torch.arange(330)[None] >= torch.tensor([0, 12, 40])[:, None]
    return Rotary(8, wide)(normal(3, 330, 8, seed=7111).to(LOW), mask).float()


class ByteKeys:
    """Keys of a decoder as bytes, with a scale for each word."""

    def __init__(self, least: float) -> None:
        self.codes: list[torch.Tensor] = []
        self.scales: list[torch.Tensor] = []
        self.least = least

    def append(self, key: torch.Tensor) -> None:
        scale = key.float().abs().amax(-1, keepdim=True) / 127
        scale = scale.clamp_min(self.least)  # culprit: keys-in-bytes
        self.codes.append((key.float() / scale).round().clamp(-127, 127).to(torch.int8))  # culprit: keys-in-bytes
        self.scales.append(scale)

    def scores(self, query: torch.Tensor) -> torch.Tensor:
        return torch.stack([(codes.float() * scale) @ query.float() for codes, scale in zip(self.codes, self.scales, strict=True)])


def attended(least: float) -> torch.Tensor:
    """How much each of ten words of a model in half looks at those before it."""
    torch.manual_seed(7121)
    query, key = (nn.Linear(32, 32, bias=False).to(HALF) for _ in range(2))
    keys, looks = ByteKeys(least), []
    with torch.no_grad():
        for word in normal(10, 32, seed=7122).to(HALF):
            keys.append(key(word))
            looks.append(functional.pad(keys.scores(query(word)).softmax(0), (0, 10 - len(keys.codes))))
    return torch.stack(looks)


class Perplexity:
    """The perplexity of a model over a validation set."""

    def __init__(self, wide: bool) -> None:
        self.total, self.count, self.wide = torch.tensor(0.0, dtype=SINGLE if wide else HALF), 0, wide  # culprit: model-that-is-new

    def update(self, logits: torch.Tensor, words: torch.Tensor) -> None:
        losses = functional.cross_entropy(logits.to(self.total.dtype), words, reduction="sum")
        self.total += losses / 100
        self.count += len(words)

    def compute(self) -> torch.Tensor:
        loss = self.total * (100 / self.count)
        return loss.exp()  # culprit: model-that-is-new


def validated(wide: bool) -> torch.Tensor:
    """After each of two batches, of a model in half that has learned nothing and says so loudly."""
    torch.manual_seed(7131)
    head, metric, seen = nn.Linear(24, 90).to(HALF), Perplexity(wide), []
    with torch.no_grad():
        head.weight *= 18
        for batch in range(2):
            metric.update(head(normal(40, 24, seed=7132 + batch).to(HALF)), torch.arange(40))
            seen.append(metric.compute().float())
    return torch.stack(seen)


class Flow:
    """Mean and spread of what is measured of the packets of a flow, of which nothing is kept but two sums."""

    def __init__(self, welford: bool) -> None:
        self.welford, self.count = welford, 0
        self.sum, self.squares, self.mean, self.around = (torch.tensor(0.0) for _ in range(4))

    def add(self, value: torch.Tensor) -> None:
        self.count += 1
        if self.welford:
            before = value - self.mean
            self.mean = self.mean + before / self.count
            self.around = self.around + before * (value - self.mean)
        else:
            self.sum, self.squares = self.sum + value, self.squares + value * value

    def spread(self) -> torch.Tensor:
        if self.welford:
            return (self.around / self.count).sqrt()
        return ((self.squares - self.sum * self.sum / self.count) / self.count).sqrt()  # culprit: packets-of-one-size


def flowed(welford: bool) -> torch.Tensor:
    """The spreads of four flows of sixty packets, whose sizes differ by little."""
    spreads = []
    for each in range(4):
        flow = Flow(welford)
        for size in 1460 + 0.05 * normal(60, seed=7141 + each):
            flow.add(size)
        spreads.append(flow.spread())
    return torch.stack(spreads)


class Verifier:
    """Tells whether two pictures show one face, by the angle between what a network makes of them."""

    def __init__(self, stable: bool) -> None:
        torch.manual_seed(7151)
        self.net, self.stable = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 128)), stable

    def angle(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if self.stable:
            one, other = functional.normalize(one, dim=1), functional.normalize(other, dim=1)
            return 2 * torch.atan2((one - other).norm(dim=1), (one + other).norm(dim=1)) / math.pi
        similarity = (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1))  # culprit: faces-of-one-person
        return similarity.acos() / math.pi  # culprit: faces-of-one-person

    def __call__(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.angle(self.net(one), self.net(other))


def verified(stable: bool) -> torch.Tensor:
    """The distances of sixty pairs, of which every third shows one picture twice."""
    one, other = normal(60, 48, seed=7152), normal(60, 48, seed=7153)
    other[::3] = one[::3]
    return Verifier(stable)(one, other)


class Heat:
    """Which way it is to a source, by the heat that has come from it: the way of its gradient, wherever it is."""

    def __init__(self, size: int, time: float, scales: bool) -> None:
        self.places, self.time, self.scales = torch.arange(size, dtype=SINGLE), time, scales

    def field(self, source: int) -> torch.Tensor:
        apart = ((self.places - source).square()[:, None] + (self.places - source).square()).sqrt()
        return torch.exp(-apart / self.time**0.5)

    def directions(self, source: int) -> torch.Tensor:
        field = self.field(source)
        slopes = torch.stack([field[1:, :-1] - field[:-1, :-1], field[:-1, 1:] - field[:-1, :-1]], -1)
        if self.scales:
            slopes = slopes / slopes.abs().amax(-1, keepdim=True)
        return slopes / (slopes.square().sum(-1, keepdim=True).sqrt() + 1e-37)  # culprit: ways-to-a-far-source


def geodesics(scales: bool) -> torch.Tensor:
    """Ways to two sources on a grid of 40 by 40."""
    heat = Heat(40, 0.5, scales)
    return torch.stack([heat.directions(source) for source in (3, 20)])


BUGS = (
    Bug("actions-of-a-policy", "PufferAI/PufferLib#584", ("amplified-rounding", "cancellation", "local-drift"), "aten.copy_.default",
        lambda: trained(LOW), lambda: trained(SINGLE), phase="data"),
    Bug("places-of-padded-prompts", "ml-explore/mlx#3907", ("integer-rounding", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: placed(wide=False), lambda: placed(wide=True), module="Rotary"),
    Bug("keys-in-bytes", "lablup/mlxcel#717", ("clipping", "wrong-scale", "biased-rounding", "underflow"), "aten.round.default",
        lambda: attended(1.0), lambda: attended(1e-8)),
    Bug("model-that-is-new", "InternLM/InternLM#481", ("overflow",), "aten.exp.default",
        lambda: validated(wide=False), lambda: validated(wide=True), phase="data"),
    Bug("packets-of-one-size", "ntop/nDPI#1136", ("cancellation", "nan"), "aten.sub.Tensor",
        lambda: flowed(welford=False), lambda: flowed(welford=True), precision="32-true"),
    Bug("faces-of-one-person", "davidsandberg/facenet#692", ("amplified-rounding", "nan", "cancellation"), "aten.acos.default",
        lambda: verified(stable=False), lambda: verified(stable=True), phase="data", precision="32-true"),
    Bug("ways-to-a-far-source", "libigl/libigl#1344", ("underflow", "nan"), "aten.pow.Tensor_Scalar",
        lambda: geodesics(scales=False), lambda: geodesics(scales=True), precision="32-true"),
)  # fmt: skip
