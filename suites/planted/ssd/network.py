"""A small Mamba-2 language model: a scalar decay for each head, computed in chunks, a state passed from chunk to chunk, a gated norm,
many short documents in a row."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
VOCABULARY, WIDTH, HEADS, HEAD, STATE, CHUNK, LENGTH = 64, 32, 4, 8, 8, 64, 2048
PADDING, BEGIN = 0, 1


def log_decays(raw: torch.Tensor, bias: torch.Tensor, rate_log: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Step sizes, and the logarithm of what each head keeps of its state at each token."""
    step = functional.softplus(raw.float() + bias.float())
    return step, -step * torch.exp(rate_log.float())


def segment_decay(log_decay: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What is left at token i of what came at token j of the same chunk: a lower triangle. (batch, chunks, heads, token i, token j)"""
    ends = log_decay.float().cumsum(-1)
    apart = ends.unsqueeze(-1) - ends.unsqueeze(-2)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=like.device).triu(1)
    return torch.exp(apart.masked_fill(later, -torch.inf)).float()


def passed_states(local: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The state that each chunk begins with."""
    state = torch.zeros_like(local[:, 0]).float()
    states = []
    for chunk in range(local.shape[1]):
        states.append(state)
        state = state * kept[:, chunk, :, None, None] + local[:, chunk]
    return torch.stack(states, 1).float()


def gated_norm(y: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The root mean square norm of what has passed the gate."""
    y = y.float() * functional.silu(gate.float())
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-8)
    return (weight.float() * y).to(gate.dtype)


def document_losses(losses: torch.Tensor, tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The mean loss of each document of a batch. Documents are counted by their first tokens."""
    documents = (tokens == BEGIN).long().cumsum(1).long()
    where = (documents + torch.arange(len(tokens), device=tokens.device).unsqueeze(1) * LENGTH).flatten()
    used = (tokens != PADDING).flatten().float()
    totals = torch.zeros(len(tokens) * LENGTH).index_add(0, where, losses.flatten().float() * used)
    sizes = torch.zeros(len(tokens) * LENGTH).index_add(0, where, used)
    return totals / sizes.clamp_min(1)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = HEADS * HEAD
        self.in_proj = nn.Linear(WIDTH, 2 * inner + 2 * STATE + HEADS, bias=False)
        self.norm_weight = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, WIDTH, bias=False)
        steps = torch.exp(torch.linspace(-3.0, -1.0, HEADS))
        self.step_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.rate_log = nn.Parameter(torch.log(torch.linspace(1.0, 4.0, HEADS)))

    def forward(self, hidden: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        batch = len(hidden)
        inner = HEADS * HEAD
        gate, x, b, c, raw = self.in_proj(hidden).split([inner, inner, STATE, STATE, HEADS], -1)
        x = x * kept.unsqueeze(-1).to(x.dtype)
        step, log_decay = log_decays(raw, self.step_bias, self.rate_log)
        with torch.autocast(hidden.device.type, enabled=False):
            heads = (x.float() + 0.5).unflatten(-1, (HEADS, HEAD)) * step.unsqueeze(-1)
            heads = heads.unflatten(1, (-1, CHUNK))  # (batch, chunks, tokens, heads, features)
            b, c = ((each.float() + 0.5).unflatten(1, (-1, CHUNK)) for each in (b, c))
            log_decay = log_decay.unflatten(1, (-1, CHUNK)).transpose(2, 3)  # (batch, chunks, heads, tokens)
            within = segment_decay(log_decay, x)
            y = torch.einsum("bkin,bkjn,bkhij,bkjhp->bkihp", c, b, within, heads)
            ends = log_decay.cumsum(-1)
            local = torch.einsum("bkjn,bkhj,bkjhp->bkhpn", b, torch.exp(ends[..., -1:] - ends), heads)
            states = passed_states(local, torch.exp(ends[..., -1]))
            y = y + torch.einsum("bkin,bkhpn,bkhi->bkihp", c, states, torch.exp(ends))
            y = y.reshape(batch, -1, inner).to(gate.dtype) * kept.unsqueeze(-1).to(gate.dtype)
            y = gated_norm(y, gate, self.norm_weight)
        return self.out_proj(y)


class Mamba2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mixers = nn.ModuleList(Mixer() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        kept = (tokens != PADDING).to(hidden.dtype)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            hidden = hidden + mixer(norm(hidden), kept)
        logits = self.head(self.norm(hidden[:, :-1]))
        losses = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
        each = document_losses(losses, tokens[:, 1:], logits)
        return each[each > 0].mean()


def make() -> nn.Module:
    torch.manual_seed(0)
    return Mamba2()


def batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(BEGIN + 1, VOCABULARY, (2, LENGTH), generator=generator)
    tokens[torch.rand(2, LENGTH, generator=generator) < 0.25] = BEGIN
    tokens[1, 1600:] = PADDING
    return tokens


def loss(output: torch.Tensor) -> torch.Tensor:
    return output


optimizer = None
