"""Brooks: schedules of noise in half, times of events, small spreads, transport of mass, eight bits, nodes without neighbours."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
WIDER8 = torch.float8_e5m2


class Denoiser(nn.Module):
    """A model of noise, with the schedule that it was trained for."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        torch.manual_seed(8101)
        self.net = nn.Sequential(nn.Linear(9, 24), nn.SiLU(), nn.Linear(24, 8))
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, steps) ** 2
        self.register_buffer("kept", (1 - betas).cumprod(0))

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        given = torch.cat([x / (sigma**2 + 1).sqrt(), sigma.log().expand(len(x), 1)], 1)
        return self.net(given.to(self.net[0].weight.dtype)).to(x.dtype)


def load(model: Denoiser, spares: bool) -> Denoiser:
    """The model in half; its schedule is taken out before, or is not."""
    kept = model.kept
    model.half()  # culprit: schedule-in-half
    if spares:
        model.kept = kept
    return model


def sampled(spares: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The width of the noise that a sampler ends with, and the picture after its last steps."""
    model = load(Denoiser(1000), spares)
    sigmas = ((1 - model.kept) / model.kept).sqrt().float()[[30, 12, 5, 2, 0]]  # culprit: schedule-in-half
    x = sigmas[0] * normal(4, 8, seed=8102)
    with torch.no_grad():
        for now, after in itertools.pairwise(sigmas):
            x = x + model(x, now) * (after - now)
    return sigmas[-1], x


class Stream:
    """A table of events, each of which has a time in milliseconds and a value."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.times, self.values = dtype, [], []

    def insert(self, times: list[int], values: torch.Tensor) -> None:
        self.times.append(torch.tensor(times, dtype=self.dtype))  # culprit: events-of-a-stream
        self.values.append(values)

    def rates(self) -> torch.Tensor:
        """How much the value changes in a second, between an event and the next."""
        times, values = torch.cat(self.times), torch.cat(self.values)
        apart = ((times[1:] - times[:-1]) / 1000).to(SINGLE).clamp_min(0.02)
        return (values[1:] - values[:-1]) / apart


def streamed(dtype: torch.dtype) -> torch.Tensor:
    """The rates of eighty events that came in four lots, some hundred milliseconds apart."""
    stream, now = Stream(dtype), 1_707_954_127_790
    for lot in range(4):
        gaps = (100 + 400 * uniform(20, seed=8111 + lot)).long().tolist()
        times = []
        for gap in gaps:
            now += gap
            times.append(now)
        stream.insert(times, normal(20, seed=8121 + lot))
    return stream.rates()


class Standardiser:
    """Brings rows of a picture to mean 0 and spread 1."""

    def __init__(self, scales: bool) -> None:
        self.scales = scales

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        around = x - x.mean(-1, keepdim=True)
        if self.scales:
            most = around.abs().amax(-1, keepdim=True)
            return most * (around / most).square().mean(-1, keepdim=True).sqrt()
        return around.square().mean(-1, keepdim=True).sqrt()  # culprit: rows-that-hardly-differ

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) / self.spread(x)


def standardised(scales: bool) -> torch.Tensor:
    """Eight rows of currents of some electrons, in units of ten amperes."""
    return Standardiser(scales)(1e-24 * normal(8, 32, seed=8131))


class Sinkhorn:
    """Moves mass from cells to places at least cost, with a little entropy."""

    def __init__(self, epsilon: float, logs: bool, turns: int = 12) -> None:
        self.epsilon, self.logs, self.turns = epsilon, logs, turns

    def plan(self, costs: torch.Tensor) -> torch.Tensor:
        cells, places = 1 / costs.shape[0], 1 / costs.shape[1]
        if self.logs:
            first, second = torch.zeros(costs.shape[0]), torch.zeros(costs.shape[1])
            for _ in range(self.turns):
                second = self.epsilon * (torch.tensor(places).log() - ((first[:, None] - costs) / self.epsilon).logsumexp(0))
                first = self.epsilon * (torch.tensor(cells).log() - ((second - costs) / self.epsilon).logsumexp(1))
            return ((first[:, None] + second - costs) / self.epsilon).exp()
        kernel = torch.exp(-costs / self.epsilon)  # culprit: cells-in-their-places
        left = torch.full((costs.shape[0],), cells)
        for _ in range(self.turns):
            right = places / (kernel.T @ left)  # culprit: cells-in-their-places
            left = cells / (kernel @ right)  # culprit: cells-in-their-places
        return left[:, None] * kernel * right


