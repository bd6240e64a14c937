"""A small DeepSeek: latent attention with YaRN, experts that are balanced by a bias, two tokens predicted at once."""

import math

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 1
VOCAB, DIM, HEADS, NOPE, ROPE, LATENT, EXPERTS, TOP_K, T, SLOTS = 97, 48, 4, 8, 16, 24, 4, 2, 160, 640


def working_dtype(x):
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def yarn_frequencies(theta=10000.0, factor=4.0, original=256, fast=32.0, slow=1.0):
    """Inverse wave lengths: fast waves as they were trained, slow ones stretched, those between them mixed."""
    exponents = torch.arange(0, ROPE, 2, dtype=torch.float32) / ROPE
    inv_freq = theta**-exponents
    turns = original * inv_freq / (2 * math.pi)
    keep = ((turns - slow) / (fast - slow)).clamp(0, 1)
    return inv_freq / factor * (1 - keep) + inv_freq * keep


def tables(positions, low):
    """Cosines and sines of each position. positions: whole numbers, [B, T]."""
    angles = positions.float()[..., None] * yarn_frequencies()
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """Rotates the pairs of the last dimension. x: [B, H, T, ROPE]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return wide.to(x.dtype) * self.weight


class LatentAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(DIM, HEADS * (NOPE + ROPE), bias=False)
        self.kv_down, self.kv_norm = nn.Linear(DIM, LATENT + ROPE, bias=False), RMSNorm(LATENT)
        self.kv_up, self.out = nn.Linear(LATENT, HEADS * 2 * NOPE, bias=False), nn.Linear(HEADS * NOPE, DIM, bias=False)

    def forward(self, x, cos, sin):
        q_nope, q_rope = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).split([NOPE, ROPE], -1)
        latent, k_rope = self.kv_down(x).split([LATENT, ROPE], -1)
        k_nope, v = self.kv_up(self.kv_norm(latent)).unflatten(-1, (HEADS, -1)).transpose(1, 2).split([NOPE, NOPE], -1)
        q = torch.cat([q_nope, rotate(q_rope, cos, sin)], -1)
        k = torch.cat([k_nope, rotate(k_rope[:, None], cos, sin).expand(-1, HEADS, -1, -1)], -1)
        scores = (q @ k.transpose(-1, -2)).float() * (NOPE + ROPE) ** -0.5
        scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), float("-inf"))
        weights = scores.softmax(-1)
        return self.out((weights.to(v.dtype) @ v).transpose(1, 2).flatten(2))


def gates(scores, bias):
    """The experts of each token and their weights. The bias decides who is chosen, and weighs nothing."""
    chosen = (scores + bias).topk(TOP_K, -1).indices
    picked = scores.gather(-1, chosen)
    return picked / (picked.sum(-1, keepdim=True) + 1e-9), chosen


def queue_places(chosen, low):
    """How many tokens have come to the same expert before. chosen: [tokens, TOP_K]."""
    taken = F.one_hot(chosen.flatten(), EXPERTS)
    return ((taken.cumsum(0) - 1) * taken).sum(-1)


def dispatched(tokens, chosen, places):
    """The tokens of each expert in the order in which they came. Returns [EXPERTS, SLOTS, DIM]."""
    slots = tokens.new_zeros(EXPERTS, SLOTS, DIM)
    slots[chosen.flatten(), places] = tokens.repeat_interleave(TOP_K, 0)
    return slots


def imbalance(chosen, low):
    """How far the share of each expert is from what it should be."""
    shares = torch.bincount(chosen.flatten(), minlength=EXPERTS).float() / chosen.numel()
    return shares - 1 / EXPERTS


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(EXPERTS, DIM, DIM) / 7), nn.Parameter(torch.randn(EXPERTS, DIM, DIM) / 7)
        self.register_buffer("bias", torch.linspace(0.5, 0.5, EXPERTS))

    def forward(self, x, low):
        tokens = x.flatten(0, 1)
        weights, chosen = gates(self.router(tokens).float().sigmoid(), self.bias.float())
        places = queue_places(chosen, low).long()
        hidden = F.silu(torch.bmm(dispatched(tokens, chosen, places), self.up))
        picked = torch.bmm(hidden, self.down)[chosen.flatten(), places].view(-1, TOP_K, DIM)
        return (picked * weights.to(x.dtype)[..., None]).sum(1).view_as(x), imbalance(chosen, low)


def log_partition(logits, low):
    """The logarithm of what the softmax divides by, for the penalty on it."""
    return torch.logsumexp(logits.float(), -1)


def averaged(losses, low):
    """The mean of the tokens' losses."""
    return losses.float().mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.norms = nn.ModuleList(RMSNorm(DIM) for _ in range(3))
        self.attention, self.experts = LatentAttention(), Experts()
        self.head, self.next_head = nn.Linear(DIM, VOCAB, bias=False), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, positions):
        x = self.embed(ids)
        low = working_dtype(x)
        cos, sin = tables(positions, low)
        x = x + self.attention(self.norms[0](x), cos, sin)
        mixed, uneven = self.experts(self.norms[1](x), low)
        x = self.norms[2](x + mixed)
        with torch.autocast("cpu", enabled=False):
            logits, further = 16 * F.linear(x.float(), self.head.weight.float()), F.linear(x.float(), self.next_head.weight.float())
            log_z = log_partition(logits, low)
            main = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            second = F.cross_entropy(further[:, :-2].flatten(0, 1), ids[:, 2:].flatten(), reduction="none")
            loss = averaged(main, low) + 0.3 * averaged(second, low) + 1e-4 * log_z.square().mean()
        return {"loss": loss, "logits": logits, "uneven": uneven}


def make():
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        model.embed.weight[:, 5] = 2400.0  # one channel is far larger than the others, as in trained language models
        model.norms[0].weight[5] = model.norms[1].weight[5] = model.norms[2].weight[5] = 0.02
        for norm in model.norms:
            norm.weight[torch.arange(DIM) != 5] = 300.0
    return model


def batch():
    generator = torch.Generator().manual_seed(1)
    starts = torch.tensor([0, 310, 777, 1501])
    return {"ids": torch.randint(VOCAB, (4, T), generator=generator), "positions": starts[:, None] + torch.arange(T)}


def loss(output):
    return output["loss"]


optimizer = None
