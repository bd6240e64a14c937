"""Sound and sight: a song at another speed, a voice beside its errors, a plane from matches, pixels that are hidden."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class TimeStretch(torch.nn.Module):
    """Plays a spectrogram at another speed: magnitudes between frames, and phases that run on as each bin's frequency says."""

    advance: torch.Tensor

    def __init__(self, bins: int, hop: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("advance", torch.linspace(0, math.pi * hop, bins)[:, None])

    def forward(self, magnitude: torch.Tensor, angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(0, magnitude.shape[-1] - 1, self.rate)
        before, share = places.long(), (places % 1).to(magnitude.dtype)
        stretched = (1 - share) * magnitude[:, before] + share * magnitude[:, before + 1]
        step = angle[:, before + 1] - angle[:, before] - self.advance  # culprit: song-at-another-speed
        step = step - 2 * math.pi * torch.round(step / (2 * math.pi)) + self.advance  # culprit: song-at-another-speed
        phase = torch.cumsum(torch.cat([angle[:, :1], step[:, :-1]], 1), 1)  # culprit: song-at-another-speed
        return stretched, phase


def stretched(dtype: torch.dtype) -> torch.Tensor:
    """The waveform of a chord, played a fifth slower; the transform and its inverse are float32, and the stretch is in the dataset's format."""
    time = torch.arange(4096) / 8000
    song = sum(torch.sin(2 * math.pi * pitch * time) / pitch**0.5 for pitch in (220.0, 331.0, 497.0, 1240.0))
    window = torch.hann_window(256)
    spectrum = torch.stft(song, 256, 64, window=window, return_complex=True)
    stretch = TimeStretch(129, 64, 0.8).to(dtype)
    magnitude, phase = stretch(spectrum.abs().to(dtype), spectrum.angle().to(dtype))
    return torch.istft(torch.polar(magnitude.float(), phase.float()), 256, 64, window=window)[256:-256]


def voice_ratio(estimate: torch.Tensor, voice: torch.Tensor) -> torch.Tensor:
    """Decibels of each voice beside what of its estimate is not a multiple of it."""
    estimate, voice = estimate - estimate.mean(-1, keepdim=True), voice - voice.mean(-1, keepdim=True)
    overlap = (estimate[:, None] @ voice[:, :, None]).squeeze(-1)  # culprit: voice-beside-its-errors
    energy = (voice[:, None] @ voice[:, :, None]).squeeze(-1)  # culprit: voice-beside-its-errors
    share = overlap / (energy + 1e-8) * voice  # culprit: voice-beside-its-errors
    noise = estimate - share
    return 10 * torch.log10(share.square().sum(-1) / (noise.square().sum(-1) + 1e-8))


def separated(mixed: bool) -> torch.Tensor:
    """Ratios of six voices that were separated well, scored in the validation loop, which autocast covers."""
    time = torch.arange(4000) / 8000
    voice = torch.sin(2 * math.pi * (150 + 40 * torch.arange(6.0))[:, None] * time) * (0.2 + 0.1 * torch.sin(9 * time))
    loudness = torch.tensor([1.013, 0.987, 1.021, 0.994, 1.007, 0.979])[:, None]
    estimate = loudness * voice + torch.logspace(-3.6, -2.9, 6)[:, None] * normal(6, 4000)
    with torch.autocast("cpu", LOW, enabled=mixed):
        return voice_ratio(estimate, voice).float()


def homography(here: torch.Tensor, there: torch.Tensor, mixed: bool) -> torch.Tensor:
    """The map of a plane from matches in two pictures, whose points are fractions of the pictures: the least eigenvector of a normal matrix."""
    one, zero = torch.ones(len(here), 1), torch.zeros(len(here), 3)
    points = torch.cat([here, one], 1)
    rows = torch.cat([torch.cat([points, zero, -there[:, :1] * points], 1), torch.cat([zero, points, -there[:, 1:] * points], 1)])
    with torch.autocast("cpu", LOW, enabled=mixed):
        normal_matrix = rows.T @ rows  # culprit: plane-from-matches
    _, vectors = torch.linalg.eigh(normal_matrix.float())
    found = vectors[:, 0].reshape(3, 3)
    return found / found[2, 2]


def matched(mixed: bool) -> torch.Tensor:
    """Where the corners of a picture go, by a homography from 60 exact matches on a poster in it, within a training step under autocast."""
    truth = torch.tensor([[0.94, -0.12, 0.11], [0.08, 0.97, 0.06], [0.17, -0.15, 1.0]])
    here = 0.5 + 0.35 * uniform(60, 2)
    projected = torch.cat([here, torch.ones(60, 1)], 1) @ truth.T
    found = homography(here, projected[:, :2] / projected[:, 2:], mixed)
    corners = torch.tensor([[0.0, 0, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]]) @ found.T
    return corners[:, :2] / corners[:, 2:]


def lands(flow: torch.Tensor) -> torch.Tensor:
    """Where each pixel lands, in pixels."""
    height, width = flow.shape[-2:]
    y, x = torch.meshgrid(torch.arange(height, dtype=flow.dtype), torch.arange(width, dtype=flow.dtype), indexing="ij")
    return torch.stack([x, y]) + flow  # culprit: hidden-pixels


def hidden(forward: torch.Tensor, backward: torch.Tensor) -> torch.Tensor:
    """How far each pixel is from where it started when it goes there and back; a pixel that is hidden does not return."""
    landed = lands(forward)
    sizes = torch.tensor([forward.shape[-1] - 1, forward.shape[-2] - 1], dtype=WIDE)
    grid = (2 * landed.permute(1, 2, 0).float() / sizes - 1)[None]
    back = torch.nn.functional.grid_sample(backward.float()[None], grid, align_corners=True, padding_mode="border")[0]
    return (forward.float() + back).norm(dim=0)


def occlusion(dtype: torch.dtype) -> torch.Tensor:
    """A strip of a wide picture, whose flows in half are a wave that runs to the right and back, with one hidden patch."""
    x = torch.arange(1800.0)
    there = torch.stack([3 + 0.4 * torch.sin(x / 3), 0.3 * torch.cos(x / 4)])[:, None].expand(2, 6, 1800).clone()
    back, moved = -there, x
    for _ in range(8):
        moved = x - (3 + 0.4 * torch.sin(moved / 3))
    back = -torch.stack([3 + 0.4 * torch.sin(moved / 3), 0.3 * torch.cos(moved / 4)])[:, None].expand(2, 6, 1800).clone()
    back[:, :, 700:740] += 1.0
    return hidden(there.to(HALF).to(dtype), back.to(HALF).to(dtype))[:, 8:-8]


BUGS = (
    Bug("song-at-another-speed", "librosa/librosa#1930", ("amplified-rounding", "cancellation", "integer-rounding"), "aten.cumsum.default",
        lambda: stretched(LOW), lambda: stretched(WIDE), module="TimeStretch"),
    Bug("voice-beside-its-errors", "Lightning-AI/torchmetrics#899", ("amplified-rounding", "cancellation"), "aten.div.Tensor",
        lambda: separated(True), lambda: separated(False)),
    Bug("plane-from-matches", "webarkit/jsfeatNext#186", ("amplified-rounding", "cancellation"), "aten.mm.default", lambda: matched(True),
        lambda: matched(False)),
    Bug("hidden-pixels", "pytorch/pytorch#36108", ("amplified-rounding", "local-drift", "cancellation"), "aten.add.Tensor", lambda: occlusion(HALF),
        lambda: occlusion(WIDE)),
)  # fmt: skip
