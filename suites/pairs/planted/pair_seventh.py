"""A seventh batch, committed before the judge has seen any of it: latents that read tokens, and layers with a memory beside attention.

Faults as ports have them: padding that is read, a context without its norm, a memory that decays after it was written.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, language_loss, spread
from torch import nn
from torch.utils.checkpoint import checkpoint

W, HEADS, SIZE, WORDS, WIDTH = 24, 3, 8, 17, 10


def heads_of(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)


class Reading(nn.Module):
    """Latents ask, tokens answer."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.asking, self.context = ways, nn.LayerNorm(W), nn.LayerNorm(WIDTH)
        self.q, self.kv, self.out = nn.Linear(W, W), nn.Linear(WIDTH, 2 * W), nn.Linear(W, W)

    def forward(self, latents: torch.Tensor, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        ways, q = self.ways, heads_of(self.q(self.asking(latents)))
        k, v = (heads_of(part) for part in self.kv(x if ways.get("bare") else self.context(x)).chunk(2, -1))
        if ways.get("swapped"):
            k, v = v, k
        hidden = torch.zeros_like(seen[:, None, None]) if ways.get("all") else ~seen[:, None, None]
        scale = 1 / math.sqrt(W if ways.get("wide") else SIZE)
        if ways.get("form") == "einsum":
            scores = torch.einsum("bhnd,bhtd->bhnt", q * scale, k).float().masked_fill(hidden, -math.inf)
            made = torch.einsum("bhnt,bhtd->bhnd", scores.softmax(-1).to(v.dtype), v)
        elif ways.get("form") == "chunks":
            most, total, sums = torch.full_like(q[..., :1], -1e30, dtype=torch.float32), 0.0, 0.0
            for keys, values, covered in zip(k.split(4, 2), v.split(4, 2), hidden.split(4, -1), strict=True):
                scores = (q.float() @ keys.float().mT * scale).masked_fill(covered, -math.inf)
                now = torch.maximum(most, scores.detach().amax(-1, keepdim=True))
                kept, powers = (most - now).exp(), (scores - now).exp()
                total, sums, most = total * kept + powers.sum(-1, keepdim=True), sums * kept + powers @ values.float(), now
            made = (sums / total).to(v.dtype)
        else:
            made = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden, scale=scale)
        return latents + self.out(made.transpose(1, 2).flatten(2))


class Thinking(nn.Module):
    """A block on latents alone."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.norm1, self.norm2, self.qkv, self.out = ways, nn.LayerNorm(W), nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.up, self.down = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def attended(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(part) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        if self.ways.get("form"):
            made = (q @ k.mT / math.sqrt(SIZE)).float().softmax(-1).to(v.dtype) @ v
        else:
            made = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(made.transpose(1, 2).flatten(2))

    def fed(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attended(self.fed(x)) if self.ways.get("turned") else self.fed(self.attended(x))


class Latents(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        form = {"form": ways.get("form")}
        self.ways, self.latents = ways, nn.Parameter(torch.randn(5, W))
        self.read, self.blocks = Reading(**ways), nn.ModuleList([Thinking(**form), Thinking(**ways)])
        self.head = nn.Linear(W, 4)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        latents = (self.latents.detach() if self.ways.get("still") else self.latents).expand(len(x), -1, -1)
        y = self.read(latents, x, seen)
        for block in self.blocks:
            y = checkpoint(block, y, use_reentrant=False) if self.ways.get("saved") else block(y)
        y = self.head(y)
        return y[:, 0] if self.ways.get("first") else y.mean(1)


def latents(compiled: bool = False, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Latents()), Latents(**{"form": "einsum", **ways})
    other.load_state_dict(model.state_dict())
    seen = torch.arange(11) < torch.tensor([[11], [6], [9]])
    return model, torch.compile(other) if compiled else other, (torch.randn(3, 11, WIDTH), seen), MEAN


class Memory(nn.Module):
    """A matrix for each head that is corrected at each step, and decays."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.qkv, self.rates, self.out = ways, nn.Linear(W, 3 * W, bias=False), nn.Linear(W, 2 * HEADS), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        ways = self.ways
        q, k, v = (heads_of(part).float() for part in self.qkv(x).chunk(3, -1))
        rates = self.rates(x).float().transpose(1, 2)
        kept, written = (-F.softplus(rates[:, :HEADS])).exp(), rates[:, HEADS:].sigmoid()
        if not ways.get("unnormed"):
            k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
        memory = torch.zeros(len(x), HEADS, SIZE, SIZE) if state is None else state
        made = []
        for step in range(x.shape[1]):
            now_k, now_v, keep, write = k[:, :, step], v[:, :, step], kept[:, :, step, None, None], written[:, :, step, None]
            if ways.get("reset") and step % 4 == 0:
                memory = torch.zeros_like(memory)
            if ways.get("cut"):
                memory = memory.detach()
            if ways.get("form") == "other" and not ways.get("late"):
                turn = torch.eye(SIZE) - (write * now_k)[..., None] * now_k[..., None, :]
                memory = turn @ (keep * memory) + (write * now_k)[..., None] * now_v[..., None, :]
            else:
                memory = memory if ways.get("late") else keep * memory
                lacking = now_v - torch.einsum("bhk,bhkv->bhv", now_k, memory)
                memory = memory + torch.einsum("bhk,bhv->bhkv", now_k, write * lacking)
                memory = keep * memory if ways.get("late") else memory
            made.append((q[:, :, step, None] @ memory)[:, :, 0])
        return self.out(torch.stack(made, 1).flatten(2).to(x.dtype)), memory


