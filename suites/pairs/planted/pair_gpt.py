"""A decoder as GPT-2's is: fused projections stored (in, out), learnt positions, gelu by tanh, a tied head."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, language_loss, spread
from torch import nn
from torch.utils.checkpoint import checkpoint

W, H, V, T = 32, 4, 40, 11


class Conv1D(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(n_in, n_out)), nn.Parameter(torch.zeros(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Attn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(W, 3 * W), Conv1D(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.view(len(x), -1, H, W // H).transpose(1, 2) for each in self.c_attn(x).split(W, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(W // H)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1) @ v
        return self.c_proj(mixed.transpose(1, 2).reshape(x.shape))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(W, 4 * W), Conv1D(4 * W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(W), Attn(), nn.LayerNorm(W), MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, W), nn.Embedding(T + 4, W)
        self.h, self.ln_f = nn.ModuleList(Layer() for _ in range(2)), nn.LayerNorm(W)
        self.lm_head = nn.Linear(W, V, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


class Norm(nn.Module):
    """By hand."""

    def __init__(self, source: nn.LayerNorm, **ways: Any) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(source.weight.detach().clone()), nn.Parameter(source.bias.detach().clone())
        self.eps, self.ways = ways.get("eps", source.eps), ways

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        variance, mean = torch.var_mean(wide, self.ways.get("axis", -1), keepdim=True, correction=self.ways.get("correction", 0))
        return ((wide - mean) * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.scale + self.shift


def linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """From weights stored (in, out)."""
    made = nn.Linear(*weight.shape, bias=bias is not None)
    made.weight.data.copy_(weight.detach().t())
    if bias is not None:
        made.bias.data.copy_(bias.detach())
    return made


class Port(nn.Module):
    """The same with separate projections, other names and torch's attention. `bad` are ways of the second block alone."""

    def __init__(self, source: GPT, bad: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.tokens, self.positions = nn.Embedding(V, W), nn.Embedding(T + 4, W)
        self.tokens.load_state_dict(source.wte.state_dict())
        self.positions.load_state_dict(source.wpe.state_dict())
        self.blocks = nn.ModuleList(Block(layer, **{**ways, **((bad or {}) if place else {})}) for place, layer in enumerate(source.h))
        self.last = Norm(source.ln_f, eps=ways.get("eps", 1e-5))
        if not ways.get("tied", True):
            self.head = nn.Parameter(source.wte.weight.detach().clone())

    def forward(self, tokens: torch.Tensor) -> Any:
        ways = self.ways
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]) + ways.get("start", 0))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if ways.get("saving") else block(x)
        x = self.last(x) if ways.get("normed", True) else x
        logits = F.linear(x, self.tokens.weight if ways.get("tied", True) else self.head)
        return Output(logits, x) if ways.get("named") else (logits, x) if ways.get("tuple") else logits


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor
    past: Any = None


class Block(nn.Module):
    def __init__(self, source: Layer, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.before, self.between = Norm(source.ln_1, **ways), Norm(source.ln_2, **ways)
        weights, offsets = source.attn.c_attn.weight.chunk(3, 1), source.attn.c_attn.bias.chunk(3)
        order = ways.get("order", (0, 1, 2))
        self.q, self.k, self.v = (linear(weights[each], offsets[each]) for each in order)
        self.out = linear(source.attn.c_proj.weight, None if ways.get("unbiased") else source.attn.c_proj.bias)
        self.wide, self.narrow = (linear(each.weight, each.bias) for each in (source.mlp.c_fc, source.mlp.c_proj))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.before(x)
        x = (given if self.ways.get("after") else x) + self.attended(given)
        if self.ways.get("detached"):
            x = x.detach()
        return x + self.fed(self.between(x))

    def attended(self, x: torch.Tensor) -> torch.Tensor:
        ways, length = self.ways, x.shape[1]
        q, k, v = (each(x).unflatten(-1, (H, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        if size := ways.get("chunk"):
            seen = torch.ones(length, length, dtype=torch.bool).tril()
            parts = [F.scaled_dot_product_attention(a, k, v, b) for a, b in zip(q.split(size, 2), seen.split(size), strict=True)]
            mixed = torch.cat(parts, 2)
        else:
            scale = 1.0 if ways.get("unscaled") else None
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=not ways.get("seeing"), scale=scale)
        if ways.get("unmerged"):
            return self.out(mixed.reshape(x.shape))
        return self.out(mixed.transpose(1, 2).flatten(2))

    def fed(self, x: torch.Tensor) -> torch.Tensor:
        wide, act = self.wide(x), self.ways.get("act", "written")
        if act == "written":
            return self.narrow(0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))))
        return self.narrow(F.gelu(wide, approximate=act) if act in ("tanh", "none") else F.relu(wide))


