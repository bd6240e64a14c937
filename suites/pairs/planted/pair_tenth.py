"""A tenth batch, committed before the judge has seen any of it: models of transformers and adapters of peft beside ports of other repositories.

Faults as such ports have them: shares that are not normalised, a norm without its one, the last token pooled, adapters that were not merged.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, language_loss, spread
from torch import nn

W, WORDS, LENGTH, SIZE = 24, 23, 8, 8
SIZES: dict[str, Any] = {"hidden_size": W, "intermediate_size": 32, "num_hidden_layers": 2}
SPEECH: dict[str, Any] = {**SIZES, "vocab_size": WORDS, "num_attention_heads": 3, "num_key_value_heads": 1}


class Only(nn.Module):
    """A model of transformers that gives one part of its output alone."""

    def __init__(self, net: nn.Module, part: str = "logits") -> None:
        super().__init__()
        self.net, self.part = net, part

    def forward(self, *given: torch.Tensor) -> Any:
        return getattr(self.net(*given), self.part)


def tokens() -> torch.Tensor:
    return torch.randint(2, WORDS - 1, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def spoken(model: nn.Module, other: nn.Module) -> Made:
    ids = tokens()
    return Only(model), other, ids, {"loss": language_loss(ids)}


def turned(x: torch.Tensor, base: float) -> torch.Tensor:
    """Halves turned by their places, as one product of complex numbers. Shape (batch, heads, length, size)."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    one, two = x.float().chunk(2, -1)
    made = torch.complex(one, two) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([made.real, made.imag], -1).to(x.dtype)


class Scaled(nn.Module):
    """A norm by root mean square. `plus`: whether its weight is added to one."""

    def __init__(self, weight: torch.Tensor, eps: float, plus: bool = False) -> None:
        super().__init__()
        self.weight, self.eps, self.plus = nn.Parameter(weight.detach().clone()), eps, plus

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = F.rms_norm(x.float(), x.shape[-1:], None, self.eps)
        return (wide * (1 + self.weight.float())).to(x.dtype) if self.plus else wide.to(x.dtype) * self.weight


class Attention(nn.Module):
    """Queries that share keys and values. `cap`: the largest score, by tanh. `window`: how many tokens are seen."""

    def __init__(self, theirs: nn.Module, heads: int, base: float, scale: float, cap: float = 0, window: int = LENGTH) -> None:
        super().__init__()
        self.heads, self.base, self.scale, self.cap, self.window = heads, base, scale, cap, window
        self.wq, self.wk, self.wv, self.wo = (copy.deepcopy(getattr(theirs, f"{name}_proj")) for name in "qkvo")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in (self.wq, self.wk, self.wv))
        q, k = turned(q, self.base), turned(k, self.base)
        place = torch.arange(x.shape[1])
        seen = (place[:, None] >= place) & (place[:, None] - place < self.window)
        if not self.cap:
            made = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=self.scale, enable_gqa=True)
        else:
            q = q.unflatten(1, (k.shape[1], -1))
            scores = torch.einsum("bgqts,bgus->bgqtu", q, k).float() * self.scale
            scores = (self.cap * torch.tanh(scores / self.cap)).masked_fill(~seen, -math.inf)
            made = torch.einsum("bgqtu,bgus->bgqts", scores.softmax(-1).to(v.dtype), v).flatten(1, 2)
        return self.wo(made.transpose(1, 2).flatten(2))


class Sparse(nn.Module):
    """Two of four experts, each with weights of its own, and all experts for all tokens."""

    def __init__(self, theirs: Any, **ways: Any) -> None:
        super().__init__()
        self.ways, count = ways, len(theirs.experts.down_proj)
        self.router = nn.Linear(W, count, bias=False)
        self.w1, self.w3, self.w2 = (nn.ModuleList([nn.Linear(*form, bias=False) for _ in range(count)]) for form in ((W, 16), (W, 16), (16, W)))
        with torch.no_grad():
            self.router.weight.copy_(theirs.gate.weight)
            for number in range(count):
                gate, up = theirs.experts.gate_up_proj[number].chunk(2)
                self.w1[number].weight.copy_(gate), self.w3[number].weight.copy_(up), self.w2[number].weight.copy_(theirs.experts.down_proj[number])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.router(x).float()
        values, chosen = logits.topk(2, -1)
        shares = logits.softmax(-1).gather(-1, chosen) if self.ways.get("raw") else values.softmax(-1)
        weights = torch.zeros_like(logits).scatter(-1, chosen, shares).to(x.dtype)
        act = F.gelu if self.ways.get("gelu") else F.silu
        made = torch.stack([two(act(one(x)) * three(x)) for one, two, three in zip(self.w1, self.w2, self.w3, strict=True)], -1)
        return (made * weights[..., None, :]).sum(-1)


