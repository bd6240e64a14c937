"""A Perceiver in the manner of lucidrains: small functions, einsum, latents that read pixels through Fourier features."""

from math import log, pi

import torch
import torch.nn.functional as F
from torch import einsum, nn

STEPS = 1


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


def split_heads(t, h):
    return t.unflatten(-1, (h, -1)).transpose(1, 2)


def fourier_encode(x, max_freq, num_bands=6):
    """Sines and cosines of each coordinate, up to half the Nyquist frequency."""
    x = x.unsqueeze(-1)
    orig_x = x
    scales = torch.logspace(0.0, log(max_freq / 2) / log(10), num_bands, dtype=torch.float32, device=x.device)
    x = x * scales * pi
    x = torch.cat((x.sin(), x.cos()), dim=-1)
    return torch.cat((x, orig_x), dim=-1)


def l2norm(t):
    return F.normalize(t.float(), dim=-1, eps=1e-6)


def entropy_of(attn):
    """How widely each latent looks: the entropy of its weights, as a share of the largest."""
    attn = attn.float()
    return -(attn * (attn + 1e-9).log()).sum(-1) / log(attn.shape[-1])


def relative_offsets(points):
    """Where each point stands from its row's centre, in radii."""
    points = points.float()
    centered = points - points.mean(1, keepdim=True)
    return centered / centered.norm(dim=-1).amax(1)[:, None, None]


class PreNorm(nn.Module):
    def __init__(self, dim, fn, context_dim=None):
        super().__init__()
        self.fn, self.norm = fn, nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(context_dim) if exists(context_dim) else None

    def forward(self, x, **kwargs):
        if exists(self.norm_context):
            kwargs.update(context=self.norm_context(kwargs["context"]))
        return self.fn(self.norm(x), **kwargs)


class FeedForward(nn.Module):
    def __init__(self, dim, mult=2):
        super().__init__()
        self.to_hidden, self.to_out = nn.Linear(dim, dim * mult * 2), nn.Linear(dim * mult, dim)

    def forward(self, x):
        x, gates = self.to_hidden(x).chunk(2, dim=-1)
        return self.to_out(x * F.gelu(gates))


class Attention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=4, dim_head=16):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = default(context_dim, query_dim)
        self.heads, self.log_scale = heads, nn.Parameter(torch.tensor(log(10.0)))
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, x, context=None, mask=None):
        q = self.to_q(x)
        k, v = self.to_kv(default(context, x)).chunk(2, dim=-1)
        q, k, v = (split_heads(t, self.heads) for t in (q, k, v))
        q, k = map(l2norm, (q, k))
        with torch.autocast("cpu", enabled=False):
            sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.log_scale.float().exp()
        if exists(mask):
            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        self.last_attn = attn
        out = einsum("b h i j, b h j d -> b h i d", attn.to(v.dtype), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class Perceiver(nn.Module):
    def __init__(self, num_bands=6, max_freq=128.0, depth=2, channels=3, num_latents=12, latent_dim=32, num_classes=10):
        super().__init__()
        self.num_bands, self.max_freq = num_bands, max_freq
        input_dim = 2 * (2 * num_bands + 1) + channels
        self.latents = nn.Parameter(torch.randn(num_latents, latent_dim) * 0.5)
        cross = PreNorm(latent_dim, Attention(latent_dim, input_dim), context_dim=input_dim)
        self.layers = nn.ModuleList(
            nn.ModuleList([cross, PreNorm(latent_dim, FeedForward(latent_dim)), PreNorm(latent_dim, Attention(latent_dim)),
                           PreNorm(latent_dim, FeedForward(latent_dim))]) for _ in range(depth)
        )  # fmt: skip
        self.to_logits = nn.Sequential(nn.LayerNorm(latent_dim), nn.Linear(latent_dim, num_classes))

    def forward(self, data, points, mask):
        dtype = self.latents.dtype
        where = relative_offsets(points)
        enc = fourier_encode(where, self.max_freq, self.num_bands).flatten(2)
        context = torch.cat((data.to(dtype), enc.to(dtype)), dim=-1)
        x = self.latents.expand(len(data), -1, -1)
        spread = 0.0
        for cross_attn, cross_ff, self_attn, self_ff in self.layers:
            x = cross_attn(x, context=context, mask=mask) + x
            spread = spread + entropy_of(cross_attn.fn.last_attn).mean()
            x = cross_ff(x) + x
            x = self_attn(x) + x
            x = self_ff(x) + x
        return self.to_logits(x.mean(dim=1)), spread, where


def make():
    torch.manual_seed(0)
    return Perceiver()


def batch():
    """Four clouds of 120 coloured points some way off from the origin; the last third of one of them is padding."""
    g = torch.Generator().manual_seed(5)
    points = torch.randint(0, 64, (4, 120, 2), generator=g) + 200
    mask = torch.ones(4, 120, dtype=torch.bool)
    mask[1, 80:] = False
    return torch.rand(4, 120, 3, generator=g), points, mask


def loss(output):
    logits, spread, _ = output
    labels = torch.tensor([1, 3, 5, 7])
    return F.cross_entropy(logits.float(), labels, label_smoothing=0.1) + 0.1 * spread


optimizer = None
