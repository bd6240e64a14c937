"""A speech recogniser: log-mel features of audio, a convolutional front end, bidirectional GRUs, and the CTC loss."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, SAMPLES, WINDOW, HOP, MELS, WIDTH, SYMBOLS = 2, 40000, 128, 64, 24, 32, 30
SAMPLE_RATE, RATE = 8000, 3e-4


def spectrum_basis() -> Tensor:
    """Cosines and sines of all frequencies under a Hann window, as the filters of a convolution."""
    time, frequency = torch.arange(WINDOW), torch.arange(WINDOW // 2 + 1)
    angle = 2 * math.pi / WINDOW * (frequency[:, None] * time % WINDOW)
    window = torch.hann_window(WINDOW)
    return torch.cat([angle.cos() * window, angle.sin() * window])[:, None, :]


def mel_filters() -> Tensor:
    """Triangles that are evenly spaced in mel."""
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, MELS + 2) / 2595) - 1)
    at = torch.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    rising = (at - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - at) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


def power_spectrum(audio: Tensor) -> Tensor:
    """Of each frame, the power at each frequency, in float32 whatever surrounds it."""
    with torch.autocast("cpu", enabled=False):
        waves = F.conv1d(audio.float()[:, None], spectrum_basis(), stride=HOP)
    real, imaginary = waves.chunk(2, dim=1)
    return real.square() + imaginary.square()


def log_mel(audio: Tensor) -> Tensor:
    power = power_spectrum(audio)
    with torch.autocast("cpu", enabled=False):
        mel = mel_filters() @ power
    return torch.log(mel + 1e-10)


def frame_mask(lengths: Tensor, frames: int) -> Tensor:
    return torch.arange(frames) < lengths[:, None]


def normalised(features: Tensor, mask: Tensor) -> Tensor:
    """Each row's features less their mean, over their standard deviation, counting the frames that are not padding."""
    weights = (mask / mask.sum(-1, keepdim=True))[:, None, :]
    mean = (features * weights).sum(-1, keepdim=True)
    variance = ((features - mean).square() * weights).sum(-1, keepdim=True)
    return (features - mean) * torch.rsqrt(variance + 1e-5) * mask[:, None, :]


def lengths_after(lengths: Tensor, kernel: int, stride: int, like: Tensor) -> Tensor:
    """Of a convolution's results, how many belong to each row."""
    return torch.div(lengths - kernel, stride, rounding_mode="floor") + 1


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(MELS, WIDTH, 3), nn.Conv1d(WIDTH, WIDTH, 3, stride=2)
        self.mix, self.norm = nn.Conv1d(WIDTH, WIDTH, 9, padding=4, groups=4), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the symbols, frame by frame, and how many frames each row has."""
        features = log_mel(audio)
        lengths = lengths_after(lengths, WINDOW, HOP, audio)
        x = normalised(features, frame_mask(lengths, features.shape[-1])).to(self.first.weight.dtype)
        x = F.gelu(self.first(x))
        lengths = lengths_after(lengths, 3, 1, x)
        x = F.gelu(self.second(x))
        lengths = lengths_after(lengths, 3, 2, x)
        x = x * frame_mask(lengths, x.shape[-1])[:, None, :]
        x = self.norm((x + F.gelu(self.mix(x))).transpose(1, 2))
        return self.head(x).float().log_softmax(-1), lengths


def loss(output: tuple[Tensor, Tensor]) -> Tensor:
    log_probabilities, lengths = output
    targets = torch.arange(2 * 40).view(2, 40) % (SYMBOLS - 1) + 1
    return F.ctc_loss(log_probabilities.transpose(0, 1), targets, lengths, torch.tensor([40, 30]))


class SGD(torch.optim.Optimizer):
    """Plain gradient descent on a float32 master copy of each weight."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["master"] = weight.float().clone()
                state["master"].sub_(weight.grad.float(), alpha=group["lr"])
                weight.copy_(state["master"])


def make() -> nn.Module:
    return Recogniser()


def batch() -> dict[str, Tensor]:
    """Two voiced sounds, louder and softer by turns, in a quiet room; the second ends early and is padded with silence."""
    generator = torch.Generator().manual_seed(9)
    time = torch.arange(SAMPLES, dtype=torch.float64) / SAMPLE_RATE
    pitch = torch.tensor([[110.0], [180.0]], dtype=torch.float64)
    voice = sum((torch.sin(2 * math.pi * pitch * harmonic * time) / harmonic for harmonic in range(1, 6)), torch.zeros(1))
    envelope = 0.55 + 0.45 * torch.sin(2 * math.pi * 1.5 * time)
    audio = 0.3 * voice * envelope + 1e-4 * torch.randn(ROWS, SAMPLES, generator=generator)
    lengths = torch.tensor([SAMPLES, SAMPLES - 9000])
    return {"audio": (audio * (torch.arange(SAMPLES) < lengths[:, None])).float(), "lengths": lengths}


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return SGD(params, lr=RATE)


STEPS = 16