class Experts(nn.Module):
    def __init__(self, theirs: Any, at: int = -1, **ways: Any) -> None:
        super().__init__()
        self.words, self.head, self.norm = (
            copy.deepcopy(theirs.model.embed_tokens), copy.deepcopy(theirs.lm_head), Scaled(theirs.model.norm.weight, 1e-5))  # fmt: skip
        self.attention, self.sparse, self.first, self.second = (nn.ModuleList() for _ in range(4))
        for number, layer in enumerate(theirs.model.layers):
            self.attention.append(Attention(layer.self_attn, 3, 1e6, SIZE**-0.5))
            self.sparse.append(Sparse(layer.mlp, **(ways if number == at else {})))
            self.first.append(Scaled(layer.input_layernorm.weight, 1e-5)), self.second.append(Scaled(layer.post_attention_layernorm.weight, 1e-5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for first, attention, second, sparse in zip(self.first, self.attention, self.second, self.sparse, strict=True):
            x = x + attention(first(x))
            x = x + sparse(second(x))
        return self.head(self.norm(x))


def mixed(**ways: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    model = spread(transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **{**SPEECH, "intermediate_size": 16}, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)))  # fmt: skip
    return spoken(model, Experts(model, **ways))


class Capped(nn.Module):
    """A language model whose norms add one to their weights, with two norms for each branch, and scores that tanh caps."""

    def __init__(self, theirs: Any, plain: int = -1, wide: int = -1, cap: float = 3.0, twice: bool = False) -> None:
        super().__init__()
        self.twice, self.words, self.cap = twice, copy.deepcopy(theirs.model.embed_tokens), cap
        self.norm, self.blocks = Scaled(theirs.model.norm.weight, 1e-6, True), nn.ModuleList()
        for number, layer in enumerate(theirs.model.layers):
            names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
            norms = {name: Scaled(getattr(layer, f"{name}_layernorm").weight, 1e-6, number != plain) for name in names}
            window = LENGTH if number == wide or number == 1 else 4
            attention = Attention(layer.self_attn, 2, 1e4, 12**-0.5, 2.0, window)
            self.blocks.append(nn.ModuleDict({**norms, "attention": attention, "mlp": copy.deepcopy(layer.mlp)}))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) * (W**0.5 if self.twice else 1)
        for block in self.blocks:
            x = x + block["post_attention"](block["attention"](block["input"](x)))  # type: ignore[index]
            x = x + block["post_feedforward"](block["mlp"](block["pre_feedforward"](x)))  # type: ignore[index]
        logits = F.linear(self.norm(x), self.words.weight)
        return self.cap * torch.tanh(logits / self.cap)


def capped(**ways: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    model = spread(transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **{**SPEECH, "num_attention_heads": 2}, head_dim=SIZE, query_pre_attn_scalar=12, sliding_window=4,
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
        attn_implementation="eager")))  # fmt: skip
    return spoken(model, Capped(model, **ways))


class Tower(nn.Module):
    """An encoder of torch's own attention modules, whose three projections are one."""

    def __init__(self, theirs: Any, act: Any, causal: bool) -> None:
        super().__init__()
        self.act, self.causal, self.attentions = act, causal, nn.ModuleList()
        layers = theirs.encoder.layers
        self.up, self.down, self.one, self.two = (nn.ModuleList([copy.deepcopy(part(layer)) for layer in layers]) for part in (
            lambda layer: layer.mlp.fc1, lambda layer: layer.mlp.fc2, lambda layer: layer.layer_norm1, lambda layer: layer.layer_norm2))  # fmt: skip
        for layer in layers:
            mine, parts = nn.MultiheadAttention(W, 3, batch_first=True), [getattr(layer.self_attn, f"{name}_proj") for name in "qkv"]
            with torch.no_grad():
                (
                    mine.in_proj_weight.copy_(torch.cat([part.weight for part in parts])),
                    mine.in_proj_bias.copy_(torch.cat([part.bias for part in parts])),
                )
            mine.out_proj.load_state_dict(layer.self_attn.out_proj.state_dict())
            self.attentions.append(mine)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool() if self.causal else None
        for one, attention, two, up, down in zip(self.one, self.attentions, self.two, self.up, self.down, strict=True):
            normed = one(x)
            x = x + attention(normed, normed, normed, attn_mask=hidden, need_weights=False)[0]
            x = x + down(self.act(up(two(x))))
        return x


