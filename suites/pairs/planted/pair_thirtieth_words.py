"""The thirtieth batch, second part: Falcon beside an engine with codes of eight bits, and Bloom under left padding.

Issues: the number of heads of keys (vllm 1164), a bias of distances before the scale (TensorRT-Model-Connect 32), slopes for heads that are
no power of two (ggml 143, bloomz.cpp 28, x-transformers 85), a bias of distances that a cache empties (keras-hub 2861), padding on the left
(PaddleNLP 6495).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made
from pair_thirtieth import ATTN, BLOCK, IDS, JOINED, LENGTH, TOP, WORDS, State, W, beside, family, heads, later_hidden, of_library
from torch import nn


class Codes(nn.Linear):
    """A weight in whole numbers between -127 and 127, of which each eight inputs have a scale."""

    def __init__(self, wide: int, out: int, wrong: str = "") -> None:
        super().__init__(wide, out, bias=False)
        self.wrong = wrong
        del self.weight
        self.register_buffer("codes", torch.zeros(out, wide, dtype=torch.int8))
        self.register_buffer("scale", torch.zeros(out, wide // 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = self.codes.to(self.scale.dtype).unflatten(1, (-1, 8))
        if self.wrong == "unsigned":
            codes = codes % 256
        scale = self.scale.roll(1, 1) if self.wrong == "next scale" else self.scale
        return F.linear(x, (codes * scale[..., None]).flatten(1))


def plain(wide: int, out: int, wrong: str = "") -> nn.Module:
    return nn.Linear(wide, out, bias=False)


class Shared(nn.Module):
    """Four heads of queries that share two of keys, turned as halves."""

    def __init__(self, wrong: str, linear: Any, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.kernel, self.qkv, self.out = wrong, kernel, linear(W, 2 * W), linear(W, W, wrong)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[2])[:, None] * (500.0 if self.wrong == "base" else 10000.0) ** (-torch.arange(0, 8, 2) / 8)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        if self.wrong == "pairs":
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split([W, W // 2, W // 2], -1)
        q, k, v = self.turned(heads(q, 8)), self.turned(heads(k, 8)), heads(v, 8)
        if self.kernel:
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2))
        k, v = (y.repeat(1, 2, 1, 1) if self.wrong == "tiled" else y.repeat_interleave(2, 1) for y in (k, v))
        return self.out((later_hidden(q @ k.mT * 8**-0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Beside(nn.Module):
    def __init__(self, wrong: str, linear: Any, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.attn, self.up, self.down = wrong, Shared(wrong, linear, kernel), linear(W, 4 * W), linear(4 * W, W)
        self.one, self.two = nn.LayerNorm(W), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.attn(self.one(x))
        y = self.one(x) if self.wrong == "one norm" else self.two(x + a if self.wrong == "behind" else x)
        return x + a + self.down(F.gelu(self.up(y), approximate="tanh" if self.wrong == "tanh" else "none"))


class Engine(nn.Module):
    def __init__(self, wrong: str = "", codes: bool = True, kernel: bool = False) -> None:
        super().__init__()
        linear = Codes if codes else plain
        self.words, self.norm = nn.Embedding(WORDS, W), nn.LayerNorm(W)
        self.blocks = nn.ModuleList(Beside(wrong if n == 1 else "", linear, kernel) for n in range(3))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return (F.linear(self.norm(x), self.words.weight),)


def in_codes(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    parts = weight.unflatten(1, (-1, 8))
    scale = parts.abs().amax(-1) / 127
    return (parts / scale[..., None]).round().to(torch.int8).flatten(1), scale


def falcon(lost: str = "", **ways: Any) -> Made:
    model = of_library("FalconForCausalLM", vocab_size=WORDS, hidden_size=W, num_hidden_layers=3, num_attention_heads=4, num_kv_heads=2,
                       new_decoder_architecture=True, bias=False, alibi=False, use_cache=False, hidden_dropout=0.0, attention_dropout=0.0,
                       tie_word_embeddings=True, bos_token_id=0, eos_token_id=1)  # fmt: skip
    names = {"transformer.word_embeddings": "words", "transformer.ln_f": "norm", "transformer.h": "blocks", "ln_attn": "one", "ln_mlp": "two",
             "mlp.dense_h_to_4h": "up", "mlp.dense_4h_to_h": "down", "self_attention.dense": "attn.out",
             "self_attention.query_key_value": "attn.qkv"}  # fmt: skip
    state: State = {}
    for whole, value in model.state_dict().items():
        name = whole
        for before, now in names.items():
            name = name.replace(before, now)
        if value.dim() > 1 and "words" not in name and "lm_head" not in name:
            codes, scale = in_codes(value)
            with torch.no_grad():
                model.get_parameter(whole).copy_((codes.unflatten(1, (-1, 8)) * scale[..., None]).flatten(1)).requires_grad_(False)
            bad = lost if name == "blocks.1.attn.qkv.weight" else ""
            kept: list[torch.Tensor] = []
            for part in (codes, scale) if ways.get("codes", True) else (model.get_parameter(whole).detach(),):
                if "qkv" in name and bad != "groups":
                    part = part.unflatten(0, (2, 4, 8))
                    part = torch.cat([part[:, :2].flatten(0, 2), part[:, 3].flatten(0, 1), part[:, 2].flatten(0, 1)] if bad == "values" else [
                        part[:, :2].flatten(0, 2), part[:, 2].flatten(0, 1), part[:, 3].flatten(0, 1)])  # fmt: skip
                kept.append(part)
            place = name.removesuffix("weight")
            state.update({place + "codes": kept[0], place + "scale": kept[1]} if len(kept) > 1 else {name: kept[0]})
        elif "lm_head" not in name:
            state[name] = value
    if lost == "norms":
        for kind in ("weight", "bias"):
            state[f"blocks.1.one.{kind}"], state[f"blocks.1.two.{kind}"] = state[f"blocks.1.two.{kind}"], state[f"blocks.1.one.{kind}"]
    made = beside(model, Engine(**ways), state)
    for each in made[1].modules():
        if type(each) is nn.Linear:
            each.requires_grad_(False)
    return made


OUT = ("blocks.1.attn.out",)
family("falcon in eight bits", "codes", falcon, {
    "groups not taken apart": ({"lost": "groups"}, JOINED, ""), "values before keys": ({"lost": "values"}, JOINED, ""),
    "the next scale": ({"wrong": "next scale"}, OUT, ""), "codes without a sign": ({"wrong": "unsigned"}, OUT, ""),
    "norms exchanged": ({"lost": "norms"}, ("blocks.1.one", "blocks.1.two"), ""), "one norm for both": ({"wrong": "one norm",
    "codes": False}, BLOCK, ""),
    "a feed behind attention": ({"wrong": "behind"}, BLOCK, ""), "heads of keys tiled": ({"wrong": "tiled"}, ATTN, ""),
    "places as pairs": ({"wrong": "pairs"}, ATTN, ""), "another base": ({"wrong": "base", "codes": False}, ATTN, ""),
}, plain_numbers={"codes": False}, codes_and_the_kernel={"kernel": True})  # fmt: skip


B, HEADS, SIZE = 48, 6, 8
REAL = torch.arange(LENGTH) >= torch.tensor([0, 3])[:, None]


class Distances(nn.Module):
    """What is added to scores: a slope for each head, times the place of the key."""

    def __init__(self, wrong: str = "", padded: bool = False) -> None:
        super().__init__()
        self.wrong, self.padded = wrong, padded

    def slopes(self) -> torch.Tensor:
        if self.wrong == "even":
            return 2.0 ** (-8 / HEADS * torch.arange(1, HEADS + 1))
        first = 2.0 ** (-2.0 * torch.arange(0 if self.wrong == "zero" else 1, 4 if self.wrong == "zero" else 5))
        made = torch.cat([first, 2.0 ** -torch.arange(1.0, 4.0, 2.0)])
        return made.flip(0) if self.wrong == "turned" else made

    def forward(self, real: torch.Tensor) -> torch.Tensor:
        places = torch.arange(real.shape[1]).expand(len(real), -1) if self.padded else (real.cumsum(1) - 1) * real
        return self.slopes()[None, :, None, None] * places[:, None, None]


class Sloped(nn.Module):
    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.kernel, self.qkv, self.out = wrong, kernel, nn.Linear(B, 3 * B), nn.Linear(B, B)

    def forward(self, x: torch.Tensor, far: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each, SIZE) for each in self.qkv(x).chunk(3, -1))
        scale = SIZE**-0.5
        if self.kernel:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=far.to(q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min))
        else:
            scores = (q @ k.mT + far) * scale if self.wrong == "scaled" else q @ k.mT * scale + far
            y = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class SlopedBlock(nn.Module):
    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.one, self.attn, self.two = wrong, nn.LayerNorm(B), Sloped(wrong, kernel), nn.LayerNorm(B)
        self.up, self.down = nn.Linear(B, 4 * B), nn.Linear(4 * B, B)

    def forward(self, x: torch.Tensor, far: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        x = (y if self.wrong == "residual" else x) + self.attn(y, far, seen)
        return x + self.down(F.gelu(self.up(self.two(x)), approximate="none" if self.wrong == "erf" else "tanh"))


class Slopes(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", far: str = "", kernel: bool = False, padded: bool = False, alone: bool = False) -> None:
        super().__init__()
        self.top, self.alone = top, alone
        self.words, self.first, self.distances, self.norm = nn.Embedding(WORDS, B), nn.LayerNorm(B), Distances(far, padded), nn.LayerNorm(B)
        self.blocks = nn.ModuleList(SlopedBlock(wrong if n == 1 else "", kernel) for n in range(3))

    def together(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) if self.top == "no norm" else self.first(self.words(ids))
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None, None]
        seen = seen if self.top == "padding" else seen & real[:, None, None]
        far = self.distances(real)
        for block in self.blocks:
            x = block(x, far, seen)
        return F.linear(self.norm(x), self.words.weight) * real[..., None]

    def forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        if not self.alone:
            return self.together(ids, real)
        rows = [self.together(row[None, own], own[None, own])[0] for row, own in zip(ids, real, strict=True)]
        return torch.stack([F.pad(row, (0, 0, LENGTH - len(row), 0)) for row in rows])


class Padded(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return self.net(ids, attention_mask=real.long()).logits * real[..., None]


def bloom(lost: str = "", **ways: Any) -> Made:
    model = of_library("BloomForCausalLM", vocab_size=WORDS, hidden_size=B, n_layer=3, n_head=HEADS, use_cache=False, hidden_dropout=0.0,
                       attention_dropout=0.0, bos_token_id=0, eos_token_id=1)  # fmt: skip
    names = {"transformer.word_embeddings_layernorm": "first", "transformer.word_embeddings": "words", "transformer.ln_f": "norm",
        "transformer.h": "blocks",
             "input_layernorm": "one", "post_attention_layernorm": "two", "mlp.dense_h_to_4h": "up", "mlp.dense_4h_to_h": "down",
             "self_attention.dense": "attn.out", "self_attention.query_key_value": "attn.qkv"}  # fmt: skip
    state: State = {}
    for name, value in model.state_dict().items():
        for before, now in names.items():
            name = name.replace(before, now)
        if "qkv" in name and not (lost == "thirds" and "blocks.1." in name):
            value = value.unflatten(0, (HEADS, 3, SIZE)).transpose(0, 1).flatten(0, 2)
        if lost == "bias" and name == "blocks.1.attn.qkv.bias":
            value = torch.zeros_like(value)
        if "lm_head" not in name:
            state[name] = value
    made = beside(model, Slopes(**ways), state, MEAN["loss"], (IDS, REAL))
    return Padded(made[0]), *made[1:]


family("bloom with padding on the left", "by products", bloom, {
    "slopes in equal steps": ({"far": "even"}, ("distances",), ""), "slopes turned round": ({"far": "turned"}, ("distances",), ""),
    "slopes from one on": ({"far": "zero"}, ("distances",), ""), "distances are scaled": ({"wrong": "scaled"}, ATTN, ""),
    "words without their norm": ({"top": "no norm"}, TOP, ""), "a residual behind the norm": ({"wrong": "residual"}, BLOCK, ""),
    "heads for thirds": ({"lost": "thirds"}, JOINED, ""), "no bias of a joined weight": ({"lost": "bias"}, ("blocks.1.attn.qkv",), ""),
    "padding is seen": ({"top": "padding"}, TOP, ""), "gelu by erf": ({"wrong": "erf"}, BLOCK, ""),
}, by_the_kernel={"kernel": True}, places_that_count_padding={"padded": True}, each_row_alone={"alone": True})  # fmt: skip
