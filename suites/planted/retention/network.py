"""A RetNet-like language model: a retention layer in chunks with rotated queries, then a layer of normalised linear attention, over 512 tokens."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
VOCABULARY, WIDTH, HEADS, LENGTH, CHUNK, SHORT = 96, 48, 3, 512, 64, 2
HEAD = WIDTH // HEADS


def decays(like: torch.Tensor) -> torch.Tensor:
    """What each head keeps from one token to the next: 1 - 2^-6, 1 - 2^-8, 1 - 2^-10."""
    exponents = -6 - 2 * torch.arange(HEADS, device=like.device, dtype=torch.float32)
    return 1 - torch.exp2(exponents)


def decay_powers(decay: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Each head's decay over a number of steps, none where that is negative."""
    powers = torch.exp(decay.float().log().view(-1, 1, 1) * steps.clamp(min=0))
    return powers * (steps >= 0)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotates pairs of channels by angles that grow with the position."""
    positions = torch.arange(LENGTH, device=x.device, dtype=torch.float32)
    frequencies = 100.0 ** -torch.linspace(0, 1, HEAD // 2, device=x.device, dtype=torch.float32)
    angles = positions.unsqueeze(-1) * frequencies
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def head_norm(heads: torch.Tensor) -> torch.Tensor:
    """Divides each head's output by its root mean square; the sums that retention makes have no scale of their own."""
    with torch.autocast(heads.device.type, enabled=False):
        heads = heads.float()
        return heads * torch.rsqrt((heads * heads).mean(-1, keepdim=True) + 1e-6)


def running_sums(parts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The sum of all parts before each, as a recurrent network carries it."""
    total = torch.zeros_like(parts[:, :, 0], dtype=torch.float32)
    sums = []
    for part in parts.unbind(2):
        sums.append(total)
        total = (total + part).to(total.dtype)
    return torch.stack(sums, 2).float()


class Heads(nn.Module):
    """The projections that both layers have."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x).unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value))


class Retention(Heads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.projected(x)
        query, key = rotated(query), rotated(key)
        query, key, value = (each.unflatten(2, (-1, CHUNK)) for each in (query, key, value))
        decay = decays(x)
        steps = torch.arange(CHUNK, device=x.device, dtype=torch.float32)
        inner = decay_powers(decay, steps.unsqueeze(-1) - steps).to(query.dtype)
        to_end = decay_powers(decay, CHUNK - 1 - steps.unsqueeze(-1)).to(key.dtype)
        since = decay_powers(decay, steps.unsqueeze(-1) + 1).to(query.dtype)
        over = decay_powers(decay, steps[:1].view(1, 1) + CHUNK)
        state = torch.zeros(x.shape[0], HEADS, HEAD, HEAD, device=x.device)
        chunks = []
        for index in range(query.shape[2]):
            q, k, v = query[:, :, index], key[:, :, index], value[:, :, index]
            chunks.append((q @ k.transpose(-1, -2) * inner) @ v + (q * since) @ state.to(q.dtype))
            state = state * over + ((k * to_end).transpose(-1, -2) @ v).float()
        return self.out(head_norm(torch.cat(chunks, 2)).to(x.dtype).transpose(1, 2).flatten(2))


class LinearAttention(Heads):
    """Attention whose weights are products of positive features; short chunks, between which sums are carried."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.projected(x)
        query, key = (functional.elu(each) + 1 for each in (query, key))
        query, key, value = (each.unflatten(2, (-1, SHORT)) for each in (query, key, value))
        mask = torch.ones(SHORT, SHORT, device=x.device, dtype=query.dtype).tril()
        before = running_sums(torch.einsum("bhcsi,bhcsj->bhcij", key.float(), value.float()), query)
        norm_before = running_sums(key.float().sum(3), query)
        weights = query @ key.transpose(-1, -2) * mask
        numerator = (weights @ value).float() + torch.einsum("bhcsi,bhcij->bhcsj", query.float(), before)
        denominator = weights.float().sum(-1) + torch.einsum("bhcsi,bhci->bhcs", query.float(), norm_before)
        heads = (numerator / denominator.unsqueeze(-1)).to(x.dtype)
        return self.out(heads.flatten(2, 3).transpose(1, 2).flatten(2))


class RetNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.mixers = nn.ModuleList([Retention(), LinearAttention()])
        self.forwards = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH)) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for index, (mixer, feed) in enumerate(zip(self.mixers, self.forwards, strict=True)):
            hidden = hidden + mixer(self.norms[2 * index](hidden).to(self.dtype(hidden)))
            hidden = hidden + feed(self.norms[2 * index + 1](hidden))
        return self.head(hidden)

    @staticmethod
    def dtype(hidden: torch.Tensor) -> torch.dtype:
        """What the layers compute in: autocast's format, or else that of what is given."""
        kind = hidden.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def make() -> nn.Module:
    torch.manual_seed(0)
    model = RetNet()
    with torch.no_grad():  # keys and values have a common direction, as trained ones do, so that retention adds up
        model.norms[0].bias.fill_(1.0)
        for mixer in model.mixers:
            mixer.key.weight.mul_(2).add_(0.1)
            mixer.value.weight.add_(0.02)
            mixer.query.weight.add_(0.1)
    return model


def batch() -> torch.Tensor:
    return torch.randint(VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(1))


def loss(output: torch.Tensor) -> torch.Tensor:
    targets = torch.arange(LENGTH, device=output.device) % VOCABULARY
    return functional.cross_entropy(output.float().flatten(0, 1), targets)


optimizer = None