def pair(match: dict[str, str] | None = None, **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(GPT())
    given = torch.randint(0, V, (2, T))
    assert isinstance(model, GPT)
    return model, Port(model, **ways), given, {"loss": language_loss(given), "match": match}


def returning(**ways: Any) -> Made:
    """The reference gives a tuple, other a container by name."""
    torch.manual_seed(0)
    model = spread(GPT())
    given = torch.randint(0, V, (2, T))
    assert isinstance(model, GPT)
    return Port(model, tuple=True, act="tanh"), Port(model, named=True, **ways), given, {"loss": language_loss(given)}


def functional(**ways: Any) -> Made:
    """A function of the model's own weights."""
    torch.manual_seed(0)
    model = spread(GPT())
    given = torch.randint(0, V, (2, T))
    assert isinstance(model, GPT)

    def written(tokens: torch.Tensor) -> torch.Tensor:
        held = dict(model.named_parameters())
        x = F.embedding(tokens, held["wte.weight"]) + held["wpe.weight"][: tokens.shape[1]]
        for name in ("h.0", "h.1"):
            y = F.layer_norm(x, (W,), held[f"{name}.ln_1.weight"], held[f"{name}.ln_1.bias"])
            q, k, v = (y @ held[f"{name}.attn.c_attn.weight"] + held[f"{name}.attn.c_attn.bias"]).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + (mixed @ held[f"{name}.attn.c_proj.weight"] + held[f"{name}.attn.c_proj.bias"])
            y = F.layer_norm(x, (W,), held[f"{name}.ln_2.weight"], held[f"{name}.ln_2.bias"], ways.get("eps", 1e-5))
            y = F.gelu(y @ held[f"{name}.mlp.c_fc.weight"] + held[f"{name}.mlp.c_fc.bias"], approximate="tanh")
            x = x + (y @ held[f"{name}.mlp.c_proj.weight"] + held[f"{name}.mlp.c_proj.bias"]) * ways.get("times", 1.0)
        return F.linear(model.ln_f(x), held["wte.weight"])

    return model, written, given, {"loss": language_loss(given)}


NAMES = {"blocks": "h", "tokens": "wte", "positions": "wpe", "last.scale": "ln_f.weight", "last.shift": "ln_f.bias"}
PARTS = {f"blocks.{n}.{part}": f"h.{n}.attn.c_attn" for n in range(2) for part in "qkv"}
MAPPED = {"blocks.0": "h.0", "blocks.1": "h.1", **PARTS, **{f"blocks.{n}.out": f"h.{n}.attn.c_proj" for n in range(2)}}

healthy("gpt", "split projections, other names", pair)
healthy("gpt", "split projections, names mapped", lambda: pair(match=NAMES))
healthy("gpt", "split projections, each mapped to the fused one", lambda: pair(match=MAPPED))
healthy("gpt", "torch's gelu and attention", lambda: pair(act="tanh"))
healthy("gpt", "queries in chunks", lambda: pair(chunk=4))
healthy("gpt", "blocks recomputed", lambda: pair(saving=True))
healthy("gpt", "a container by name for a tuple", returning)
healthy("gpt", "a function of the model's own weights", functional)
broken("gpt", "gelu by erf", lambda: pair({"blocks": "h"}, bad={"act": "none"}), "blocks.1", said="")
broken("gpt", "relu for gelu", lambda: pair(bad={"act": "relu"}), "blocks.1")
broken("gpt", "no scale", lambda: pair(bad={"unscaled": True}), "blocks.1", said="2.82843 times")
broken("gpt", "no causal mask", lambda: pair(bad={"seeing": True}), "blocks.1", said="mask")
broken("gpt", "heads not turned back", lambda: pair(bad={"unmerged": True}), "blocks.1")
broken("gpt", "keys and values swapped", lambda: pair(bad={"order": (0, 2, 1)}), "blocks.1", "blocks.1.k", "blocks.1.v")
broken("gpt", "bias of the projection dropped", lambda: pair(bad={"unbiased": True}), "blocks.1.out", said="no bias there")
broken("gpt", "positions from one on", lambda: pair(start=1), "", "positions")
broken("gpt", "eps 1e-6 in all norms", lambda: pair(eps=1e-6), "blocks.0.before", said="")
broken("gpt", "variance with Bessel's correction", lambda: pair(bad={"correction": 1}), "blocks.1.before")
broken("gpt", "norm along the sequence", lambda: pair(bad={"axis": 1}), "blocks.1.before")
broken("gpt", "last norm left out", lambda: pair(normed=False), "")
broken("gpt", "residual taken after the norm", lambda: pair(bad={"after": True}), "blocks.1")
broken("gpt", "residual detached", lambda: pair(bad={"detached": True}), "blocks.1")
broken("gpt", "head no longer tied", lambda: pair(tied=False), "")
broken("gpt", "eps in a function", lambda: functional(eps=1e-6), "")
broken("gpt", "a factor in a function", lambda: functional(times=0.5), "")


class Heads(nn.Module):
    """Projections of each head side by side, as NeoX's: queries, keys and values of the first head, then of the second."""

    def __init__(self, source: Attn, **ways: Any) -> None:
        super().__init__()
        self.qkv, self.dense, self.ways = nn.Linear(W, 3 * W), linear(source.c_proj.weight, source.c_proj.bias), ways
        self.qkv.weight.data.copy_(source.c_attn.weight.detach().t().unflatten(0, (3, H, -1)).transpose(0, 1).flatten(0, 2))
        self.qkv.bias.data.copy_(source.c_attn.bias.detach().unflatten(0, (3, H, -1)).transpose(0, 1).flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (3, H, -1) if self.ways.get("plain") else (H, 3, -1)
        q, k, v = self.qkv(x).unflatten(-1, shape).unbind(2 if self.ways.get("plain") else 3)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.dense(mixed.transpose(1, 2).flatten(2))


def by_heads(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, given = spread(GPT()), torch.randint(0, V, (2, T))
    other = GPT()
    other.load_state_dict(model.state_dict())
    other.h[1].attn = Heads(model.h[1].attn, **ways)  # type: ignore[index, union-attr, arg-type]
    return model, other, given, {"loss": language_loss(given)}


healthy("gpt", "projections by head", by_heads)
broken("gpt", "projections by head read as if they were not", lambda: by_heads(plain=True), "h.1.attn")
