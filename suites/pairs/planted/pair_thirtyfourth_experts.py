"""The part of the thirty-fourth batch with experts: GPT-OSS beside the form of its first code, with gathered weights.

Issues: gates between the other columns, a limit on both sides, one added to the other half, a sharper sigmoid, shares after the choice, a window in
every second layer, a sink for each head (https://github.com/foundation-model-stack/foundation-model-stack/pull/459,
https://github.com/PrimeIntellect-ai/prime-rl/pull/2365, https://github.com/mattn/tensai/pull/83,
https://github.com/NVIDIA/TransformerEngine/pull/2161).
"""

from __future__ import annotations

from typing import Any

import torch
from pair_cases import Made
from pair_thirtieth import LENGTH, WORDS, W, beside, family, heads, of_library
from pair_thirtyfourth import spun, wheel
from pair_thirtysecond import renamed
from torch import nn


class Root(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.scale = wrong, nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        eps = 1e-1 if self.wrong == "eps" else 1e-5
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * self.scale).to(x.dtype)


class Sinks(nn.Module):
    """As the first code: norm, joined layer, groups of queries, a sink for each head, the sum with the input."""

    def __init__(self, number: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.window, self.norm = wrong, 0 if number % 2 else 3, Root(wrong)
        self.sinks, self.qkv, self.out = nn.Parameter(torch.zeros(4)), nn.Linear(W, 64), nn.Linear(W, W)
        if wrong == "window":
            self.window = 3 - self.window
        if wrong == "wider":
            self.window = 4

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).split([32, 16, 16], -1)
        q, k, v = heads(q, 8).unflatten(1, (2, 2)), heads(k, 8)[:, :, None], heads(v, 8)[:, :, None]
        q, k = spun(q, turns), spun(k, turns)
        scores = q @ k.mT * 8**-0.5
        far = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        scores = scores.masked_fill(far.triu(1) | (far.tril(-self.window) if self.window else ~far), -torch.inf)
        sinks = self.sinks.view(2, 2, 1, 1)
        if self.wrong == "heads":
            sinks = sinks.mT.transpose(0, 1)
        sinks = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
        shares = scores.softmax(-1) if self.wrong == "no sink" else torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        return x + self.out((shares.to(v.dtype) @ v).flatten(1, 2).transpose(1, 2).flatten(2))