def transported(logs: bool) -> torch.Tensor:
    """Where twenty cells belong among fifteen places, at two strengths of the entropy; some places are far from every cell."""
    cells, places = normal(20, 3, seed=8141), normal(15, 3, seed=8142)
    places[:3] += 6
    costs = (cells[:, None] - places).square().sum(-1)
    return torch.stack([Sinkhorn(epsilon, logs).plan(costs) for epsilon in (1.0, 0.2)])


class NormToFloat8(nn.Module):
    """An RMS norm whose result is stored in eight bits, of either kind."""

    def __init__(self, size: int, most: float) -> None:
        super().__init__()
        self.weight, self.most = nn.Parameter(torch.ones(size)), most

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        x = x.float()
        x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight
        return (x / scale).clamp(-self.most, self.most).to(WIDER8)  # culprit: norm-in-the-other-eight-bits


def packed(most: float) -> torch.Tensor:
    """What a layer in bfloat16 makes of ten words that were normed and stored in eight bits, which reach 57344."""
    torch.manual_seed(8151)
    norm, layer, scale = NormToFloat8(32, most), nn.Linear(32, 16, bias=False).to(LOW), 1 / 10_000
    with torch.no_grad():
        return layer((norm(normal(10, 32, seed=8152).to(LOW), scale).float() * scale).to(LOW)).float()


class MaxConv(nn.Module):
    """Gives each node of a graph the greatest of what its neighbours send; a node without neighbours gets nought."""

    def __init__(self, size: int, infinite: bool) -> None:
        super().__init__()
        torch.manual_seed(8161)
        self.send, self.mix, self.none = nn.Linear(size, size), nn.Linear(2 * size, size), -torch.inf if infinite else -1e38

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        sent = self.send(x)[source]
        most = torch.full_like(x, 0).float().fill_(self.none).to(x.dtype)  # culprit: nodes-without-neighbours
        most = most.scatter_reduce(0, target[:, None].expand_as(sent), sent, "amax")
        most = most.masked_fill(most.float() == self.none, 0)  # culprit: nodes-without-neighbours
        return torch.relu(self.mix(torch.cat([x, most], 1)))


def convolved(infinite: bool) -> torch.Tensor:
    """Two layers in half over a graph of thirty nodes, of which five get nothing."""
    source, target = (30 * uniform(90, seed=8162)).long(), (25 * uniform(90, seed=8163)).long()
    x = normal(30, 8, seed=8164).to(HALF)
    with torch.no_grad():
        for layer in [MaxConv(8, infinite).to(HALF) for _ in range(2)]:
            x = layer(x, source, target)
    return x.float()


BUGS = (
    Bug("schedule-in-half", "AUTOMATIC1111/stable-diffusion-webui#13052", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: sampled(spares=False), lambda: sampled(spares=True),
        expected_miss="the schedule as a whole is right to a rounding; of the few steps that are taken from it one alone has lost its digits"),
    Bug("events-of-a-stream", "timeplus-io/proton#564", ("integer-rounding", "amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: streamed(SINGLE), lambda: streamed(DOUBLE), precision="32-true"),
    Bug("rows-that-hardly-differ", "tenstorrent/tt-metal#52615", ("underflow", "nan"), "aten.pow.Tensor_Scalar",
        lambda: standardised(scales=False), lambda: standardised(scales=True), precision="32-true"),
    Bug("cells-in-their-places", "rajewsky-lab/novosparc#50", ("underflow", "nan", "overflow"), "aten.exp.default",
        lambda: transported(logs=False), lambda: transported(logs=True), precision="32-true"),
    Bug("norm-in-the-other-eight-bits", "flashinfer-ai/flashinfer#2612", ("clipping", "wrong-scale"), "aten.clamp.default",
        lambda: packed(448.0), lambda: packed(57344.0),
        expected_miss="the bound of another format is written by the program, so that float32 is cut off at it as well"),
    Bug("nodes-without-neighbours", "pyg-team/pytorch_geometric#646", ("overflow", "nan"), "aten._to_copy.default",
        lambda: convolved(infinite=False), lambda: convolved(infinite=True)),
)  # fmt: skip
