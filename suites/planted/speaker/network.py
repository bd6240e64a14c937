"""Who speaks: filterbanks of 16-bit samples, a time-delay network, attentive statistics, and a margin between the angles of speakers."""

import math

import torch
import torch.nn.functional as F
from torch import nn

RATE, WINDOW, HOP, BANDS = 8000, 256, 128, 24
SPEAKERS, EACH, DIM = 4, 2, 48
MARGIN, SCALE = 0.2, 30.0
STEPS = 1


def mel_weights():
    mel = torch.linspace(0, 2595 * math.log10(1 + RATE / 2 / 700), BANDS + 2)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    up = (bins - hertz[:-2]) / (hertz[1:-1] - hertz[:-2])
    down = (hertz[2:] - bins) / (hertz[2:] - hertz[1:-1])
    return torch.minimum(up, down).clamp_min(0)


def preemphasis(samples):
    wave = samples.float() / 32768
    return wave[:, 1:] - 0.97 * wave[:, :-1]


def log_energies(power, mel):
    energy = power @ mel
    return (energy + 1e-10).log()


def normalise(features, mask):
    """Cepstral mean and variance normalisation over the frames that count."""
    mask = mask[..., None].float()
    count = mask.sum(1, keepdim=True)
    mean = (features * mask).sum(1, keepdim=True) / count
    spread = ((features - mean).square() * mask).sum(1, keepdim=True) / count
    return (features - mean) / (spread + 1e-5).sqrt()


class Filterbank(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hamming_window(WINDOW), persistent=False)
        self.register_buffer("mel", mel_weights(), persistent=False)

    @torch.autocast("cpu", enabled=False)
    def forward(self, samples):
        frames = preemphasis(samples).unfold(-1, WINDOW, HOP) * self.window.float()
        power = torch.fft.rfft(frames).abs().square()
        return log_energies(power, self.mel.float())


class TDNNBlock(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation, padding=dilation)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        return x + F.relu(self.norm(self.conv(x)))


class AttentiveStatistics(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.score = nn.Sequential(nn.Conv1d(channels, 16, 1), nn.Tanh(), nn.Conv1d(16, channels, 1))

    def forward(self, x, mask):
        score = self.score(x).float().masked_fill(~mask[:, None], -torch.inf)
        weight = score.softmax(-1)
        x = x.float()
        mean = (weight * x).sum(-1)
        spread = (weight * (x - mean[..., None]).square()).sum(-1)
        return torch.cat([mean, spread.clamp_min(1e-6).sqrt()], -1)


def cosines(embedding, speaker):
    """Of each embedding with the mean of the others of each speaker."""
    with torch.autocast("cpu", enabled=False):
        embedding = F.normalize(embedding.float(), dim=-1)
        total = torch.zeros(SPEAKERS, embedding.shape[-1]).index_add(0, speaker, embedding)
        own = F.one_hot(speaker, SPEAKERS).float()
        centre = total[None] - own[..., None] * embedding[:, None]
        return (F.normalize(centre, dim=-1) * embedding[:, None]).sum(-1)


def angular(cosine):
    """From a cosine to its angle, away from the ends, where the slope has poles."""
    return torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6))


def margin_logits(cosine, speaker):
    own = F.one_hot(speaker, SPEAKERS).bool()
    angle = angular(cosine)
    return SCALE * torch.where(own, angle + MARGIN, angle).cos()


class SpeakerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = Filterbank()
        self.stem = nn.Conv1d(BANDS, DIM, 5, padding=2)
        self.blocks = nn.ModuleList(TDNNBlock(DIM, dilation) for dilation in (1, 2, 3))
        self.pool = AttentiveStatistics(DIM)
        self.fc = nn.Linear(2 * DIM, DIM)

    def forward(self, samples, lengths, speaker):
        features = self.bank(samples)
        frames = (lengths - WINDOW) // HOP
        mask = torch.arange(features.shape[1]) < frames[:, None]
        features = normalise(features, mask)
        x = F.relu(self.stem(features.mT.to(self.stem.weight.dtype)))
        for block in self.blocks:
            x = block(x)
        embedding = self.fc(self.pool(x, mask).to(self.fc.weight.dtype))
        cosine = cosines(embedding, speaker)
        return {"embedding": embedding, "cosine": cosine, "logits": margin_logits(cosine, speaker), "speaker": speaker}


def make():
    torch.manual_seed(0)
    return SpeakerNet()


def batch():
    generator = torch.Generator().manual_seed(61)
    count, length = SPEAKERS * EACH, 6000
    time = torch.arange(length) / RATE
    speaker = torch.arange(SPEAKERS).repeat_interleave(EACH)
    pitch = (110 + 12 * speaker[:, None]) * (1 + 0.02 * torch.randn(count, 1, generator=generator))
    wave = sum(torch.sin(2 * math.pi * pitch * k * time + k) / k**1.5 for k in range(1, 12))
    wave = wave * (1.2 + torch.sin(2 * math.pi * 3 * time)) * 4000 + 4 * torch.randn(count, length, generator=generator)
    lengths = torch.randint(4200, length, (count,), generator=generator)
    return {"samples": wave.round().clamp(-32768, 32767).short() * (torch.arange(length) < lengths[:, None]), "lengths": lengths, "speaker": speaker}


def loss(output):
    return F.cross_entropy(output["logits"], output["speaker"])


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