class Looking(nn.Module):
    """Causal attention whose queries and keys are normalised."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.qkv, self.out = ways, nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W)
        self.q_norm, self.k_norm = nn.RMSNorm(SIZE, eps=1e-6), nn.RMSNorm(SIZE, eps=1e-6)

    def forward(self, x: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        q, k, v = (heads_of(part) for part in self.qkv(x).chunk(3, -1))
        if self.ways.get("norms"):
            q, k = self.k_norm(q), self.q_norm(k)
        else:
            q, k = q if self.ways.get("bare") else self.q_norm(q), self.k_norm(k)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        later = torch.ones(q.shape[2], k.shape[2]).triu(k.shape[2] - q.shape[2] + 1).bool()
        made = (q @ k.mT / math.sqrt(SIZE)).float().masked_fill(later, -math.inf).softmax(-1).to(v.dtype) @ v
        held = (k[:, :, -5:], v[:, :, -5:]) if self.ways.get("short") else (k, v)
        return self.out(made.transpose(1, 2).flatten(2)), held


class Hybrid(nn.Module):
    def __init__(self, at: int = 0, **ways: Any) -> None:
        super().__init__()
        form = {"form": ways.get("form")}
        self.ways, self.words, self.norms = ways, nn.Embedding(WORDS, W), nn.ModuleList(nn.RMSNorm(W, eps=1e-6) for _ in range(4))
        self.mixers = nn.ModuleList(kind(**(ways if number == at else form)) for number, kind in enumerate((Memory, Looking, Memory)))
        self.head = nn.Linear(W, WORDS, bias=False)

    def piece(self, tokens: torch.Tensor, states: list[Any]) -> torch.Tensor:
        x = self.words(tokens)
        for number, mixer in enumerate(self.mixers):
            y, states[number] = mixer(self.norms[number](x), states[number])
            x = x + y
        return self.head(self.norms[3](x))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        pieces, states = tokens.split(self.ways.get("pieces", tokens.shape[1]), 1), [None] * 3
        return torch.cat([self.piece(each, states) for each in pieces], 1)


def hybrid(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Hybrid()), Hybrid(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(0, WORDS, (2, 9))
    return model, other, tokens, {"loss": language_loss(tokens)}


healthy("latents", "einsum for torch's attention", latents)
healthy("latents", "tokens in chunks, blocks recomputed", lambda: latents(form="chunks", saved=True))
healthy("latents", "compiled", lambda: latents(compiled=True))
broken("latents", "padding read", lambda: latents(all=True), "read")
broken("latents", "no norm of the context", lambda: latents(bare=True), "read", "read.kv")
broken("latents", "keys and values swapped", lambda: latents(swapped=True), "read")
broken("latents", "scaled by the width", lambda: latents(wide=True), "read")
broken("latents", "latents that do not learn", lambda: latents(still=True), "")
broken("latents", "fed before it attends", lambda: latents(turned=True), "blocks.1")
broken("latents", "the first latent for their mean", lambda: latents(first=True), "")
broken("latents", "compiled, keys and values swapped", lambda: latents(compiled=True, swapped=True), "read")
healthy("memory", "a matrix for each step", hybrid)
healthy("memory", "a token at a time", lambda: hybrid(pieces=1))
healthy("memory", "four tokens at a time", lambda: hybrid(pieces=4, form=None))
broken("memory", "decays after it is written", lambda: hybrid(late=True), "mixers.0")
broken("memory", "keys not normalised", lambda: hybrid(unnormed=True, at=2), "mixers.2")
broken("memory", "reset every four steps", lambda: hybrid(reset=True), "mixers.0")
broken("memory", "no gradient through the memory", lambda: hybrid(cut=True, at=2), "mixers.2", "mixers.2.qkv", "mixers.2.rates")
healthy("memory", "norms of queries and keys swapped, whose weights meet in a product", lambda: hybrid(norms=True, at=1))
broken("memory", "queries not normalised", lambda: hybrid(bare=True, at=1), "mixers.1")
broken("memory", "a cache of five", lambda: hybrid(short=True, at=1, pieces=1), "mixers.1", "")