class Chosen(nn.Module):
    """All experts that were chosen for a word, gathered: weights with an axis for experts."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.norm, self.gate = wrong, Root(), nn.Linear(W, 4)
        self.w1, self.b1 = nn.Parameter(torch.zeros(4, 64, W)), nn.Parameter(torch.zeros(4, 64))
        self.w2, self.b2 = nn.Parameter(torch.zeros(4, W, 32)), nn.Parameter(torch.zeros(4, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        scores = self.gate(y)
        top, which = scores.topk(2, -1)
        shares = scores.softmax(-1).gather(-1, which) if self.wrong == "before" else top.softmax(-1)
        made = torch.einsum("btkfd,btd->btkf", self.w1[which], y) + self.b1[which]
        gate, up = made.chunk(2, -1) if self.wrong == "halves" else (made[..., ::2], made[..., 1::2])
        gate = gate.clamp(-1.5, 1.5) if self.wrong == "both" else gate.clamp(max=1.5)
        up = up.clamp(-1.5, 1.5)
        made = gate * torch.sigmoid(gate * (1.0 if self.wrong == "alpha" else 1.702)) * (up if self.wrong == "one" else up + 1)
        made = torch.einsum("btkf,btkdf->btkd", made, self.w2[which])
        made = made if self.wrong == "bias" else made + self.b2[which]
        return x + torch.einsum("btkd,btk->btd", made, shares)


class Open(nn.Module):
    def __init__(self, attn: str = "", wrong: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.embedding, self.norm, self.unembedding = top, nn.Embedding(WORDS, W), Root(), nn.Linear(W, WORDS, bias=False)
        self.attn = nn.ModuleList(Sinks(n, attn if n == 1 else "") for n in range(3))
        self.mlp = nn.ModuleList(Chosen(wrong if n == 1 else "") for n in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, turns = self.embedding(ids), wheel(LENGTH, 8)
        for attn, mlp in zip(self.attn, self.mlp, strict=True):
            x = mlp(attn(x, turns))
        return self.unembedding(x if self.top == "bare" else self.norm(x))


def oss(lost: str = "", **ways: Any) -> Made:
    model = of_library("GptOssForCausalLM", vocab_size=WORDS, hidden_size=W, intermediate_size=32, num_hidden_layers=3, num_local_experts=4,
                       num_experts_per_tok=2, head_dim=8, num_attention_heads=4, num_key_value_heads=2, sliding_window=3, swiglu_limit=1.5,
                       layer_types=["sliding_attention", "full_attention", "sliding_attention"], max_position_embeddings=16, use_cache=False,
                       rope_parameters={"rope_type": "default", "rope_theta": 1e4}, attn_implementation="eager",
                       experts_implementation="eager")  # fmt: skip
    with torch.no_grad():
        for each in model.modules():
            if hasattr(each, "sinks"):
                each.sinks.copy_(torch.randn(4))
    state = renamed(dict(model.state_dict()), {"model.embed_tokens": "embedding", "lm_head": "unembedding", "model.norm.weight": "norm.scale"})
    for n in range(3):
        there = {name: state.pop(name) for name in list(state) if name.startswith(f"model.layers.{n}.")}
        there = {name.removeprefix(f"model.layers.{n}."): value for name, value in there.items()}
        for part in ("weight", "bias"):
            state[f"attn.{n}.qkv.{part}"] = torch.cat([there[f"self_attn.{each}_proj.{part}"] for each in "qkv"])
            state[f"attn.{n}.out.{part}"], state[f"mlp.{n}.gate.{part}"] = there[f"self_attn.o_proj.{part}"], there[f"mlp.router.{part}"]
        state |= {f"attn.{n}.sinks": there["self_attn.sinks"], f"attn.{n}.norm.scale": there["input_layernorm.weight"],
                  f"mlp.{n}.norm.scale": there["post_attention_layernorm.weight"], f"mlp.{n}.w1": there["mlp.experts.gate_up_proj"].mT,
                  f"mlp.{n}.b1": there["mlp.experts.gate_up_proj_bias"], f"mlp.{n}.w2": there["mlp.experts.down_proj"].mT,
                  f"mlp.{n}.b2": there["mlp.experts.down_proj_bias"]}  # fmt: skip
    if lost == "turned":
        state["mlp.1.w2"] = state["mlp.1.w2"].mT
    return beside(model, Open(**ways), state)


SINKS, MLP = ("attn.1",), ("mlp.1",)
family("gpt-oss by its first code", "by groups", oss, {
    "no sink": ({"attn": "no sink"}, SINKS, ""), "sinks of other heads": ({"attn": "heads"}, SINKS, "order|sinks"),
    "a window in the other layer": ({"attn": "window"}, SINKS, "mask"), "gates in halves": ({"wrong": "halves"}, MLP, "order|strides"),
    "a limit on both sides": ({"wrong": "both"}, MLP, "clamp"), "a flatter sigmoid": ({"wrong": "alpha"}, MLP, r"1\.702|0\.587"),
    "one is not added": ({"wrong": "one"}, MLP, "add|plus|less"), "shares before the choice": ({"wrong": "before"}, MLP, "softmax"),
    "no second bias": ({"wrong": "bias"}, MLP, "bias|b2"), "another eps": ({"attn": "eps"}, ("attn.1.norm",), "eps|add|plus"),
    "a square weight not turned": ({"lost": "turned"}, MLP, "order|transposed|axes|w2"),
})  # fmt: skip
