"""Recorders: blocks of a long file, waves of a table, scales of quantised layers, what hosts of a cluster tell of themselves and sum."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from bugs.bug import Bug, normal, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Reader:
    """Reads an hour of sound in blocks that overlap, from places that are told in seconds."""

    def __init__(self, rate: int, dtype: torch.dtype) -> None:
        self.rate, self.dtype = rate, dtype

    def sound(self, samples: torch.Tensor) -> torch.Tensor:
        """The file, as far as it is read: three tones."""
        turns = samples.double()[..., None] * torch.tensor([440.0, 1250.0, 3100.0]).double() / self.rate
        return torch.sin(2 * math.pi * turns).sum(-1).float()

    def block(self, start: torch.Tensor, length: int) -> torch.Tensor:
        first = (start * self.rate).round().long()  # culprit: blocks-of-a-long-file
        return self.sound(first + torch.arange(length))

    def read(self, begin: float, blocks: int, length: int) -> torch.Tensor:
        step = length // 2 / self.rate
        window = torch.hann_window(length)
        joined = torch.zeros((blocks + 1) * (length // 2))
        for turn in range(blocks):
            start = torch.tensor(begin + turn * step, dtype=self.dtype)  # culprit: blocks-of-a-long-file
            joined[turn * (length // 2) :][:length] += window * self.block(start, length)
        return joined[length // 2 : -(length // 2)]


def long_file(dtype: torch.dtype) -> torch.Tensor:
    """Eight blocks after 40 minutes. They overlap by some samples more or less. Off by 120 %."""
    return Reader(48_000, dtype).read(2400.0, 8, 256)


class Oscillator:
    """Plays a table of one wave as fast as it is told, block by block."""

    def __init__(self, size: int, rate: int, folded: bool, start: torch.Tensor) -> None:
        self.table = torch.sin(2 * math.pi * torch.arange(size) / size) + 0.3 * torch.sin(6 * math.pi * torch.arange(size) / size)
        self.size, self.rate, self.folded, self.place = size, rate, folded, start

    def play(self, frequency: torch.Tensor) -> torch.Tensor:
        steps = frequency * (self.size / self.rate)
        places = self.place + steps.cumsum(0)  # culprit: wave-of-a-table
        self.place = places[-1]  # culprit: wave-of-a-table
        if self.folded:
            self.place = self.place.remainder(self.size)
        return self.table[places.long() % self.size]


def wave(folded: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Four blocks of a tone with a vibrato, after ten minutes, through an envelope. Off by 18 %."""
    start = torch.tensor(0.0 if folded else 4096.0 * 240_000, dtype=dtype)
    oscillator = Oscillator(4096, 44_100, folded, start)
    played = []
    for block in range(4):
        time = (torch.arange(256, dtype=dtype) + 256 * block) / 44_100
        played.append(oscillator.play(400 + 8 * torch.sin(2 * math.pi * 6 * time)) * torch.exp(-3 * time))
    return wider(torch.cat(played))


class Packed:
    """Weights in four bits, a scale for each block of 32, as a file keeps them."""

    def __init__(self, weight: torch.Tensor, kept: torch.dtype, least: float) -> None:
        blocks = weight.reshape(len(weight), -1, 32)
        scale = (blocks.abs().amax(-1, keepdim=True) / 7).clamp_min(least)
        self.scale = scale.to(kept)  # culprit: scales-of-a-pruned-layer
        self.codes = (blocks / wider(self.scale)).round().clamp(-8, 7)  # culprit: scales-of-a-pruned-layer

    def weight(self) -> torch.Tensor:
        """What the runtime multiplies by. It refuses a scale that it cannot divide by."""
        if bool((wider(self.scale) < 2.0**-24).any()):
            raise ValueError(f"unsupported scale: {float(self.scale.min()):g}")
        return (self.codes * wider(self.scale)).flatten(1)


def pruned_layer(kept: torch.dtype, least: float) -> torch.Tensor:
    """What a network of two layers gives once it is packed. A tenth of its rows are nearly zero."""
    torch.manual_seed(20)
    first, last = nn.Linear(64, 96), nn.Linear(96, 8)
    with torch.no_grad():
        first.weight[::10] *= 1e-6
        for layer in (first, last):
            layer.weight.copy_(Packed(layer.weight, kept, least).weight())
        return last(torch.relu(first(normal(30, 64))))