class Pictured(nn.Module):
    """Texts and pictures in one space. `last`: whether a text is its last token, not the first that ends it."""

    def __init__(self, theirs: Any, act: Any = lambda x: x * torch.sigmoid(1.702 * x), last: bool = False, logs: bool = True) -> None:
        super().__init__()
        text, sight = theirs.text_model, theirs.vision_model
        self.last, self.logs = last, logs
        self.words, self.text, self.end = text.embeddings.token_embedding, Tower(text, act, True), text.final_layer_norm
        self.patches, self.begin, self.sight, self.over = (
            sight.embeddings.patch_embedding,
            sight.pre_layrnorm,
            Tower(sight, act, False),
            sight.post_layernorm,
        )
        self.text_out, self.sight_out, self.temperature = theirs.text_projection, theirs.visual_projection, theirs.logit_scale
        self.places, self.patch_places = text.embeddings.position_embedding.weight, sight.embeddings.position_embedding.weight
        self.token = sight.embeddings.class_embedding

    def forward(self, ids: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        text = self.end(self.text(self.words(ids) + self.places[: ids.shape[1]]))
        ends = torch.full((len(ids),), ids.shape[1] - 1) if self.last else (ids == WORDS - 1).int().argmax(-1)
        text = self.text_out(text[torch.arange(len(ids)), ends])
        x = torch.cat([self.token.expand(len(pixels), 1, -1), self.patches(pixels).flatten(2).mT], 1) + self.patch_places
        sight = self.sight_out(self.over(self.sight(self.begin(x))[:, 0]))
        scale = self.temperature.exp() if self.logs else self.temperature
        return F.normalize(sight, dim=-1) @ F.normalize(text, dim=-1).T * scale


def pictured(**ways: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    model = spread(transformers.CLIPModel(transformers.CLIPConfig(
        text_config={
            **SIZES, "num_attention_heads": 3, "vocab_size": WORDS, "max_position_embeddings": 9,
            "eos_token_id": WORDS - 1, "bos_token_id": 0, "pad_token_id": 1},
        vision_config={**SIZES, "num_attention_heads": 3, "image_size": 8, "patch_size": 4}, projection_dim=16)), 0.2)  # fmt: skip
    ids = tokens().repeat(2, 1)[:3]
    ids[0, 5:], ids[1, 7], ids[2, 3:] = WORDS - 1, WORDS - 1, WORDS - 1
    pixels = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(2))

    def loss(out: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out.float(), torch.arange(3)) + F.cross_entropy(out.float().T, torch.arange(3))

    return Only(model, "logits_per_image"), copy.deepcopy(Pictured(model, **ways)), (ids, pixels), {"loss": loss}


healthy("library", "experts one by one, all tokens for each", mixed)
broken("library", "shares that are not normalised", lambda: mixed(raw=True, at=1), "sparse.1")
broken("library", "gelu in an expert", lambda: mixed(gelu=True, at=0), "sparse.0", *(f"sparse.0.w2.{number}" for number in range(4)))
healthy("library", "capped scores by einsum, halves as complex numbers", capped)
broken("library", "norms that scale by their weights alone", lambda: capped(plain=1), "blocks.1.input")
broken("library", "a window that is not there", lambda: capped(wide=0), "blocks.0.attention", "blocks.0.attention.wo")
broken("library", "embeddings with their scale twice", lambda: capped(twice=True), "", "blocks.0.input")
healthy("library", "two towers of torch's attention", pictured)
broken("library", "the last token of a text for the first that ends it", lambda: pictured(last=True), "", "text_out")
broken("library", "another gelu in both towers", lambda: pictured(act=F.gelu), "text.down.0", "sight.down.0", "text", "sight")
broken("library", "a temperature for its logarithm", lambda: pictured(logs=False), "")
