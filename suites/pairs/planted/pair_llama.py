"""A decoder as Llama's and Gemma's are: grouped heads, rotary positions, a gated layer, capped scores, windows, left padding, a cache."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, spread
from torch import nn

W, H, G, D, V, T = 32, 4, 2, 8, 40, 12
WINDOW, CAP = 5, 8.0


class RMSNorm(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(W)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)).to(x.dtype)


class Rotary(nn.Module):
    inv_freq: torch.Tensor

    def __init__(self, base: float = 100.0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, D, 2).float() / D), persistent=False)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[..., None].float() * self.inv_freq.float()
        angles = torch.cat([angles, angles], -1)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(W, H * D, bias=False), nn.Linear(H * D, W, bias=False)
        self.k_proj, self.v_proj = nn.Linear(W, G * D, bias=False), nn.Linear(W, G * D, bias=False)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, D)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(q, cos, sin), turned(k, cos, sin).repeat_interleave(H // G, 1)
        scores = torch.tanh(q @ k.transpose(2, 3) / math.sqrt(D) / CAP) * CAP
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        weights = scores.float().softmax(-1).to(q.dtype)
        return self.o_proj((weights @ v.repeat_interleave(H // G, 1)).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(W, 48, bias=False), nn.Linear(W, 48, bias=False)
        self.down_proj = nn.Linear(48, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(), Attention()
        self.post_attention_layernorm, self.mlp = RMSNorm(), MLP()

    def forward(self, x: torch.Tensor, seen: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), seen, cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


def visible(mask: torch.Tensor, window: int = WINDOW, shift: int = 0) -> torch.Tensor:
    """Which key each query sees, (batch, 1, length, length): none of the future, of the padding, or before its window."""
    place = torch.arange(mask.shape[1])
    near = (place[:, None] + shift >= place) & (place[:, None] - place < window)
    return (near & mask[:, None, :].bool() | torch.eye(len(place), dtype=torch.bool))[:, None]


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.rotary = nn.Embedding(V, W), Rotary()
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(2)), RMSNorm()
        self.lm_head = nn.Linear(W, V, bias=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(input_ids) * math.sqrt(W)
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        cos, sin = self.rotary(positions, x.dtype)
        for layer in self.layers:
            x = layer(x, visible(attention_mask), cos, sin)
        return self.lm_head(self.norm(x))


class Mixer(nn.Module):
    """Attention of other, with one product for queries, keys and values; a key or value head at a time instead of repeated ones."""

    def __init__(self, source: Attention, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.wqkv, self.wo = nn.Linear(W, (H + 2 * G) * D, bias=False), nn.Linear(H * D, W, bias=False)
        self.wqkv.weight.data.copy_(torch.cat([source.q_proj.weight, source.k_proj.weight, source.v_proj.weight]).detach())
        self.wo.weight.data.copy_(source.o_proj.weight.detach().t() if ways.get("transposed") else source.o_proj.weight.detach())

    def forward(self, x: torch.Tensor, seen: torch.Tensor, angles: torch.Tensor, past: dict[str, torch.Tensor] | None) -> torch.Tensor:
        ways = self.ways
        q, k, v = (each.unflatten(-1, (-1, D)).transpose(1, 2) for each in self.wqkv(x).split([H * D, G * D, G * D], -1))
        q, k = self.rotated(q, angles), (k if ways.get("unturned") else self.rotated(k, angles))
        if past is not None:
            past["k"] = k = torch.cat([past["k"], k], 2) if past else k
            past["v"] = v = torch.cat([past["v"], v], 2) if "v" in past else v
        scale = 1 / math.sqrt(W) if ways.get("wide_scale") else D**-0.5
        grouped = q.view(len(q), H // G, G, -1, D).transpose(1, 2) if ways.get("interleaved_heads") else q.unflatten(1, (G, H // G))
        scores = torch.einsum("bghqd,bgkd->bghqk", grouped * scale, k)
        if not ways.get("uncapped"):
            scores = CAP * torch.tanh(scores / (ways.get("cap", CAP)))
        weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
        mixed = torch.einsum("bghqk,bgkd->bghqd", weights.to(v.dtype), v)
        mixed = mixed.transpose(1, 2) if ways.get("interleaved_heads") else mixed
        return self.wo(mixed.flatten(1, 2).transpose(1, 2).flatten(2))

    def rotated(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
        if self.ways.get("interleaved"):
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(3)
        a, b = x.chunk(2, -1)
        if self.ways.get("backward"):
            sin = -sin
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Gated(nn.Module):
    def __init__(self, source: MLP, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.w13, self.w2 = nn.Linear(W, 96, bias=False), nn.Linear(48, W, bias=False)
        self.w13.weight.data.copy_(torch.cat([source.gate_proj.weight, source.up_proj.weight]).detach())
        self.w2.weight.data.copy_(source.down_proj.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.w13(x).chunk(2, -1)
        if self.ways.get("swapped"):
            gate, up = up, gate
        opened = F.gelu(gate) if self.ways.get("act") == "gelu" else gate * torch.sigmoid(gate)
        return self.w2(opened if self.ways.get("ungated") else opened * up)


class Step(nn.Module):
    def __init__(self, source: Layer, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.first, self.second = RMSNorm(ways.get("eps", 1e-6)), RMSNorm(ways.get("eps", 1e-6))
        self.first.load_state_dict(source.input_layernorm.state_dict())
        self.second.load_state_dict(source.post_attention_layernorm.state_dict())
        self.mixer, self.gated = Mixer(source.self_attn, **ways), Gated(source.mlp, **ways)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, angles: torch.Tensor, past: dict[str, torch.Tensor] | None) -> torch.Tensor:
        mixed = self.mixer(self.first(x), seen, angles, past)
        if self.ways.get("parallel"):
            return x + mixed + self.gated(self.second(x))
        x = mixed if self.ways.get("unresidual") else x + mixed
        return x + self.gated(self.second(x))


class Port(nn.Module):
    """`bad` are ways of the second layer alone; `cached` decodes a token at a time, `prefill` so many at first."""

    def __init__(self, source: Llama, bad: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.embedding, self.final, self.head = nn.Embedding(V, W), RMSNorm(ways.get("eps", 1e-6)), nn.Linear(W, V, bias=False)
        for ours, theirs in ((self.embedding, source.embed_tokens), (self.final, source.norm), (self.head, source.lm_head)):
            ours.load_state_dict(theirs.state_dict())
        self.steps = nn.ModuleList(Step(layer, **{**ways, **((bad or {}) if place else {})}) for place, layer in enumerate(source.layers))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        positions = torch.arange(T)[None] if ways.get("absolute") else (attention_mask.cumsum(1) - 1).clamp(min=0)
        angles = positions[..., None].float() * ways.get("base", 100.0) ** (-torch.arange(0, D, 2).float() / D)
        seen = visible(torch.ones_like(attention_mask) if ways.get("unmasked") else attention_mask, ways.get("window", WINDOW), ways.get("shift", 0))
        if ways.get("mask_off"):
            seen = seen & visible(attention_mask.roll(1, 1)) | torch.eye(T, dtype=torch.bool)
        if not ways.get("cached"):
            return self.decoded(input_ids, seen, angles, [None] * 2)
        past: list[Any] = [{}, {}]
        cuts = [slice(0, ways["cached"]), *(slice(place, place + 1) for place in range(ways["cached"], T))]
        offset = ways.get("offset", 0)
        given = [self.decoded(input_ids[:, cut], seen[:, :, cut, : cut.stop], self.at(angles, cut, offset), past) for cut in cuts]
        return torch.cat(given, 1)

    def at(self, angles: torch.Tensor, cut: slice, offset: int) -> torch.Tensor:
        return angles[:, cut] if cut.start == 0 or not offset else angles[:, cut.start - offset : cut.stop - offset]

    def decoded(self, tokens: torch.Tensor, seen: torch.Tensor, angles: torch.Tensor, past: list[Any]) -> torch.Tensor:
        x = self.embedding(tokens) * (1.0 if self.ways.get("unscaled") else math.sqrt(W))
        for step, kept in zip(self.steps, past, strict=True):
            x = step(x, seen, angles, kept)
        return self.head(self.final(x[:, :-1] if self.ways.get("short") else x))


def loss(given: torch.Tensor, mask: torch.Tensor, **ways: Any) -> Any:
    """Cross-entropy over tokens that are no padding. `over` sums over those and divides by all; `late` forgets the shift."""

    def taken(logits: torch.Tensor) -> torch.Tensor:
        labels = given.masked_fill(mask == 0, -100)[:, 1:]
        return F.cross_entropy(logits[:, : labels.shape[1]].flatten(0, 1).float(), labels.flatten(), ignore_index=-100)

    return taken


def pair(match: dict[str, str] | None = None, **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Llama())
    given, mask = torch.randint(0, V, (3, T)), torch.ones(3, T, dtype=torch.long)
    mask[1, :4], mask[2, :1] = 0, 0
    assert isinstance(model, Llama)
    return model, Port(model, **ways), {"input_ids": given, "attention_mask": mask}, {"loss": loss(given, mask), "match": match}


class Training(nn.Module):
    """The model with its own loss, in one of several forms."""

    def __init__(self, inner: Llama, form: str) -> None:
        super().__init__()
        self.inner, self._form = inner, form

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits = self.inner(input_ids, attention_mask)[:, :-1].float()
        labels, counted = input_ids[:, 1:], attention_mask[:, 1:].float()
        if self._form == "ignored":
            return F.cross_entropy(logits.flatten(0, 1), labels.masked_fill(counted == 0, -100).flatten())
        if self._form == "shift":
            labels, counted = input_ids[:, :-1], attention_mask[:, :-1].float()
        each = -logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        if self._form == "padding":
            return each.mean()
        if self._form == "rows":
            return ((each * counted).sum(1) / counted.sum(1)).mean()
        if self._form == "sum":
            return (each * counted).sum()
        if self._form == "twice":
            return (each * counted).sum() / counted.sum() / len(logits)
        return (each * counted).sum() / counted.sum()


def losses(form: str) -> Made:
    model, _, inputs, _ = pair()
    return Training(model, "ignored"), Training(model, form), inputs, {"loss": lambda out: out}


NAMES = {"steps": "layers", "steps.0.mixer": "layers.0.self_attn", "steps.0.gated": "layers.0.mlp"}

healthy("llama", "one product for queries, keys, values; another for both of the gated layer", pair)
healthy("llama", "the same, with names mapped", lambda: pair(NAMES))
healthy("llama", "a token at a time with a cache", lambda: pair(cached=1))
healthy("llama", "a prefill and a token at a time", lambda: pair(cached=7))
healthy("llama", "positions that count the padding, where distances alone matter", lambda: pair(absolute=True))
healthy("llama", "the loss written by hand", lambda: losses("plain"))
broken("llama", "mask off by one under left padding", lambda: pair(mask_off=True), "steps.0.mixer", "", said="mask")
broken("llama", "padding seen", lambda: pair(unmasked=True), "steps.0.mixer", "", said="mask")
broken("llama", "cache position one behind", lambda: pair(cached=7, offset=1), "steps.0.mixer", "", "steps.0")
broken("llama", "a window of one more", lambda: pair(window=6), "steps.0.mixer", "", said="mask")
broken("llama", "the future seen by one", lambda: pair(shift=1), "steps.0.mixer", "", said="mask")
broken("llama", "last token dropped", lambda: pair(short=True), "", "final", said="shape")
broken("llama", "rotary pairs interleaved", lambda: pair(bad={"interleaved": True}), "steps.1.mixer")
broken("llama", "rotary angles backward", lambda: pair(bad={"backward": True}), "steps.1.mixer")
broken("llama", "another base", lambda: pair(base=110.0), "steps.0.mixer", "")
broken("llama", "keys not turned", lambda: pair(bad={"unturned": True}), "steps.1.mixer")
broken("llama", "scale by the width of the model", lambda: pair(bad={"wide_scale": True}), "steps.1.mixer", said="0.5 times")
broken("llama", "grouped heads in another order", lambda: pair(bad={"interleaved_heads": True}), "steps.1.mixer")
broken("llama", "no cap", lambda: pair(bad={"uncapped": True}), "steps.1.mixer")
broken("llama", "another cap", lambda: pair(bad={"cap": 10.0}), "steps.1.mixer", said="0.8 times")
broken("llama", "gate and up swapped", lambda: pair(bad={"swapped": True}), "steps.1.gated")
broken("llama", "gelu for silu", lambda: pair(bad={"act": "gelu"}), "steps.1.gated")
broken("llama", "not gated", lambda: pair(bad={"ungated": True}), "steps.1.gated")
broken("llama", "output weights transposed", lambda: pair(bad={"transposed": True}), "steps.1.mixer.wo")
broken("llama", "residual dropped", lambda: pair(bad={"unresidual": True}), "steps.1")
broken("llama", "attention and gated layer in parallel", lambda: pair(bad={"parallel": True}), "steps.1")
broken("llama", "embedding not scaled", lambda: pair(unscaled=True), "", said="0.176777 times")
broken("llama", "loss over padding", lambda: losses("padding"), "")
broken("llama", "loss by row, then over rows", lambda: losses("rows"), "")
broken("llama", "labels not shifted", lambda: losses("shift"), "")
broken("llama", "loss a sum", lambda: losses("sum"), "", said="times")
broken("llama", "loss divided twice", lambda: losses("twice"), "", said="0.333333 times")
