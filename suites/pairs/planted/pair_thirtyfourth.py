"""A thirty-fourth batch, committed before the judge has seen it: Phi and Command-R of transformers beside whole ports.

Phi with one joined layer and complex places, Command-R as a program in JAX is written, with an axis for heads in its weights and with einsum.
GPT-OSS, ESM, Blenderbot and MobileNetV2 are in the other parts. The second block has the fault, or the model itself. `said` asks for words that
tell the cause, not only the module. Issues:

- Phi: places in a part of each head, by halves (https://github.com/ml-explore/mlx-examples/pull/97,
  https://github.com/huggingface/text-generation-inference/pull/1442), a head with a bias (https://github.com/antonellof/ferrox/pull/237), two parts
  that read the same norm (https://github.com/zeux/calm/pull/1), another gelu (https://github.com/unslothai/unsloth/pull/97).
- Command-R: places in pairs, logits with a scale, a norm with a mean and without a bias, two parts that read the same norm
  (https://github.com/ggml-org/llama.cpp/pull/6033, https://github.com/Lightning-AI/litgpt/issues/1089,
  https://github.com/antonellof/ferrox/pull/234).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_thirtieth import LENGTH, TOP, WORDS, State, W, beside, family, later_hidden, of_library
from pair_thirtysecond import renamed
from torch import nn

HALF = 4
"""Numbers of each head of Phi that are turned, of eight."""


def wheel(length: int, size: int, base: float = 10000.0) -> torch.Tensor:
    """Complex numbers that turn the places. Shape (length, size / 2)."""
    return torch.exp(1j * torch.arange(length)[:, None] * base ** (-torch.arange(0, size, 2) / size))


def spun(x: torch.Tensor, by: torch.Tensor, pairs: bool = False) -> torch.Tensor:
    """Turns halves of the last axis, or neighbours, as complex numbers."""
    wide = x.double() if x.dtype is torch.float64 else x.float()
    a, b = (wide[..., ::2], wide[..., 1::2]) if pairs else wide.chunk(2, -1)
    made = torch.complex(a, b) * by.to(torch.complex128 if wide.dtype is torch.float64 else torch.complex64)
    return (torch.stack([made.real, made.imag], -1).flatten(-2) if pairs else torch.cat([made.real, made.imag], -1)).to(x.dtype)


class Mixer(nn.Module):
    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.kernel, self.Wqkv, self.out_proj = wrong, kernel, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        q, k, v = self.Wqkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        pairs = self.wrong == "pairs"
        if self.wrong == "whole":
            q, k = (spun(each, wheel(x.shape[1], 8)) for each in (q, k))
        else:
            q, k = (torch.cat([spun(each[..., :HALF], turns, pairs), each[..., HALF:]], -1) for each in (q, k))
        if self.kernel:
            return self.out_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        shares = later_hidden(q @ k.mT * (4 if self.wrong == "scale" else 8) ** -0.5).softmax(-1)
        return self.out_proj((shares.to(v.dtype) @ v).transpose(1, 2).flatten(2))


class Parallel(nn.Module):
    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.ln, self.mixer = wrong, nn.LayerNorm(W, eps=1e-12 if wrong == "eps" else 1e-5), Mixer(wrong, kernel)
        self.fc1, self.fc2 = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        y = self.ln(x)
        mixed = self.mixer(y, turns)
        if self.wrong == "in turn":
            y = self.ln(x + mixed)
        return x + mixed + self.fc2(F.gelu(self.fc1(y), approximate="none" if self.wrong == "erf" else "tanh"))


class Small(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.top, self.wte, self.ln, self.head = top, nn.Embedding(WORDS, W), nn.LayerNorm(W), nn.Linear(W, WORDS)
        self.h = nn.ModuleList(Parallel(wrong if n == 1 else "", kernel) for n in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, turns = self.wte(ids), wheel(ids.shape[1], HALF, 1e3 if self.top == "base" else 1e4)
        for block in self.h:
            x = block(x, turns)
        return F.linear(self.ln(x), self.head.weight) if self.top == "bias" else self.head(self.ln(x))


def phi(lost: str = "", **ways: Any) -> Made:
    model = of_library("PhiForCausalLM", vocab_size=WORDS, hidden_size=W, intermediate_size=2 * W, num_hidden_layers=3, num_attention_heads=4,
                       max_position_embeddings=16, use_cache=False, attn_implementation="eager",
                       rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5})  # fmt: skip
    state = renamed(dict(model.state_dict()), {
        "model.embed_tokens": "wte", "model.final_layernorm": "ln", "model.layers": "h", "input_layernorm": "ln", "mlp.": "",
        "self_attn.dense": "mixer.out_proj", "self_attn": "mixer", "lm_head": "head"})  # fmt: skip
    for name in [name for name in state if "q_proj" in name]:
        state[name.replace("q_proj", "Wqkv")] = torch.cat([state.pop(name.replace("q_proj", f"{each}_proj")) for each in "qkv"])
    if lost == "heads first":  # rows of a head side by side, as in NeoX
        for part in ("weight", "bias"):
            joined = state[f"h.1.mixer.Wqkv.{part}"]
            state[f"h.1.mixer.Wqkv.{part}"] = joined.unflatten(0, (3, 4, 8)).transpose(0, 1).flatten(0, 2)
    return beside(model, Small(**ways), state)


MIXER = ("h.1.mixer",)
family("phi in one layer", "by formula", phi, {
    "places in pairs": ({"wrong": "pairs"}, MIXER, "order|rotat|pairs|strides"), "the whole head is turned": ({"wrong": "whole"}, MIXER, ""),
    "a scale of half the head": ({"wrong": "scale"}, MIXER, r"1\.414"), "heads before parts": ({"lost": "heads first"}, ("h.1.mixer.Wqkv",), "order"),
    "one part after the other": ({"wrong": "in turn"}, ("h.1",), ""), "the exact gelu": ({"wrong": "erf"}, ("h.1",), "gelu|erf|tanh"),
    "another base": ({"top": "base"}, TOP, ""),
    "a head without its bias": ({"top": "bias"}, TOP, "bias"),
}, by_the_kernel={"kernel": True})  # fmt: skip


class Centred(nn.Module):
    """Command-R's norm: a mean, and no bias."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.scale = wrong, nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        mean = 0.0 if self.wrong == "no mean" else wide.mean(-1, keepdim=True)
        spread = wide.var(-1, keepdim=True, correction=1) if self.wrong == "sample" else (wide - mean).square().mean(-1, keepdim=True)
        return ((wide - mean) * (spread + 1e-5).rsqrt() * self.scale).to(x.dtype)


