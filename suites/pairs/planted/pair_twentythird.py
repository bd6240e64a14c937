"""A twenty-third batch, committed before the judge has seen any of it: decoders of transformers that no batch before has, beside hand-written ones.

Two layers, of which the second has the fault. Faults as people report them of such ports: a square weight that is not transposed, halves for
neighbours in a rotation, a window that is one too long, a number of a layer that begins at zero, a norm for each head and not for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, language_loss, spread
from pair_fourteenth_sights import renamed
from pair_tenth import Only
from torch import nn

W, WORDS, LENGTH, HEADS, SIZE, UP = 32, 31, 10, 4, 8, 48
IDS = torch.randint(2, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(11))
State = dict[str, torch.Tensor]
Faults = dict[str, tuple[dict[str, Any], tuple[str, ...], str]]
"""For each fault what the port is given, the modules of which any may be named, and a pattern of the words that name the change, or ""."""
ATTN, FEED, BLOCK = ("h.1.attn",), ("h.1.feed",), ("h.1",)


def family(name: str, way: str, make: Callable[..., Made], faults: Faults, **more: dict[str, Any]) -> None:
    """`more`: further healthy ways to write the port."""
    for other, ways in {way: dict[str, Any](), **more}.items():
        healthy(name, other.replace("_", " "), lambda ways=ways: make(**ways))  # type: ignore[misc]
    for fault, (bad, names, said) in faults.items():
        broken(name, fault, lambda bad=bad: make(**bad), *names, said=said)  # type: ignore[misc]


def turned(x: torch.Tensor, size: int, pairs: bool) -> torch.Tensor:
    """Rotary places in the first `size` numbers of each head, (batch, heads, length, size). `pairs`: neighbours, else halves."""
    angles = torch.arange(x.shape[2])[:, None] * (10000.0 ** (-torch.arange(0, size, 2) / size))
    cosine, sine, part = angles.cos().to(x.dtype), angles.sin().to(x.dtype), x[..., :size]
    a, b = (part[..., ::2], part[..., 1::2]) if pairs else part.chunk(2, -1)
    made = a * cosine - b * sine, b * cosine + a * sine
    return torch.cat([torch.stack(made, -1).flatten(-2) if pairs else torch.cat(made, -1), x[..., size:]], -1)


class Scale(nn.Module):
    """A norm by the root of the mean square."""

    def __init__(self, eps: float = 1e-5, heads: int = 1) -> None:
        super().__init__()
        self.eps, self.heads, self.weight = eps, heads, nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float().unflatten(-1, (self.heads, -1))
        return (self.weight.float() * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).flatten(-2)).to(x.dtype)


class Plus(nn.LayerNorm):
    """A norm whose weights are kept less one."""

    def __init__(self, plus: float = 1.0) -> None:
        super().__init__(W)
        self.plus = plus

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.float(), (W,), self.weight.float() + self.plus, self.bias.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    """One projection or three. `window`: how many tokens are seen. `joint`: rows of one projection, by part."""

    def __init__(self, bias: tuple[bool, bool], groups: int = HEADS, joint: bool = False, rotary: int = 0, pairs: bool = False,
                 scale: float = SIZE**-0.5,
                 window: int = 99, norms: int = 0, kernel: bool = False, exchanged: bool = False, unturned: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.groups, self.joint, self.rotary, self.pairs, self.scale, self.window = groups, joint, rotary, pairs, scale, window
        self.kernel, self.exchanged, self.unturned = kernel, exchanged, unturned
        if joint:
            self.qkv = nn.Linear(W, (HEADS + 2 * groups) * SIZE, bias=bias[0])
        else:
            self.q, self.k, self.v = (nn.Linear(W, heads * SIZE, bias=bias[0]) for heads in (HEADS, groups, groups))
        self.out = nn.Linear(W, W, bias=bias[1])
        self.norms = nn.ModuleList([Scale(heads=norms) for _ in "qk"]) if norms else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = [HEADS * SIZE, self.groups * SIZE, self.groups * SIZE]
        q, k, v = self.qkv(x).split(sizes, -1) if self.joint else (self.q(x), self.k(x), self.v(x))
        k, v = (v, k) if self.exchanged else (k, v)
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k, v = (part.unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in (q, k, v))
        if self.rotary:
            q, k = turned(q, self.rotary, self.pairs), (k if self.unturned else turned(k, self.rotary, self.pairs))
        k, v = (part.expand(-1, HEADS, -1, -1) if self.groups == 1 else part for part in (k, v))
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        seen = (back >= 0) & (back < self.window)
        if self.kernel:
            made = F.scaled_dot_product_attention(q, k, v, seen, scale=self.scale)
        else:
            made = ((q @ k.mT).float() * self.scale).masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype) @ v
        return self.out(made.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, bias: bool, act: str, gated: bool = False) -> None:
        super().__init__()
        self.act, self.gated = act, gated
        self.up, self.down = nn.Linear(W, UP, bias=bias), nn.Linear(UP, W, bias=bias)
        if gated:
            self.gate = nn.Linear(W, UP, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = {
            "erf": F.gelu,
            "tanh": lambda y: F.gelu(y, approximate="tanh"),
            "silu": F.silu,
            "relu": F.relu,
            "square": lambda y: F.relu(y).square(),
        }
        act = ways[self.act]
        return self.down(act(self.gate(x)) * self.up(x) if self.gated else act(self.up(x)))


class Block(nn.Module):
    """`kind`: "serial", "shared" (one norm for both branches), "after" (norms of what the branches return)."""

    def __init__(self, kind: str, norm: Any, attn: dict[str, Any], feed: dict[str, Any], stale: bool = False, **more: Any) -> None:
        super().__init__()
        self.kind, self.stale = kind, stale
        self.attn, self.feed, self.first = Attention(**attn), Feed(**feed), norm(**more)
        if kind != "shared":
            self.second = norm(**more)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "shared":
            y = self.first(x)
            return x + self.attn(y) + self.feed(x if self.stale else y)
        if self.kind == "after":
            x = x + self.first(self.attn(x))
            return x + self.second(self.feed(x))
        y = x + self.attn(self.first(x))
        return (x if self.stale else y) + self.feed(self.second(y))


class Decoder(nn.Module):
    """`second`: what the second block alone is given, by part."""

    def __init__(self, norm: Any, block: dict[str, Any], second: dict[str, Any], places: bool = False, tied: bool = False,
                 biased: bool = False) -> None:  # fmt: skip
        super().__init__()
        held = {name: {**block[name], **value} if isinstance(value, dict) else value for name, value in second.items()}
        self.words, self.places = nn.Embedding(WORDS, W), nn.Embedding(16, W) if places else None
        self.h, self.last = nn.ModuleList([Block(norm=norm, **block), Block(**{"norm": norm, **block, **held})]), norm()
        self.head = nn.Linear(W, WORDS, bias=biased)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.last(x))


def of_library(kind: str, **more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    held = {"vocab_size": WORDS, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "attn_implementation": "eager", **more}
    made = getattr(transformers, f"{kind}LMHeadModel", None) or getattr(transformers, f"{kind}ForCausalLM")
    return spread(made(getattr(transformers, f"{kind}Config")(**held)))


SIZES = {"hidden_size": W, "intermediate_size": UP, "num_hidden_layers": 2, "num_attention_heads": HEADS, "max_position_embeddings": 16}
OLD = {"n_embd": W, "n_layer": 2, "n_head": HEADS, "n_positions": 16, "n_inner": UP, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def ported(model: Any, other: nn.Module, state: State) -> Made:
    missing = other.load_state_dict(state, strict=False).missing_keys
    assert not missing, missing
    return Only(model.eval()), other.eval(), IDS, {"loss": language_loss(IDS)}


def gptj(kernel: bool = False, biased: bool = True, **second: Any) -> Made:
    """One norm for both branches, neighbours that rotate in half of a head, and a head with a bias."""
    model = of_library("GPTJ", rotary_dim=4, tie_word_embeddings=False, **OLD)
    block = {"kind": "shared", "attn": {"bias": (False, False), "rotary": 4, "pairs": True, "kernel": kernel}, "feed": {"bias": True, "act": "tanh"}}
    state = renamed(model.state_dict(), ("transformer.", ""), ("wte", "words"), ("ln_f", "last"), ("ln_1", "first"), ("_proj", ""), ("mlp.", "feed."),
                    ("fc_in", "up"), ("fc_out", "down"), ("lm_head", "head"))  # fmt: skip
    return ported(model, Decoder(lambda: nn.LayerNorm(W), block, second, biased=biased), state)


family("a port of gpt-j", "scores written out", gptj, {
    "halves rotated": ({"attn": {"pairs": False}}, ATTN, ""), "all of a head rotated": ({"attn": {"rotary": 8}}, ATTN, ""),
    "a slope by erf": ({"feed": {"act": "erf"}}, FEED, ""), "a branch that is not normed": ({"stale": True}, BLOCK, ""),
    "a head without its bias": ({"biased": False}, ("head",), "bias"), "scores not scaled": ({"attn": {"scale": 1.0}}, ATTN, "scale|times"),
}, by_the_kernel={"kernel": True})  # fmt: skip


def neo(kernel: bool = True, window: int = 4, **second: Any) -> Made:
    """Scores that are not scaled, and a second layer that sees four tokens."""
    model = of_library("GPTNeo", hidden_size=W, num_layers=2, num_heads=HEADS, attention_types=[[["global", "local"], 1]], window_size=4,
                       intermediate_size=UP, max_position_embeddings=16)  # fmt: skip
    block = {"kind": "serial", "attn": {"bias": (False, True), "scale": 1.0, "kernel": kernel}, "feed": {"bias": True, "act": "tanh"}}
    state = renamed(model.state_dict(), ("transformer.", ""), ("wte", "words"), ("wpe", "places"), ("ln_f", "last"), ("ln_1", "first"),
                        ("ln_2", "second"),
                    ("attn.attention.", "attn."), ("_proj", ""), ("mlp.", "feed."), ("c_fc", "up"), ("c_proj", "down"), ("feed.c", "feed.down"),
                    ("lm_head", "head"))  # fmt: skip
    second = {**second, "attn": {"window": window, **second.get("attn", {})}}
    return ported(model, Decoder(lambda: nn.LayerNorm(W), block, second, places=True, tied=True), state)


family("a port of gpt-neo", "the kernel of torch", neo, {
    "a window one too long": ({"window": 5}, ATTN, "mask|"), "a window one too short": ({"window": 3}, ATTN, "mask|"),
    "no window": ({"window": 99}, ATTN, "mask|"), "scores scaled": ({"attn": {"scale": SIZE**-0.5}}, ATTN, "scale|times"),
    "an old residual": ({"stale": True}, BLOCK, ""),
}, written_out={"kernel": False})  # fmt: skip


def gpt2(square: bool = False, kernel: bool = False, number: int = 2, **second: Any) -> Made:
    """Weights that are kept transposed, and scores that are divided by the number of the layer. `square`: one weight keeps its order."""
    model = of_library("GPT2", scale_attn_by_inverse_layer_idx=True, **OLD)
    block = {"kind": "serial", "attn": {"bias": (True, True), "joint": True, "kernel": kernel}, "feed": {"bias": True, "act": "tanh"}}
    state = renamed(model.state_dict(), ("transformer.", ""), ("wte", "words"), ("wpe", "places"), ("ln_f", "last"), ("ln_1", "first"),
                        ("ln_2", "second"),
                    ("attn.c_attn", "attn.qkv"), ("attn.c_proj", "attn.out"), ("mlp.", "feed."), ("c_fc", "up"), ("c_proj", "down"),
                    ("lm_head", "head"))  # fmt: skip
    held = {name: value.mT if value.dim() == 2 and name.startswith("h.") else value for name, value in state.items()}
    if square:
        held["h.1.attn.out.weight"] = state["h.1.attn.out.weight"]
    second = {**second, "attn": {"scale": SIZE**-0.5 / number, **second.get("attn", {})}}
    return ported(model, Decoder(lambda: nn.LayerNorm(W), block, second, places=True, tied=True), held)


family("a port of gpt-2", "weights transposed", gpt2, {
    "a square weight keeps its order": ({"square": True}, ("h.1.attn.out", *ATTN), ""),
    "layers counted from zero": ({"number": 1}, ATTN, "scale|times"),
    "keys and values exchanged": ({"attn": {"exchanged": True}}, ATTN, ""),
}, by_the_kernel={"kernel": True})  # fmt: skip


def olmo(kernel: bool = True, **second: Any) -> Made:
    """Norms of what a branch returns, and of all queries and keys before they are heads."""
    model = of_library("Olmo2", rms_norm_eps=1e-5, tie_word_embeddings=False, **SIZES)
    attn = {"bias": (False, False), "rotary": SIZE, "norms": 1, "kernel": kernel}
    block = {"kind": "after", "attn": attn, "feed": {"bias": False, "act": "silu", "gated": True}}
    state = renamed(model.state_dict(), ("model.", ""), ("layers.", "h."), ("embed_tokens", "words"), ("self_attn.", "attn."), ("mlp.", "feed."),
                    ("post_attention_layernorm", "first"), ("post_feedforward_layernorm", "second"), ("q_norm", "norms.0"), ("k_norm", "norms.1"),
                    ("norm.weight", "last.weight"), ("o_proj", "out"), ("_proj", ""), ("lm_head", "head"))  # fmt: skip
    return ported(model, Decoder(Scale, block, second), state)


family("a port of olmo 2", "the kernel of torch", olmo, {
    "a norm for each head": ({"attn": {"norms": HEADS}}, ("h.1.attn.norms.0", "h.1.attn.norms.1", *ATTN), ""),
    "keys are not rotated": ({"attn": {"unturned": True}}, ATTN, ""), "gelu for silu": ({"feed": {"act": "tanh"}}, FEED, "act|"),
    "an eps of a hundredth": ({"eps": 1e-2}, ("h.1.first", "h.1.second"), "eps|plus"),
}, written_out={"kernel": False})  # fmt: skip


def falcon(kernel: bool = False, first: bool = False, **second: Any) -> Made:
    """Four queries for one key and value, in one projection. `first`: keys and values are taken for the first rows."""
    model = of_library("Falcon", hidden_size=W, ffn_hidden_size=UP, num_hidden_layers=2, num_attention_heads=HEADS, multi_query=True,
                        parallel_attn=True,
                       bias=False, alibi=False, new_decoder_architecture=False, max_position_embeddings=16)  # fmt: skip
    attn = {"bias": (False, False), "groups": 1, "joint": True, "rotary": SIZE, "kernel": kernel}
    block = {"kind": "shared", "attn": attn, "feed": {"bias": False, "act": "erf"}}
    state = renamed(model.state_dict(), ("transformer.", ""), ("word_embeddings", "words"), ("input_layernorm", "first"),
                        ("self_attention.", "attn."),
                    ("query_key_value", "qkv"), ("dense_h_to_4h", "up"), ("dense_4h_to_h", "down"), ("mlp.", "feed."), ("attn.dense", "attn.out"),
                    ("ln_f", "last"), ("lm_head", "head"))  # fmt: skip
    if first:
        state["h.1.attn.qkv.weight"] = state["h.1.attn.qkv.weight"].roll(2 * SIZE, 0)
    return ported(model, Decoder(lambda: nn.LayerNorm(W), block, second, tied=True), state)


family("a port of falcon", "scores written out", falcon, {
    "keys among the first rows": ({"first": True}, ("h.1.attn.qkv", *ATTN), ""), "key and value exchanged": ({"attn": {"exchanged": True}}, ATTN, ""),
    "neighbours rotated": ({"attn": {"pairs": True}}, ATTN, ""), "a slope by tanh": ({"feed": {"act": "tanh"}}, FEED, ""),
}, by_the_kernel={"kernel": True})  # fmt: skip


def nemotron(kernel: bool = True, **second: Any) -> Made:
    """Norms whose weights are kept less one, squares of ReLU, and half of a head rotated."""
    model = of_library("Nemotron", num_key_value_heads=HEADS, norm_eps=1e-5, hidden_act="relu2", tie_word_embeddings=False,
                       rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}, **SIZES)  # fmt: skip
    attn = {"bias": (False, False), "rotary": 4, "kernel": kernel}
    block = {"kind": "serial", "attn": attn, "feed": {"bias": False, "act": "square"}}
    state = renamed(model.state_dict(), ("model.", ""), ("layers.", "h."), ("embed_tokens", "words"), ("self_attn.", "attn."), ("mlp.", "feed."),
                    ("input_layernorm", "first"), ("post_attention_layernorm", "second"), ("norm.", "last."), ("o_proj", "out"), ("_proj", ""),
                    ("lm_head", "head"))  # fmt: skip
    return ported(model, Decoder(Plus, block, second), state)


family("a port of nemotron", "the kernel of torch", nemotron, {
    "weights without their one": ({"plus": 0.0}, ("h.1.first", "h.1.second"), ""), "not squared": ({"feed": {"act": "relu"}}, FEED, ""),
    "all of a head rotated": ({"attn": {"rotary": 8}}, ATTN, ""), "an old residual": ({"stale": True}, BLOCK, ""),
}, written_out={"kernel": False})  # fmt: skip
