"""An eighth batch, committed before the judge has seen any of it: keys and values from latents, experts beside a shared one, parallel blocks.

Faults as ports have them: a turn of what should stay, shares with the bias that only chooses, a cap that is left out.
One port could not run under autocast, and was mended.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, language_loss, spread
from torch import nn

W, HEADS, SIZE, TURNED, LATENT, WORDS, LENGTH = 24, 3, 8, 4, 10, 19, 9


def turned(x: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Pairs of halves turned by their place. Shape (..., length, even size)."""
    half = x.shape[-1] // 2
    angles = (torch.arange(x.shape[-2]) + first)[:, None] * 50.0 ** (-torch.arange(half) / half)
    one, two = x.float().chunk(2, -1)
    return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Latent(nn.Module):
    """Attention whose keys and values come from a small latent, beside a part of the keys that is turned and that all heads share."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.norm = ways, Norm(LATENT)
        self.q, self.down = nn.Linear(W, HEADS * (SIZE + TURNED), bias=False), nn.Linear(W, LATENT + TURNED, bias=False)
        self.up, self.out = nn.Linear(LATENT, HEADS * 2 * SIZE, bias=False), nn.Linear(HEADS * SIZE, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, length = self.ways, x.shape[1]
        q = self.q(x).unflatten(-1, (HEADS, SIZE + TURNED)).transpose(1, 2)
        latent, shared = self.down(x).split([LATENT, TURNED], -1)
        latent = latent if ways.get("unnormed") else self.norm(latent)
        still, moved = q.split([SIZE, TURNED], -1)
        moved = turned(moved, ways.get("late", 0))
        shared = (shared if ways.get("unturned") else turned(shared))[:, None]
        later = torch.ones(length, length).triu(1).bool()
        scale = 1 / math.sqrt(SIZE if ways.get("narrow") else SIZE + TURNED)
        if ways.get("form") == "absorbed":
            weight = self.up.weight.view(HEADS, 2 * SIZE, LATENT)
            asked = torch.einsum("bhts,hsl->bhtl", still, weight[:, :SIZE])
            scores = (asked @ latent[:, None].mT + moved @ shared.mT).float() * scale
            shares = scores.masked_fill(later, -math.inf).softmax(-1).to(x.dtype)
            made = torch.einsum("bhtl,hsl->bhts", shares @ latent[:, None], weight[:, SIZE:])
        else:
            k, v = self.up(latent).unflatten(-1, (HEADS, 2 * SIZE)).transpose(1, 2).chunk(2, -1)
            if ways.get("swapped"):
                k, v = v, k
            keys = torch.cat([k, shared.expand(-1, HEADS, -1, -1)], -1)
            scores = (torch.cat([still, moved], -1) @ keys.mT).float() * scale
            made = scores.masked_fill(later, -math.inf).softmax(-1).to(v.dtype) @ v
        return self.out(made.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """Two of four experts, chosen with a bias that has no part in their shares, and one that all tokens see."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.gate, self.bias = ways, nn.Linear(W, 4, bias=False), nn.Parameter(torch.zeros(4), requires_grad=False)
        self.experts, self.shared = nn.ModuleList([nn.Linear(W, W) for _ in range(4)]), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, flat = self.ways, x.flatten(0, -2)
        scores = self.gate(flat).float().sigmoid()
        chosen = (scores if ways.get("unbiased") else scores + self.bias).topk(2, -1).indices
        shares = (scores + self.bias if ways.get("biased") else scores).gather(-1, chosen)
        shares = shares if ways.get("raw") else shares / shares.sum(-1, keepdim=True)
        shares = (shares if ways.get("unscaled") else 1.5 * shares).to(x.dtype)
        if ways.get("form") == "sorted":
            order = chosen.flatten().argsort(stable=True)
            rows, counts = order // 2, chosen.flatten().bincount(minlength=4).tolist()
            parts = [F.silu(expert(some)) for expert, some in zip(self.experts, flat[rows].split(counts), strict=True)]
            weighed = torch.cat(parts) * shares.flatten()[order, None]
            made = weighed.new_zeros(flat.shape).index_add(0, rows, weighed)
        else:
            every = torch.stack([F.silu(expert(flat)) for expert in self.experts], 1)
            made = (every.gather(1, chosen[..., None].expand(-1, -1, W)) * shares[..., None]).sum(1)
        made = made if ways.get("alone") else made + self.shared(flat)
        return made.view(x.shape)


class Layer(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.norm, self.other = ways, Norm(W), Norm(W)
        self.attention, self.experts = Latent(**ways), Experts(**ways)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ways.get("beside"):
            return x + self.attention(self.norm(x)) + self.experts(self.other(x))
        x = x + self.attention(self.norm(x))
        return x + self.experts(self.other(x))


class Talker(nn.Module):
    def __init__(self, at: int = -1, **ways: Any) -> None:
        super().__init__()
        form = {"form": ways.pop("form", None)}
        self.ways, self.words = ways, nn.Embedding(WORDS, W)
        self.layers = nn.ModuleList([Layer(**form, **(ways if place == at or at < 0 else {})) for place in range(2)])
        self.norm, self.head = Norm(W), nn.Linear(W, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) * (1.0 if self.ways.get("small") else math.sqrt(W))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return logits if self.ways.get("uncapped") else 8 * (logits / 8).tanh()


def talker(form: str | None = None, std: float = 0.2, **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Talker(), std)
    for layer in model.layers:  # type: ignore[union-attr]
        layer.experts.bias.data.normal_(std=0.3)
    other = Talker(form=form, **ways)
    other.load_state_dict(model.state_dict())
    ids = torch.randint(0, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    return model, other, (ids,), {"loss": language_loss(ids)}


healthy("latent keys", "absorbed into the queries, experts one by one", lambda: talker("absorbed"))
healthy("latent keys", "experts in the order of their rows", lambda: talker("sorted"))
healthy("latent keys", "the same once more", talker)
broken("latent keys", "latents not normalised", lambda: talker("sorted", at=1, unnormed=True), "layers.1.attention", "layers.1.attention.up")
broken("latent keys", "queries turned by one more", lambda: talker("sorted", at=0, late=1), "layers.0.attention")
broken("latent keys", "shared keys not turned", lambda: talker("sorted", at=1, unturned=True), "layers.1.attention")
broken("latent keys", "scaled by the part that stays", lambda: talker("sorted", at=1, narrow=True), "layers.1.attention")
broken("latent keys", "keys and values swapped", lambda: talker(at=0, swapped=True), "layers.0.attention")
broken("latent keys", "absorbed, and scaled by the part that stays", lambda: talker("absorbed", at=0, narrow=True), "layers.0.attention")
broken("shared expert", "shares with the bias", lambda: talker("sorted", at=1, biased=True), "layers.1.experts")
broken("shared expert", "chosen without the bias", lambda: talker("sorted", at=1, unbiased=True), "layers.1.experts")
broken("shared expert", "shares that do not sum to one", lambda: talker("sorted", at=0, raw=True), "layers.0.experts")
broken("shared expert", "its scale left out", lambda: talker("absorbed", at=1, unscaled=True), "layers.1.experts")
broken("shared expert", "left out", lambda: talker("absorbed", at=0, alone=True), "layers.0.experts")
broken("shared expert", "beside the attention, not behind it", lambda: talker("sorted", at=1, beside=True), "layers.1", "layers.1.other")
broken("latent keys", "words not scaled", lambda: talker("sorted", small=True), "", "layers.0", "layers.0.norm")
broken("latent keys", "logits not capped", lambda: talker("absorbed", uncapped=True), "")