class Blockwise:
    """A checkpoint in eight bits, whose scales are powers of two."""

    def __init__(self, rounded_first: bool, exact: bool = False) -> None:
        self.rounded_first, self.exact = rounded_first, exact

    def kept(self, scale: torch.Tensor) -> torch.Tensor:
        return scale if self.exact else scale.to(torch.float8_e8m0fnu)  # culprit: powers-of-two-as-scales

    def pack(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = weight.reshape(-1, 16)
        scale = blocks.abs().amax(1, keepdim=True) / 448
        kept = self.kept(torch.exp2(torch.ceil(torch.log2(scale))) if self.rounded_first else scale)
        if self.rounded_first:
            scale = kept.float()
        return (blocks / scale).to(torch.float8_e4m3fn), kept

    def load(self, packed: tuple[torch.Tensor, torch.Tensor], shape: torch.Size) -> torch.Tensor:
        codes, scale = packed
        return (codes.float() * scale.float()).reshape(shape)  # culprit: powers-of-two-as-scales


def powers_of_two(rounded_first: bool, exact: bool = False) -> torch.Tensor:
    """What a network gives after its weights were packed and loaded. Each block is larger or smaller than it was. Off by 18 %."""
    torch.manual_seed(21)
    net, store = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 6)), Blockwise(rounded_first, exact)
    with torch.no_grad():
        for layer in (net[0], net[2]):
            layer.weight.copy_(store.load(store.pack(layer.weight), layer.weight.shape))
        return net(normal(40, 32))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def spread_of(told: torch.Tensor, centred: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of each quantity over the devices of all hosts, and how much it varies."""
    sums = torch.cat([told.sum(0), torch.full((1,), float(len(told)), dtype=told.dtype)])
    dist.all_reduce(sums)
    mean = sums[:-1] / sums[-1]
    squares = (told - mean).square().sum(0) if centred else told.square().sum(0)
    dist.all_reduce(squares)
    if centred:
        return mean, (squares / sums[-1]).sqrt()
    return mean, (squares / sums[-1] - mean.square()).clamp_min(0).sqrt()  # culprit: spread-among-hosts


def hosts(centred: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How much eight devices vary in three turns: their losses, tokens a second and operations. Garbage."""
    seen = []
    with alone():
        for turn in range(3):
            middle = torch.tensor([2.4, 124_000.0, 38.3]) + turn
            told = middle + torch.tensor([0.2, 9.0, 0.003]) * normal(8, 3, seed=turn)
            seen.append(spread_of(told.to(dtype), centred)[1])
    return wider(torch.stack(seen)[:, 1:])


class Averaged:
    """Sums gradients of many small batches in buckets of half, and then over all processes."""

    def __init__(self, model: nn.Module, batches: int, first: bool, dtype: torch.dtype) -> None:
        self.model, self.batches, self.first = model, batches, first
        self.bucket = torch.zeros(sum(each.numel() for each in model.parameters()), dtype=dtype)

    def add(self, loss: torch.Tensor) -> None:
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        flat = torch.cat([each.flatten() for each in gradients])
        flat = flat / self.batches if self.first else flat
        self.bucket += flat.to(self.bucket.dtype)  # culprit: gradients-of-many-workers

    def mean(self) -> torch.Tensor:
        dist.all_reduce(self.bucket)
        return wider(self.bucket) / dist.get_world_size() / (1 if self.first else self.batches)


def workers(first: bool, dtype: torch.dtype = HALF) -> torch.Tensor:
    """The weights of a network after a turn of 64 batches, whose loss is scaled by 4096. Inf."""
    torch.manual_seed(22)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    with alone():
        averaged = Averaged(model, 64, first, dtype)
        for batch in range(64):
            told = normal(16, 12, seed=batch)
            averaged.add(4096 * (model(told) - told.sum(1, keepdim=True)).square().mean())
        flat = torch.cat([each.detach().flatten() for each in model.parameters()])
        return flat - 0.01 * averaged.mean() / 4096


BUGS = (
    Bug("blocks-of-a-long-file", "mkxp-z/mkxp-z#130", ("integer-rounding", "amplified-rounding", "cancellation"), "aten.mul.Tensor",
        lambda: long_file(SINGLE), lambda: long_file(DOUBLE), precision="32-true"),
    Bug("wave-of-a-table", "ttm/music#102", ("integer-rounding", "absorption", "amplified-rounding", "accumulated-drift"), "aten.add.Tensor",
        lambda: wave(False), lambda: wave(True), precision="32-true"),
    Bug("scales-of-a-pruned-layer", "google-ai-edge/ai-edge-quantizer#678", ("underflow", "overflow", "nan"), "aten._to_copy.default",
        lambda: pruned_layer(HALF, 0.0), lambda: pruned_layer(HALF, 2.0**-14), raises=ValueError),
    Bug("powers-of-two-as-scales", "huggingface/transformers#46763", ("wrong-scale", "amplified-rounding", "local-drift"), "aten.mul.Tensor",
        lambda: powers_of_two(False), lambda: powers_of_two(True)),
    Bug("spread-among-hosts", "saforem2/ezpz#137", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: hosts(False), lambda: hosts(True), precision="32-true"),
    Bug("gradients-of-many-workers", "horovod/horovod#1699", ("overflow",), "aten.add_.Tensor", lambda: workers(False), lambda: workers(True)),
)  # fmt: skip
