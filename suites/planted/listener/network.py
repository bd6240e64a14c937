"""A recogniser of speech, as Whisper is and ESPnet trains it: log-mel energies, an encoder with checkpoints, a decoder, and a CTC loss beside it."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

RATE, WINDOW, HOP, BINS, MELS = 8_000, 160, 80, 128, 16
DIM, HEADS, WORDS = 48, 4, 40
ROWS, SECONDS, TOKENS, SPANS = 3, 0.6, 7, 5
STEPS = 1


def framed(audio):
    """Frames of samples as a microphone's converter gives them, less the mean of each."""
    frames = audio.unfold(1, WINDOW, HOP).float()
    return frames - frames.mean(-1, keepdim=True)


def power(frames):
    """Of each frequency, in the square of the converter's steps, as Kaldi has it."""
    spectrum = torch.fft.rfft(frames * torch.hann_window(WINDOW, periodic=False), 2 * (BINS - 1))
    return spectrum.real.square() + spectrum.imag.square()


def mel_filters():
    """Triangles that are even in the mel scale."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, MELS + 2, dtype=torch.float32) / 2595) - 1)
    hertz = torch.linspace(0, RATE / 2, BINS, dtype=torch.float32)[:, None]
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp_min(0)


def log_mel(energy):
    """Decades above a floor of eight below the loudest, scaled as Whisper does."""
    logs = energy.clamp_min(1e-10).log10()
    logs = torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8)
    return (logs - 4) / 4


def sinusoids(first, length, channels):
    """Places of frames in the window of thirty seconds."""
    step = math.log(10_000) / (channels // 2 - 1)
    inverse = torch.exp(-step * torch.arange(channels // 2, dtype=torch.float32))
    angles = (first[:, None] + torch.arange(length)).float()[..., None] * inverse
    return torch.cat((angles.sin(), angles.cos()), -1)


def stamps(begin):
    """The time of each sample's number, in fiftieths of a second, within a window of thirty seconds."""
    ticks = torch.div(begin, RATE // 50, rounding_mode="floor")
    return ticks % 1500


def standardised(weights):
    """How much more each frame attends to a word than it does to the others, for dynamic time warping."""
    spread, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    return (weights - mean) / (spread + 1e-9)


def confidence(logs, spans):
    """The chance of each span of words: the geometric mean. `spans`: which words belong to it."""
    return ((spans * logs[:, None]).sum(-1) / spans.sum(-1)).exp()


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class MultiHeadAttention(nn.Module):
    def __init__(self, kept=False):
        super().__init__()
        self.kept = kept
        self.query, self.key, self.value, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x, other=None, mask=None):
        other = x if other is None else other
        scale = (DIM // HEADS) ** -0.25
        query, key, value = heads(self.query(x)) * scale, heads(self.key(other)) * scale, heads(self.value(other))
        scores = query @ key.transpose(-1, -2)
        scores = scores if mask is None else scores + mask
        weights = scores.float().softmax(-1) if self.kept else scores.softmax(-1)
        return self.out((weights.to(value.dtype) @ value).transpose(1, 2).flatten(2)), weights


class Block(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.attn, self.attn_ln = MultiHeadAttention(), nn.LayerNorm(DIM)
        self.cross_attn, self.cross_attn_ln = (MultiHeadAttention(kept=True), nn.LayerNorm(DIM)) if cross else (None, None)
        self.mlp, self.mlp_ln = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM)), nn.LayerNorm(DIM)

    def forward(self, x, other=None, mask=None):
        x = x + self.attn(self.attn_ln(x), mask=mask)[0]
        weights = None
        if self.cross_attn is not None:
            gained, weights = self.cross_attn(self.cross_attn_ln(x), other)
            x = x + gained
        return x + self.mlp(self.mlp_ln(x)), weights


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(MELS, DIM, 3, padding=1), nn.Conv1d(DIM, DIM, 3, stride=2, padding=1)
        self.blocks, self.ln_post = nn.ModuleList(Block(cross=False) for _ in range(2)), nn.LayerNorm(DIM)

    def forward(self, mel, first):
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel.transpose(1, 2))))).transpose(1, 2)
        x = x + sinusoids(first, x.shape[1], DIM).to(x.dtype)
        for block in self.blocks:
            x = checkpoint(partial(self.run, block), x, use_reentrant=False)
        return self.ln_post(x)

    @staticmethod
    def run(block, x):
        return block(x)[0]


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.token_embedding, self.positional_embedding = nn.Embedding(WORDS, DIM), nn.Parameter(0.1 * torch.randn(TOKENS, DIM))
        self.time_embedding = nn.Embedding(1500, DIM)
        self.blocks, self.ln = nn.ModuleList(Block(cross=True) for _ in range(2)), nn.LayerNorm(DIM)
        self.ctc = nn.Linear(DIM, WORDS + 1)
        for block in self.blocks:
            block.cross_attn.key.weight.data.mul_(0.1)

    def forward(self, audio, words, begin, spans):
        with torch.autocast("cpu", enabled=False):
            energy = power(framed(audio)) @ mel_filters()
            mel = log_mel(energy)
        heard = self.encoder(mel.to(self.ln.weight.dtype), begin // (2 * HOP) % 1500)
        aligned = self.ctc(heard).float().log_softmax(-1)
        x = self.token_embedding(words[:, :-1]) + self.positional_embedding + self.time_embedding(stamps(begin))[:, None]
        mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1).to(x.dtype)
        for block in self.blocks:
            x, weights = block(x, heard, mask)
        logits = (self.ln(x) @ self.token_embedding.weight.T).float()
        logs = logits.log_softmax(-1).gather(-1, words[:, 1:, None])[..., 0]
        return {
            "aligned": aligned,
            "logits": logits,
            "words": words,
            "warp": standardised(weights),
            "confidence": confidence(logs, spans),
        }


def loss(output):
    """Attention's cross entropy with smoothed labels, and a third of CTC's."""
    words, aligned = output["words"], output["aligned"]
    spoken = F.cross_entropy(output["logits"].transpose(1, 2), words[:, 1:], label_smoothing=0.1)
    lengths = (torch.full((len(words),), aligned.shape[1]), torch.full((len(words),), TOKENS))
    return 0.7 * spoken + 0.3 * F.ctc_loss(aligned.transpose(0, 1), words[:, 1:], *lengths, blank=WORDS) / TOKENS


def make():
    torch.manual_seed(0)
    return Listener()


def batch():
    generator = torch.Generator().manual_seed(31)
    time = torch.arange(int(RATE * SECONDS)) / RATE
    tone = torch.randint(100, 900, (ROWS, 4, 1), generator=generator)
    sound = (2_000 * torch.sin(2 * math.pi * tone * time).sum(1) * torch.sin(3 * time * torch.tensor([[5.0], [7.0], [9.0]])).abs()).round()
    quiet = torch.randint(-40, 40, sound.shape, generator=generator)
    sound = torch.where(time < 0.25, quiet, sound + quiet)
    spans = torch.zeros(ROWS, SPANS, TOKENS, dtype=torch.long)
    for number in range(SPANS):
        spans[:, number, min(number, 1) : number + 3] = 1
    return {
        "audio": (20_400 + sound).long(),
        "words": torch.randint(0, WORDS, (ROWS, TOKENS + 1), generator=generator),
        "begin": torch.tensor([391_207, 88_642, 1_203_455]),
        "spans": spans,
    }


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-2)
