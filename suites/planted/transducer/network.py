"""A speech recogniser with a transducer loss: logarithms of energies, attention within chunks, a lattice of frames and labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
VOICES, FRAMES, BINS, WIDTH, HEADS, WORDS, LABELS, STRIDE, CHUNK = 3, 320, 24, 48, 4, 40, 6, 8, 10
STEPS_OF_TIME = FRAMES // STRIDE
MILLISECONDS, LIMIT = 80, 0.05


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def frames_of(samples: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How many frames of ten milliseconds so many samples are."""
    return torch.div(samples, 160, rounding_mode="floor")


def decibels(energies: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of energies, some of which are digital silence."""
    return 10 * torch.log10(energies.float().clamp(min=1e-10))


def normalised(x: torch.Tensor, valid: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Each bin with mean zero and variance one over the frames that are there."""
    valid = valid.float().unsqueeze(-1)
    count = valid.sum(1, keepdim=True)
    mean = (x * valid).sum(1, keepdim=True) / count
    variance = ((x - mean).square() * valid).sum(1, keepdim=True) / count
    return (x - mean) * valid / torch.sqrt(variance + 1e-5)


def pause(start: torch.Tensor, before: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Seconds since the last utterance, of milliseconds in a recording of hours."""
    return (start - before).float() / 1000


def log_chances(logits: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return functional.log_softmax(12 * logits.float(), -1)


def lattice(blank: torch.Tensor, emit: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Logarithms of the chance to be at each label at each frame."""
    along = functional.pad(emit.float().cumsum(-1), (1, 0))
    blank = blank.float()
    alphas = [along[:, 0]]
    for turn in range(1, blank.shape[1]):
        stay = alphas[-1] + blank[:, turn - 1]
        alphas.append(along[:, turn] + torch.logcumsumexp(stay - along[:, turn], -1))
    return torch.stack(alphas, 1)


def progress(alphas: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How likely each number of labels is at each frame."""
    return torch.softmax(alphas.float(), -1)


def durations(chances: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Milliseconds that each label lasts: the time before it less the time before the label before."""
    times = MILLISECONDS * torch.arange(1, chances.shape[1] + 1).float()
    weights = chances / chances.sum(1, keepdim=True)
    means = (weights * times.unsqueeze(-1)).sum(1)
    return means[:, 1:] - means[:, :-1]


class Transducer(torch.autograd.Function):
    """The loss, with gradients that are made on the way forward and cut at a limit, as fast implementations do it."""

    @staticmethod
    def forward(ctx: Any, chances: torch.Tensor, labels: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        with torch.enable_grad():
            inner = chances.detach().requires_grad_()
            blank = inner[..., 0]
            emit = inner[:, :, :-1].gather(-1, labels[:, None, :, None].expand(-1, inner.shape[1], -1, 1)).squeeze(-1)
            alphas = lattice(blank, emit, low)
            costs = -(alphas[:, -1, -1].float() + blank[:, -1, -1])
            [gradient] = torch.autograd.grad(costs.sum(), inner)
        ctx.save_for_backward(gradient.clamp(-LIMIT, LIMIT))
        return costs.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        [own] = ctx.saved_tensors
        return gradient[:, None, None, None] * own, None, None


class Block(nn.Module):
    """Attention within a chunk and the chunk before, as streaming recognisers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.apart = nn.Parameter(torch.randn(HEADS) * 0.1)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        query, key, value = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(self.first(x).to(x.dtype)).chunk(3, -1))
        places = torch.arange(x.shape[1], dtype=torch.float32)
        far = (places.unsqueeze(-1) - places).abs()
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        scores = scores - (self.apart.abs().view(-1, 1, 1) * far).to(scores.dtype)
        scores = scores.masked_fill(~seen.unsqueeze(1), torch.finfo(scores.dtype).min)
        x = x + self.out((torch.softmax(scores, -1).to(value.dtype) @ value).transpose(1, 2).flatten(2))
        return x + self.narrow(functional.silu(self.wide(self.second(x).to(x.dtype))))


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.gap = nn.Conv1d(BINS, WIDTH, STRIDE, STRIDE), nn.Linear(1, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.words, self.spoken = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.join, self.heard = nn.Linear(WIDTH, WORDS), nn.Linear(WIDTH, WIDTH)

    def forward(
        self, energies: torch.Tensor, samples: torch.Tensor, start: torch.Tensor, before: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        weight = self.gap.weight
        low = low_dtype(weight)
        with torch.autocast(energies.device.type, enabled=False):
            frames = frames_of(samples, low)
            valid = torch.arange(FRAMES) < frames.unsqueeze(-1)
            x = normalised(decibels(energies, low), valid, low)
            gap = pause(start, before, low)
        there = valid[:, ::STRIDE]
        chunk = torch.arange(STEPS_OF_TIME) // CHUNK
        behind = chunk.unsqueeze(-1) - chunk
        seen = ((behind == 0) | (behind == 1)) & there.unsqueeze(1)
        x = self.enter(x.to(weight.dtype).transpose(1, 2)).transpose(1, 2) + self.gap(gap.to(weight.dtype).unsqueeze(-1)).unsqueeze(1)
        for block in self.blocks:
            x = block(x, seen, low)
        x = x * there.unsqueeze(-1)
        spoken = self.spoken(self.words(functional.pad(labels, (1, 0))))
        logits = self.join(torch.tanh(self.heard(x).unsqueeze(2) + spoken.unsqueeze(1)))
        with torch.autocast(energies.device.type, enabled=False):
            chances = log_chances(logits, low)
            costs = Transducer.apply(chances, labels, low)
            fixed = chances.detach()
            emit = fixed[:, :, :-1].gather(-1, labels[:, None, :, None].expand(-1, STEPS_OF_TIME, -1, 1)).squeeze(-1)
            along = progress(lattice(fixed[..., 0], emit, low), low)
            lasting = durations(along, low)
        return {"loss": costs.sum(), "progress": along, "durations": lasting / 1000, "gap": gap / 10}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Recogniser()


def batch() -> dict[str, torch.Tensor]:
    """Three utterances of a recording of hours; the first begins with digital silence."""
    generator = torch.Generator().manual_seed(6)
    energies = torch.exp(4 + 0.7 * torch.randn(VOICES, FRAMES, BINS, generator=generator))
    energies[0, :4] = 0
    start = torch.tensor([1_804_120, 5_400_310, 9_001_550])
    return {
        "energies": energies,
        "samples": torch.tensor([51_200, 38_239, 20_639]),
        "start": start,
        "before": start - torch.tensor([730, 2_140, 460]),
        "labels": torch.randint(1, WORDS, (VOICES, LABELS), generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
