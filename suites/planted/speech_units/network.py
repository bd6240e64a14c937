"""Speech without words, as wav2vec 2.0 learns it: samples to frames, masked spans, units as a mix of codes, and the right unit among others."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
VOICES, SAMPLES, WIDTH, HEADS, CODES, OTHERS, SPAN = 3, 6400, 64, 4, 320, 12, 10
KERNEL, STRIDE = 10, 20
FRAMES = (SAMPLES - KERNEL) // STRIDE + 1
KEEP = 0.9


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def normalised(wave: torch.Tensor, valid: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Samples of 16 bits with mean zero and variance one, over those that are there."""
    wave, valid = wave.float(), valid.float()
    count = valid.sum(-1, keepdim=True)
    mean = (wave * valid).sum(-1, keepdim=True) / count
    apart = (wave - mean) * valid
    spread = apart.square().sum(-1, keepdim=True) / count
    return apart / torch.sqrt(spread + 1e-5)


def frames_of(lengths: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How many frames so many samples give."""
    return torch.div(lengths - KERNEL, STRIDE, rounding_mode="floor") + 1


def span_starts(chances: torch.Tensor, frames: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Where masked spans begin."""
    return (chances.float() * (frames - SPAN).unsqueeze(-1)).long()


def code_use(chances: torch.Tensor, valid: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How often each code is chosen, over all frames that are there."""
    return (chances.float() * valid.unsqueeze(-1)).sum((0, 1)) / valid.sum()


def perplexity(use: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of how many codes the network makes use."""
    return torch.exp(-(use * torch.log(use + 1e-7)).sum())


def likeness(x: torch.Tensor, units: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Cosines, sharpened; frames of padding are zero."""
    x, units = x.float(), units.float()
    x = x / (x.norm(dim=-1, keepdim=True) + 1e-8)
    units = units / (units.norm(dim=-1, keepdim=True) + 1e-8)
    return (x.unsqueeze(-2) * units).sum(-1) / 0.1


def averaged(before: torch.Tensor, use: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The use of codes over many steps."""
    return KEEP * before + (1 - KEEP) * use


class SpeechUnits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(1, WIDTH, KERNEL, STRIDE), nn.LayerNorm(WIDTH)
        self.mask, self.order = nn.Parameter(torch.randn(WIDTH)), nn.Conv1d(WIDTH, WIDTH, 15, padding=7, groups=8)
        self.block = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.choose, self.codes, self.out = nn.Linear(WIDTH, CODES), nn.Linear(CODES, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("use", torch.full((CODES,), 1 / CODES))

    def forward(self, wave: torch.Tensor, lengths: torch.Tensor, chances: torch.Tensor, others: torch.Tensor) -> dict[str, torch.Tensor]:
        weight = self.first.weight
        low = low_dtype(weight)
        with torch.autocast(wave.device.type, enabled=False):
            wave = normalised(wave, torch.arange(SAMPLES) < lengths.unsqueeze(-1), low)
            frames = frames_of(lengths, low)
            valid = torch.arange(FRAMES) < frames.unsqueeze(-1)
            starts = span_starts(chances, frames, low)
            apart = torch.arange(FRAMES) - starts.unsqueeze(-1)
            masked = ((apart >= 0) & (apart < SPAN)).any(1) & valid
        x = self.norm(functional.gelu(self.first(wave.to(weight.dtype).unsqueeze(1))).transpose(1, 2))
        scores = self.choose(x)
        with torch.autocast(wave.device.type, enabled=False):
            chance = torch.softmax(6 * scores.float(), -1)
            use = code_use(chance, valid.float(), low)
            varied = perplexity(use, low)
            if self.training:
                with torch.no_grad():
                    self.use.copy_(averaged(self.use.float(), use, low))
        units = self.codes(chance.to(weight.dtype))
        x = torch.where(masked.unsqueeze(-1), self.mask.to(x.dtype), x)
        x = x + functional.gelu(self.order(x.transpose(1, 2))).transpose(1, 2)
        x = self.out(self.block(x, src_key_padding_mask=~valid)) * valid.unsqueeze(-1)
        units = units * valid.unsqueeze(-1)
        with torch.autocast(wave.device.type, enabled=False):
            wrong = torch.stack([each[other] for each, other in zip(units, others, strict=True)])
            logits = likeness(x, torch.cat([units.unsqueeze(2), wrong], 2), low)
            right = -functional.log_softmax(logits, -1)[..., 0]
            share = (right * masked).sum() / masked.sum()
        return {"loss": share + 0.1 * (CODES - varied) / CODES, "logits": logits, "perplexity": varied}


def make() -> nn.Module:
    torch.manual_seed(0)
    return SpeechUnits()


def batch() -> dict[str, torch.Tensor]:
    """Samples of 16 bits, as whole numbers, with an offset as cheap microphones have it."""
    generator = torch.Generator().manual_seed(7)
    return {
        "wave": (4000 + 700 * torch.randn(VOICES, SAMPLES, generator=generator)).round().long().clamp(-32768, 32767),
        "lengths": torch.tensor([6400, 5069, 4109]),
        "chances": torch.rand(VOICES, 8, generator=generator),
        "others": torch.randint(0, 200, (VOICES, FRAMES, OTHERS), generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
