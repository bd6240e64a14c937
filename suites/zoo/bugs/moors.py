"""Moors: searches for scales, places while an engine warms up, merged adapters, sentences of two languages, analog tiles, noise of detectors."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, wider

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class ScaleSearch:
    """Tries scales for the input channels of a layer, and keeps those with which four bits change its output least."""

    def __init__(self, wide: bool, ratios: int = 5, group: int = 16) -> None:
        self.wide, self.ratios, self.group = wide, ratios, group

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        groups = weight.reshape(-1, self.group)
        step = groups.abs().amax(1, keepdim=True).clamp(min=1e-5) / 7
        return ((groups / step).round().clamp(-8, 7) * step).reshape(weight.shape)

    def __call__(self, layer: nn.Linear, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wanted, strength = layer(x), x.abs().view(-1, x.shape[-1]).mean(0)
        best, least, errors = torch.ones_like(strength), math.inf, []
        for k in range(self.ratios):
            scales = strength.pow(k / (self.ratios - 1)).clamp(min=1e-4)
            if self.wide:
                scales = scales.float()
            scales = (scales / (scales.max() * scales.min()).sqrt()).to(x.dtype)  # culprit: scales-of-a-search
            weight = self.rounded(layer.weight * scales) / scales
            error = (functional.linear(x, weight).float() - wanted.float()).square().mean()
            errors.append(error)
            if float(error) < least:
                best, least = scales, float(error)
        return best, torch.stack(errors)


def searched(wide: bool) -> torch.Tensor:
    """How far the output moves at each ratio, for two layers in half, whose inputs are less than a ten thousandth, as those of a quiet layer."""
    torch.manual_seed(4401)
    found = []
    for index in range(2):
        layer = nn.Linear(64, 48, bias=False)
        nn.init.normal_(layer.weight)
        x = 1e-4 * torch.linspace(0.3, 2, 64) * normal(4, 24, 64, seed=4402 + index)
        with torch.no_grad():
            _, errors = ScaleSearch(wide)(layer.to(HALF), x.to(HALF))
        found.append(errors * 1e10)
    return torch.stack(found)


class Chat:
    """An engine that keeps keys and values, and counts the place of the next word in the dtype with which it was warmed up."""

    def __init__(self, wide: bool, width: int = 32) -> None:
        self.rates = 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.kind = SINGLE if wide else HALF
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.place = torch.zeros(1, dtype=self.kind)

    def turned(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        angles = places.float()[:, None] * self.rates
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1).to(x.dtype)

    def fill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        places = torch.arange(len(keys), dtype=self.kind)
        self.keys, self.values = list(self.turned(keys, places)), list(values)
        self.place = places[-1:]

    def step(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self.place = self.place + 1  # culprit: places-while-warming
        self.keys.append(self.turned(key, self.place)[0])
        self.values.append(value[0])
        scores = torch.stack(self.keys).float() @ self.turned(query, self.place)[0].float() / math.sqrt(key.shape[-1])
        return (scores.softmax(0) @ torch.stack(self.values).float()).to(value.dtype)


def chatted(wide: bool) -> torch.Tensor:
    """Twelve words in half after a text of 2044."""
    keys, values = (normal(2056, 32, seed=4411 + each).to(HALF) for each in range(2))
    queries = (3 * normal(12, 32, seed=4413)).to(HALF)
    chat = Chat(wide)
    chat.fill(keys[:2044], values[:2044])
    out = [chat.step(queries[t : t + 1], keys[2044 + t : 2045 + t], values[2044 + t : 2045 + t]) for t in range(12)]
    return torch.stack(out).float()


class LoraLinear(nn.Module):
    """A frozen layer and two thin matrices, which a fine-tuning has learned."""

    def __init__(self, seed: int, width: int = 32, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False)
        self.down, self.up = (nn.Parameter(normal(*shape, seed=seed + k)) for k, shape in enumerate([(rank, width), (width, rank)]))
        self.scaling = 2.0 / 16 * 4e-4

    def delta(self) -> torch.Tensor:
        return self.scaling * (self.up @ self.down)

    def merge(self, wide: bool) -> torch.Tensor:
        weight = self.base.weight.data
        if wide:
            self.base.weight.data = weight.float() + self.delta()
        else:
            weight += self.delta().to(weight.dtype)  # culprit: adapters-that-were-merged
        return self.base.weight.data


def merged(wide: bool) -> torch.Tensor:
    """What is left of three adapters in a model that was saved with them: what its weights are above those of the base."""
    torch.manual_seed(4421)
    left = []
    for layer in range(3):
        module = LoraLinear(4422 + 2 * layer)
        module.base.to(LOW)
        before = module.base.weight.data.float()
        with torch.no_grad():
            left.append(module.merge(wide).float() - before)
    return torch.stack(left)


class Miner:
    """Finds sentences that mean the same in two languages, by cosines beside those of their nearest neighbours."""

    def __init__(self, wide: bool, neighbours: int = 3) -> None:
        self.wide, self.neighbours = wide, neighbours

    def unit(self, x: torch.Tensor) -> torch.Tensor:
        long = wider(x) if self.wide else x
        return (long / long.square().sum(1, keepdim=True).sqrt()).to(x.dtype)  # culprit: sentences-of-two-languages

    def margins(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        cosines = (self.unit(source) @ self.unit(target).T).float()
        forth = cosines.topk(self.neighbours, dim=1).values.mean(1)
        back = cosines.topk(self.neighbours, dim=0).values.mean(0)
        return cosines / ((forth[:, None] + back) / 2)


def mined(wide: bool) -> torch.Tensor:
    """Margins of ten sentences in half of 1024 numbers, some of which have long vectors."""
    meaning = normal(10, 1024, seed=4431)
    lengths = torch.tensor([3.0, 2.0, 12.0, 4.0, 1.0, 9.0, 3.0, 2.0, 10.0, 5.0])[:, None]
    source = (lengths * (meaning + 0.4 * normal(10, 1024, seed=4432))).to(HALF)
    target = (3 * (meaning + 0.4 * normal(10, 1024, seed=4433))).to(HALF)
    return Miner(wide).margins(source, target)


class Limited(torch.autograd.Function):
    """Inputs of an analog tile, cut off at a range that is learned."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, limit: torch.Tensor, decay: float, wide: bool) -> torch.Tensor:  # type: ignore[no-untyped-def, override]
        ctx.save_for_backward(x, limit)
        ctx.decay, ctx.wide = decay, wide
        edge = limit.to(x.dtype)
        return x.clamp(-edge, edge)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[no-untyped-def, override]
        x, limit = ctx.saved_tensors
        above, below = x >= limit, x <= -limit
        slope = grad[above].sum() - grad[below].sum()
        inside = 1 - (above | below).to(x.dtype).mean()
        if ctx.wide:
            slope, inside, limit = slope.float(), inside.float(), limit.float()
        slope = slope * limit  # culprit: ranges-of-analog-tiles
        slope = slope + ctx.decay * inside * limit
        return grad * ~(above | below), slope, None, None


