"""A language model of long convolutions, as transformers has models: a configuration, an output, filters made of positions, products in frequency."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 1


@dataclass
class HyenaConfig:
    vocab_size: int = 96
    hidden_size: int = 32
    num_layers: int = 2
    max_position: int = 512
    num_bands: int = 16
    filter_size: int = 32
    pad_token_id: int = 0


@dataclass
class CausalOutput:
    loss: torch.Tensor
    logits: torch.Tensor


def position_features(length, num_bands, like):
    """Time from 0 to 1, and waves of it."""
    t = torch.arange(length, device=like.device, dtype=torch.float32) / (length - 1)
    bands = torch.linspace(1e-4, num_bands - 1, num_bands, device=like.device, dtype=torch.float32)
    angles = 2 * math.pi * t[:, None] * bands
    return torch.cat([t[:, None], angles.cos(), -angles.sin()], dim=-1)


def position_ids_of(attention_mask):
    """Padding stands on the left, and has position 0."""
    position_ids = attention_mask.long().cumsum(-1) - 1
    return position_ids.masked_fill(attention_mask == 0, 0)


def fft_conv(u, k, bias):
    """A causal convolution as long as the sequence. u: [batch, width, length], k: [width, length]."""
    length = u.shape[-1]
    u_f = torch.fft.rfft(u.float(), n=2 * length)
    k_f = torch.fft.rfft(k.float(), n=2 * length) / (2 * length)
    y = torch.fft.irfft(u_f * k_f, n=2 * length, norm="forward")[..., :length]
    return (y + u.float() * bias.float()[:, None]).to(u.dtype)


def token_losses(logits, labels):
    """Cross entropy of each token, and nothing for those without a label."""
    return F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=-100, reduction="none")


def mean_of_labelled(losses, labels):
    losses, there = losses.float(), labels != -100
    return losses.sum() / there.sum()


class HyenaFilter(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.mlp = nn.Sequential(
            nn.Linear(1 + 2 * config.num_bands, config.filter_size), nn.SiLU(), nn.Linear(config.filter_size, config.hidden_size, bias=False)
        )
        fastest, slowest = math.log(1e-2) / 0.3, math.log(1e-2) / 1.5
        self.register_buffer("deltas", torch.linspace(slowest, fastest, config.hidden_size))

    def window(self, length):
        t = torch.linspace(0, 1, length, device=self.deltas.device, dtype=torch.float32)[:, None]
        return torch.exp(t * self.deltas.float()) + 0.01

    def forward(self, length):
        features = position_features(length, self.config.num_bands, self.deltas)
        h = self.mlp(features.to(self.mlp[0].weight.dtype))
        return (h.float() * self.window(length)).transpose(0, 1)


class HyenaMixer(nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config.hidden_size
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.short = nn.Conv1d(3 * d, 3 * d, 3, padding=2, groups=3 * d)
        self.filter, self.bias = HyenaFilter(config), nn.Parameter(torch.randn(d))

    def forward(self, hidden):
        length = hidden.shape[1]
        u = self.short(self.in_proj(hidden).transpose(1, 2))[..., :length]
        x1, x2, v = u.chunk(3, dim=1)
        y = fft_conv(v * x1, self.filter(length), self.bias) * x2
        return self.out_proj(y.transpose(1, 2))


class HyenaLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config.hidden_size
        self.norm1, self.norm2, self.mixer = nn.LayerNorm(d), nn.LayerNorm(d), HyenaMixer(config)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, hidden, attention_mask):
        hidden = hidden + self.mixer(self.norm1(hidden) * attention_mask[..., None])
        return hidden + self.mlp(self.norm2(hidden))


class HyenaForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.embed_positions = nn.Embedding(config.max_position + 8, config.hidden_size)
        self.layers = nn.ModuleList(HyenaLayer(config) for _ in range(config.num_layers))
        self.norm, self.lm_head = nn.LayerNorm(config.hidden_size), nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, attention_mask, labels):
        position_ids = position_ids_of(attention_mask)
        hidden = self.embed_tokens(input_ids) + self.embed_positions(position_ids)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask.to(hidden.dtype))
        logits = self.lm_head(self.norm(hidden))
        losses = token_losses(logits, labels)
        return CausalOutput(loss=mean_of_labelled(losses, labels), logits=logits)


def make():
    torch.manual_seed(0)
    return HyenaForCausalLM(HyenaConfig())


def batch():
    """Two texts, the second with a quarter of padding on its left."""
    generator = torch.Generator().manual_seed(3)
    config = HyenaConfig()
    input_ids = torch.randint(1, config.vocab_size, (2, config.max_position), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, : config.max_position // 4] = 0
    input_ids = input_ids * attention_mask
    labels = torch.where(attention_mask.bool(), input_ids, -100).roll(-1, 1)
    labels[:, -1] = -100
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def loss(output):
    return output.loss


optimizer = None