class Axes(nn.Module):
    """Attention as in JAX: an axis for groups of queries, one for their heads."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.q = wrong, nn.Parameter(torch.zeros(W, 2, 2, 8))
        self.k, self.v, self.o = nn.Parameter(torch.zeros(W, 2, 8)), nn.Parameter(torch.zeros(W, 2, 8)), nn.Parameter(torch.zeros(2, 2, 8, W))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        q, k, v = torch.einsum("btd,dgrh->bgrth", x, self.q), torch.einsum("btd,dgh->bgth", x, self.k), torch.einsum("btd,dgh->bgth", x, self.v)
        if self.wrong == "tiled":
            q = q.transpose(1, 2)
        angles = places[:, None] * (10000.0 ** (-torch.arange(0, 8, 2) / 8))
        q, k = self.turned(q, angles), k if self.wrong == "keys" else self.turned(k, angles)
        scores = torch.einsum("bgrth,bgsh->bgrts", q, k) * 8**-0.5
        scores = torch.where(torch.ones(x.shape[1], x.shape[1]).tril(1 if self.wrong == "next" else 0) > 0, scores, torch.finfo(scores.dtype).min)
        made = torch.einsum("bgrts,bgsh->bgrth", scores.softmax(-1).to(v.dtype), v)
        return torch.einsum("bgrth,grhd->btd", made.transpose(1, 2) if self.wrong == "tiled" else made, self.o)

    def turned(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1) if self.wrong == "halves" else (x[..., ::2], x[..., 1::2])
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        made = a * cosine - b * sine, a * sine + b * cosine
        return torch.cat(made, -1) if self.wrong == "halves" else torch.stack(made, -1).flatten(-2)


class Gated(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.up, self.down = wrong, nn.Parameter(torch.zeros(2, W, 2 * W)), nn.Parameter(torch.zeros(2 * W, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = torch.einsum("btd,ndf->nbtf", x, self.up)
        if self.wrong == "gate":
            gate, value = value, gate
        return torch.einsum("btf,fd->btd", (F.gelu(gate) if self.wrong == "gelu" else gate * gate.sigmoid()) * value, self.down)


class Layer(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.norm, self.attn, self.ffw = wrong, Centred(wrong), Axes(wrong), Gated(wrong)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        mixed = self.attn(y, places)
        return x + mixed + self.ffw(self.norm(x + mixed) if self.wrong == "in turn" else y)


class Command(nn.Module):
    def __init__(self, wrong: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.table, self.norm = top, nn.Parameter(torch.zeros(WORDS, W)), Centred()
        self.layers = nn.ModuleList(Layer(wrong if n == 1 else "") for n in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table[ids]
        for layer in self.layers:
            x = layer(x, torch.arange(LENGTH))
        made = torch.einsum("btd,vd->btv", self.norm(x), self.table)
        return made / 0.25 if self.top == "divided" else made * 0.25


def command(lost: str = "", **ways: Any) -> Made:
    model = of_library("CohereForCausalLM", vocab_size=WORDS, hidden_size=W, intermediate_size=2 * W, num_hidden_layers=3, num_attention_heads=4,
                       num_key_value_heads=2, logit_scale=0.25, max_position_embeddings=16, use_cache=False, bos_token_id=0, eos_token_id=1,
                       attn_implementation="eager", rope_parameters={"rope_type": "default", "rope_theta": 1e4})  # fmt: skip
    before = model.state_dict()
    state: State = {"table": before["model.embed_tokens.weight"], "norm.scale": before["model.norm.weight"]}
    for n in range(3):
        there, here = f"model.layers.{n}", f"layers.{n}"
        weights = {each: before[f"{there}.self_attn.{each}_proj.weight"] for each in "qkvo"}
        state |= {f"{here}.attn.q": weights["q"].mT.unflatten(1, (2, 2, 8)), f"{here}.attn.o": weights["o"].mT.unflatten(0, (2, 2, 8))}
        state |= {f"{here}.attn.{each}": weights[each].mT.unflatten(1, (2, 8)) for each in "kv"}
        state |= {f"{here}.norm.scale": before[f"{there}.input_layernorm.weight"], f"{here}.ffw.down": before[f"{there}.mlp.down_proj.weight"].mT}
        state[f"{here}.ffw.up"] = torch.stack([before[f"{there}.mlp.{each}_proj.weight"].mT for each in ("gate", "up")])
    if lost == "turned":
        state["layers.1.attn.o"] = before["model.layers.1.self_attn.o_proj.weight"].unflatten(0, (2, 2, 8))
    return beside(model, Command(**ways), state)


AXES, GATED, NORM = ("layers.1.attn",), ("layers.1.ffw",), ("layers.1.norm",)
family("command in einsum", "by axes", command, {
    "heads tiled": ({"wrong": "tiled"}, AXES, ""), "places by halves": ({"wrong": "halves"}, AXES, "order|rotat|halves|strides"),
    "keys are not turned": ({"wrong": "keys"}, AXES, ""), "the next word is seen": ({"wrong": "next"}, AXES, "mask"),
    "gelu for silu": ({"wrong": "gelu"}, GATED, "gelu|silu|sigmoid"), "gate and value exchanged": ({"wrong": "gate"}, GATED, ""),
    "a norm without its mean": ({"wrong": "no mean"}, NORM, "mean|sub"), "the spread of a sample": ({"wrong": "sample"}, NORM, r"var|1\.0|0\.9"),
    "one part after the other": ({"wrong": "in turn"}, ("layers.1",), ""), "divided by the scale": ({"top": "divided"}, TOP, "16"),
    "a weight not turned": ({"lost": "turned"}, AXES, "order|transposed|rows|axes"),
})  # fmt: skip