def adapted(wide: bool) -> torch.Tensor:
    """The range of a tile after each of four steps; its layer is in half, and its inputs are a few hundred."""
    torch.manual_seed(4441)
    layer = nn.Linear(32, 8).to(HALF)
    limit = torch.tensor(400.0, dtype=SINGLE if wide else HALF, requires_grad=True)
    ranges = []
    for step in range(4):
        x = (250 * normal(96, 32, seed=4442 + step)).to(HALF)
        out = layer(Limited.apply(x, limit, 0.01, wide))
        (0.01 * out.float().square().sum()).backward()
        with torch.no_grad():
            limit -= 1e-5 * limit.grad
            limit.grad = None
        layer.zero_grad()
        ranges.append(limit.detach().float().clone())
    return torch.stack(ranges)


class Cleaner(nn.Module):
    """Guesses what shakes a detector from the channels that watch its surroundings."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(4451)
        self.mix, self.out = nn.Linear(channels, 16), nn.Linear(16, 1)

    def forward(self, witness: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.mix(witness)))[..., 0]


def cleaned(scaled: bool) -> torch.Tensor:
    """How much four steps in half change the layers; noise is less than a hundredth of what is measured, and each batch has 2048 samples."""
    model = Cleaner(6)
    before = [each.detach().clone() for each in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=800.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=scaled)
    for step in range(4):
        witness = normal(2, 1024, 6, seed=4452 + step)
        noise = 0.003 * torch.tanh(witness[..., 0] + witness[..., 1])
        with torch.autocast("cpu", dtype=HALF):
            guess = 0.003 * model(witness)  # culprit: noise-of-a-detector
            loss = functional.mse_loss(guess.float(), noise)  # culprit: noise-of-a-detector
        scaler.scale(loss).backward()  # culprit: noise-of-a-detector
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return torch.cat([(after.detach() - each).flatten() for after, each in zip(model.parameters(), before, strict=True)])


BUGS = (
    Bug("scales-of-a-search", "mit-han-lab/llm-awq#96", ("underflow", "nan", "overflow"), "aten.mul.Tensor",
        lambda: searched(wide=False), lambda: searched(wide=True), phase="data"),
    Bug("places-while-warming", "ztxz16/fastllm#692", ("amplified-rounding", "absorption", "integer-rounding"), "aten.add.Tensor",
        lambda: chatted(wide=False), lambda: chatted(wide=True)),
    Bug("adapters-that-were-merged", "OpenBMB/MiniCPM-V#502", ("absorption", "lost-update"), "aten.add_.Tensor",
        lambda: merged(wide=False), lambda: merged(wide=True)),
    Bug("sentences-of-two-languages", "raymondhs/fairseq-laser#4", ("overflow",), "aten.sum.dim_IntList",
        lambda: mined(wide=False), lambda: mined(wide=True)),
    Bug("ranges-of-analog-tiles", "IBM/aihwkit-lightning#14", ("overflow",), "aten.mul.Tensor",
        lambda: adapted(wide=False), lambda: adapted(wide=True), phase="backward"),
    Bug("noise-of-a-detector", "ML4GW/DeepClean#36", ("gradient-underflow", "underflow"), "aten.mul.Tensor",
        lambda: cleaned(scaled=False), lambda: cleaned(scaled=True), phase="backward"),
)  # fmt: skip
