"""A vocoder: a harmonic source and noise, shaped by convolutions that a mel spectrogram steers, trained on spectrograms of several window lengths."""

import math

import torch
import torch.nn.functional as F
from torch import nn

RATE, HOP, FRAMES, MELS, SIZE, HARMONICS = 8000, 40, 20, 16, 24, 6
LENGTH = HOP * FRAMES
STEPS = 1


class Source:
    """Sines at the multiples of a pitch."""

    @staticmethod
    def stretched(f0, like):
        """The pitch at each sample, between its values at the frames. f0: Hz, [B, FRAMES]."""
        place = torch.arange(LENGTH) / HOP
        left = place.floor().long().clamp(max=FRAMES - 2)
        part = (place - left).clamp(max=1)
        return f0[:, left] * (1 - part) + f0[:, left + 1] * part

    @staticmethod
    def turns(pitch, like):
        """How often the wave has gone round, its whole turns taken off."""
        steps = pitch / RATE
        sums = steps.cumsum(1)
        return sums - sums.floor()

    @staticmethod
    def overtones(turns, like):
        """The sines of all harmonics, [B, LENGTH, HARMONICS]."""
        angles = 2 * math.pi * turns[..., None] * torch.arange(1, HARMONICS + 1)
        return 0.1 * angles.sin() / torch.arange(1, HARMONICS + 1)


def emphasised(wave, like):
    """The wave less most of the sample before."""
    return wave[:, 1:] - 0.97 * wave[:, :-1]


def echo(like, length=400, seconds=0.04):
    """A room's reply that fades: what the generator's output is convolved with."""
    keep = math.exp(-1 / (seconds * RATE))
    powers = torch.tensor(keep) ** torch.arange(length)
    return powers * (1 - keep)


def filter_bank(n, like):
    """Triangles on the mel scale over the bins of a spectrum: [MELS, n // 2 + 1]."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, MELS + 2) / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, n // 2 + 1)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rise, fall).clamp_min(0)


def spectrum(wave, n, like):
    """Magnitudes of short pieces of a wave, [B, n // 2 + 1, pieces]."""
    pieces = wave.unfold(1, n, n // 4) * torch.hann_window(n)
    return torch.fft.rfft(pieces, dim=-1).abs().transpose(1, 2)


def convergence(made, real, like):
    """The part of a spectrogram that is missed."""
    return (real - made).square().sum().sqrt() / real.square().sum().sqrt()


def loudness_gap(made, real, like):
    """How far the logarithms are apart."""
    return ((made + 0.1).log() - (real + 0.1).log()).square().mean()


def levelled(wave, like):
    """The wave as loud as any other; silence stays silence."""
    return wave / (wave.square().mean(1, keepdim=True) + 1e-9).sqrt()


class Shaped(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.conv = nn.Conv1d(SIZE, 2 * SIZE, 5, padding=2 * dilation, dilation=dilation)
        self.steer, self.out = nn.Conv1d(MELS, 2 * SIZE, 1), nn.Conv1d(SIZE, SIZE, 1)

    def forward(self, x, mel):
        a, b = (self.conv(x) + self.steer(mel)).chunk(2, 1)
        return x + self.out(a.tanh() * b.sigmoid())


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.inputs = nn.Linear(HARMONICS, 1, bias=False), nn.Conv1d(2, SIZE, 7, padding=3)
        self.blocks = nn.ModuleList(Shaped(d) for d in (1, 3))
        self.out = nn.Conv1d(SIZE, 1, 7, padding=3)

    def forward(self, mel, f0, noise, real):
        like = self.mix(mel.transpose(1, 2)[..., :HARMONICS])
        with torch.autocast("cpu", enabled=False):
            pitch = Source.stretched(f0.float(), like)
            sines = Source.overtones(Source.turns(pitch, like), like)
        source = torch.cat([self.mix(sines.to(like.dtype)).transpose(1, 2), 0.01 * noise[:, None].to(like.dtype)], 1)
        x = self.inputs(source)
        steer = mel.repeat_interleave(HOP, -1).to(x.dtype)
        for block in self.blocks:
            x = block(x, steer)
        with torch.autocast("cpu", enabled=False):
            wave = self.out(x.to(self.out.weight.dtype)).squeeze(1).float() * 0.1 + 4 * sines.sum(-1)
            reply = echo(like).float()
            wave = wave + 0.3 * F.conv1d(F.pad(wave, (len(reply) - 1, 0))[:, None], reply.flip(0)[None, None]).squeeze(1)
            losses = []
            heard, meant = levelled(wave, like).float(), levelled(real.float(), like).float()
            for n in (64, 256):
                made, truth = spectrum(heard, n, like), spectrum(meant, n, like)
                losses += [convergence(made, truth, like), 0.1 * loudness_gap(made, truth, like)]
            bank = filter_bank(256, like).float()
            mels = (bank @ spectrum(wave, 256, like)).log1p()
            sharp = emphasised(wave, like).float()
            losses.append((sharp - emphasised(real.float(), like).float()).square().mean())
        return {"wave": wave, "sharp": sharp, "mels": mels, "loss": torch.stack(losses).sum()}


def make():
    torch.manual_seed(0)
    return Vocoder()


def batch():
    generator = torch.Generator().manual_seed(8)
    f0 = torch.tensor([[78.0], [109.0], [137.0]]) + torch.randn(3, FRAMES, generator=generator).cumsum(1)
    pitch = f0.repeat_interleave(HOP, 1)
    angles = 2 * math.pi * (pitch / RATE).cumsum(1)
    real = sum(0.6 / k * (k * angles).sin() for k in range(1, 4)) * (0.2 + torch.linspace(0, 1, LENGTH))
    real[1] = 0  # silence
    return {
        "mel": torch.randn(3, MELS, FRAMES, generator=generator),
        "f0": f0,
        "noise": torch.randn(3, LENGTH, generator=generator),
        "real": real,
    }


def loss(output):
    return output["loss"]


optimizer = None
