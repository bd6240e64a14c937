"""A small language model that learns with quantised weights, after GPTQ, LQER, QuaRot and MX: scales, codebooks, packed words, costs."""

import math

import torch
import torch.nn.functional as F
from torch import nn

WORDS, DIM, WIDE, ROWS, TIME, BITS, GROUP, STEPS = 64, 32, 128, 8, 12, 6, 16, 1
TOP = 2 ** (BITS - 1) - 1


def scales(weight):
    """One for each group of columns."""
    return weight.unflatten(-1, (-1, GROUP)).abs().amax(-1, keepdim=True) / TOP


def levels(weight, scale):
    """The whole numbers that stand for the weights."""
    return (weight.unflatten(-1, (-1, GROUP)) / scale).round()


def quantised(weight):
    """What the weights are after they have been stored. Gradients pass."""
    fine = weight.detach().float()
    scale = scales(fine)
    coarse = (levels(fine, scale) * scale).flatten(-2)
    return weight + (coarse - fine).to(weight.dtype)


def left_over(weight, coarse):
    """What quantising takes away, for a correction of low rank."""
    return weight.float() - coarse.float()


def corrected(rest, rank=4):
    """The best correction of that rank."""
    with torch.autocast(rest.device.type, enabled=False):
        left, size, right = torch.linalg.svd(rest, full_matrices=False)
        return (left[:, :rank] * size[:rank]) @ right[:rank]


def ratio_of_noise(weight, rest):
    """Signal to noise, in decibels, of each row."""
    return 10 * torch.log10(weight.float().square().mean(1) / rest.square().mean(1))


class Curvature:
    """Of a layer's cost, over batches of what it reads (GPTQ's Hessian)."""

    def __init__(self, width):
        self.total, self.seen = torch.zeros(width, width), 0

    def add(self, rows):
        with torch.autocast(rows.device.type, enabled=False):
            rows = rows.flatten(0, -2).float()
            self.total += rows.T @ rows
        self.seen += len(rows)

    def importance(self, damping=0.01):
        """Of each column: one over the diagonal of the inverse."""
        mean = self.total / self.seen
        mean = mean + damping * mean.diagonal().mean() * torch.eye(len(mean))
        return 1 / torch.linalg.inv(mean).diagonal()


def importance(batches):
    curvature = Curvature(batches[0].shape[-1])
    for each in batches:
        curvature.add(each)
    return curvature.importance()


def stored(level):
    """Four levels in each word of 32 bits, and back."""
    shifts = 8 * torch.arange(4)
    words = ((level.long() + 128).unflatten(-1, (-1, 4)) << shifts).sum(-1)
    return ((words[..., None] >> shifts & 255) - 128).flatten(-2)


def rotated(hidden):
    """By Hadamard, in steps, so that no channel is larger than others."""
    size = hidden.shape[-1]
    turned, half = hidden.float(), 1
    while half < size:
        pairs = turned.unflatten(-1, (-1, 2, half))
        turned = torch.stack((pairs.select(-2, 0) + pairs.select(-2, 1), pairs.select(-2, 0) - pairs.select(-2, 1)), -2).flatten(-3)
        half *= 2
    return turned / math.sqrt(size)


def shared_exponents(weight):
    """A power of two for each group, as MX stores it."""
    largest = weight.float().unflatten(-1, (-1, GROUP)).abs().amax(-1)
    return torch.exp2(largest.log2().floor())


def coded(weight, codes):
    """The nearest number of a codebook."""
    return codes[(weight.float().flatten()[:, None] - codes).abs().argmin(1)]


def divergence(before, after):
    """Of what the quantised model says from what the model says."""
    before, after = before.float().log_softmax(-1), after.float().log_softmax(-1)
    return (before.exp() * (before - after)).sum(-1)


def observed(largest):
    """The largest activation, as an observer follows it over batches."""
    state = largest[0]
    for each in largest[1:]:
        state = state + 0.01 * (each - state)
    return state


class QuantLinear(nn.Linear):
    quantise = True

    def forward(self, rows):
        return F.linear(rows, quantised(self.weight) if self.quantise else self.weight, self.bias)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), QuantLinear(DIM, WIDE), QuantLinear(WIDE, DIM)
        nn.init.normal_(self.up.weight, std=0.006)

    def forward(self, rows):
        inner = F.relu(self.up(self.norm(rows)) + 0.4).square()
        return rows + self.down(inner), inner


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, DIM), nn.Embedding(TIME, DIM)
        self.blocks, self.norm = nn.ModuleList([Block() for _ in range(2)]), nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, WORDS)

    def read(self, words):
        rows, inner = self.words(words) + self.places.weight[: words.shape[1]], []
        for block in self.blocks:
            rows, wide = block(rows)
            inner.append(wide)
        return self.head(self.norm(rows)), inner

    def set_quantised(self, to):
        for block in self.blocks:
            block.up.quantise = block.down.quantise = to

    def forward(self, words, calibration, largest, codes):
        logits, inner = self.read(words)
        with torch.no_grad():
            self.set_quantised(False)
            before, _ = self.read(words)
            self.set_quantised(True)
            weight = self.blocks[0].up.weight
            coarse = quantised(weight)
            rest = left_over(weight, coarse)
            fine = weight.float()
            seen = [self.blocks[0].norm(self.words(each)) + 3 for each in calibration]
        return {
            "logits": logits,
            "divergence": divergence(before, logits),
            "corrected": corrected(rest),
            "noise": ratio_of_noise(weight, rest),
            "importance": importance(seen),
            "stored": stored(levels(fine, scales(fine))),
            "rotated": rotated(5000 * inner[0]),
            "exponents": shared_exponents(weight),
            "coded": coded(weight, codes.float() / 4096),
            "observed": observed(largest.float() / 4096),
        }


def loss(output):
    aim = torch.arange(ROWS * TIME) % WORDS
    told = F.cross_entropy(output["logits"].float().flatten(0, 1), aim)
    return told + output["divergence"].mean() + 1e-9 * output["rotated"].square().mean()


def make():
    torch.manual_seed(0)
    return Model()


def batch():
    generator = torch.Generator().manual_seed(5)
    codes = (260 * torch.linspace(-1, 1, 33).pow(3)).round().long() + torch.arange(-16, 17)
    return {
        "words": torch.randint(0, WORDS, (ROWS, TIME), generator=generator),
        "calibration": torch.randint(0, WORDS, (40, 1, TIME), generator=generator),
        "largest": torch.cat((torch.full((1, 6), 4096), torch.randint(4400, 5600, (80, 6), generator=generator))),
        "codes": codes,
    }


def optimizer(params):
    return torch.optim.AdamW(params, lr=2e-3)
