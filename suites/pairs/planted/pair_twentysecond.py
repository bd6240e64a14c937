"""A twenty-second batch, committed before the judge has seen any of it: decoders of transformers beside hand-written ones.

Two layers, of which the second has the fault. Faults as people report them of such ports: one projection read by thirds and not by heads, halves for
neighbours in a rotation, positions that begin at zero and not at two, a multiplier that is left out.
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

W, WORDS, LENGTH, HEADS, SIZE = 32, 29, 9, 4, 8
IDS = torch.randint(2, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(7))
Faults = dict[str, tuple[dict[str, Any], tuple[str, ...], str]]
"""For each fault what the port is given, the modules of which any may be named, and a pattern of the words that name the change, or ""."""


def family(name: str, way: str, make: Callable[..., Made], faults: Faults, **more: dict[str, Any]) -> None:
    """`more`: further healthy ways to write the port."""
    healthy(name, way, make)
    for other, ways in more.items():
        healthy(name, other.replace("_", " "), lambda ways=ways: make(**ways))  # type: ignore[misc]
    for fault, (bad, names, said) in faults.items():
        broken(name, fault, lambda bad=bad: make(**bad), *names, said=said)  # type: ignore[misc]


class Rates(nn.Module):
    """Rotates the first `size` numbers of each head. `pairs`: neighbours, else halves."""

    def __init__(self, size: int, base: float = 10000.0, pairs: bool = False, late: int = 0) -> None:
        super().__init__()
        self.size, self.pairs, self.late = size, pairs, late
        self.register_buffer("rates", 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = (torch.arange(x.shape[2])[:, None] + self.late) * self.rates.float()
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        turning, rest = x[..., : self.size], x[..., self.size :]
        if self.pairs:
            a, b = turning[..., ::2], turning[..., 1::2]
            return torch.cat([torch.stack([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(-2), rest], -1)
        a, b = turning.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine, rest], -1)


class Attention(nn.Module):
    """`ways`: what a port may get wrong, beside its form ("fused" by the torch kernel, "written" out, "looped" over heads)."""

    def __init__(self, bias: bool, groups: int, rotary: dict[str, Any] | None, form: str = "fused", **ways: Any) -> None:
        super().__init__()
        self.form, self.groups, self.ways = form, groups, ways
        self.q, self.k, self.v = (nn.Linear(W, heads * SIZE, bias=bias) for heads in (HEADS, groups, groups))
        self.out = nn.Linear(W, W, bias=bias)
        self.turn = None if rotary is None else Rates(**rotary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.turn is not None:
            q, k = self.turn(q), (k if ways.get("still") else self.turn(k))
        k, v = (
            each.repeat(1, HEADS // self.groups, 1, 1) if ways.get("tiled") else each.repeat_interleave(HEADS // self.groups, 1) for each in (k, v)
        )
        scale = ways.get("scale", SIZE**-0.5)
        if self.form == "fused":
            made = F.scaled_dot_product_attention(q, k, v, is_causal=not ways.get("open"), scale=scale)
        else:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            hidden = torch.zeros_like(hidden) if ways.get("open") else hidden

            def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                return ((q @ k.mT).float() * scale).masked_fill(hidden, -math.inf).softmax(-1).to(v.dtype) @ v

            made = one(q, k, v) if self.form == "written" else torch.stack([one(q[:, h], k[:, h], v[:, h]) for h in range(HEADS)], 1)
        return self.out(made.reshape(x.shape) if ways.get("unturned") else made.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, bias: bool, gated: bool, act: str, **ways: Any) -> None:
        super().__init__()
        self.act, self.gated, self.ways = act, gated, ways
        self.up, self.down = nn.Linear(W, 40, bias=bias), nn.Linear(40, W, bias=bias)
        if gated:
            self.gate = nn.Linear(W, 40, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        act = {"gelu": F.gelu, "tanh": lambda y: F.gelu(y, approximate="tanh"), "silu": F.silu, "relu": F.relu}[self.act]
        if not self.gated:
            return self.down(act(self.up(x)))
        return self.down(act(self.up(x)) * self.gate(x) if self.ways.get("swapped") else act(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """`kind`: "parallel" with two norms, "shared" with one for both branches, "serial"."""

    def __init__(
        self, kind: str, norm: Callable[[], nn.Module], attn: dict[str, Any], feed: dict[str, Any], branch: float = 1.0, **ways: Any
    ) -> None:
        super().__init__()
        self.kind, self.branch, self.ways = kind, branch, ways
        self.first, self.attn, self.feed = norm(), Attention(**attn), Feed(**feed)
        if kind != "shared":
            self.second = norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        made = self.attn(y) * self.branch
        if self.kind == "serial":
            x = x + made
            return (y if self.ways.get("normed") else x) + self.feed(self.second(x)) * self.branch
        read = y if self.kind == "shared" or self.ways.get("one_norm") else self.second(x + made if self.ways.get("serial") else x)
        return x + made + self.feed(read)


class Decoder(nn.Module):
    """`second`: what the second block alone is given, by part."""

    def __init__(self, block: dict[str, Any], norm: Callable[[], nn.Module], second: dict[str, Any] | None = None, places: int = 0, offset: int = 2,
                 scale: float = 1.0, logits: float = 1.0, tied: bool = True, bare: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.offset, self.scale, self.logits, self.bare = offset, scale, logits, bare
        self.words = nn.Embedding(WORDS, W)
        self.places = nn.Embedding(places, W) if places else None
        bad = {**block, **{name: {**block[name], **value} if isinstance(value, dict) else value for name, value in (second or {}).items()}}
        self.h, self.last, self.head = nn.ModuleList([Block(norm=norm, **block), Block(norm=norm, **bad)]), norm(), nn.Linear(W, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) * self.scale
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1]) + self.offset)
        for block in self.h:
            x = block(x)
        return self.head(x if self.bare else self.last(x)) * self.logits


class Root(nn.Module):
    """A norm by the root of the mean square, or with `centred` by the deviation."""

    def __init__(self, centred: bool = False, eps: float = 1e-6) -> None:
        super().__init__()
        self.centred, self.eps, self.weight = centred, eps, nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y - y.mean(-1, keepdim=True) if self.centred else y
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight.float() * y).to(x.dtype) if self.centred else self.weight * y.to(x.dtype)


def ported(model: Any, other: nn.Module, state: dict[str, torch.Tensor]) -> Made:
    missing = other.load_state_dict(state, strict=False).missing_keys
    assert not missing, missing
    return Only(model.eval()), other.eval(), IDS, {"loss": language_loss(IDS)}


def config(kind: str, **more: Any) -> Any:
    import transformers

    held = {"vocab_size": WORDS, "hidden_size": W, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": HEADS, "use_cache": False,
            "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
            "attn_implementation": "sdpa", **more}  # fmt: skip
    torch.manual_seed(0)
    return spread(getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**held)))


def neox(thirds: bool = False, form: str = "fused", **second: Any) -> Made:
    """One projection, whose rows are by head: queries, keys and values of the first, and so on."""
    model = config(
        "GPTNeoX", rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}, tie_word_embeddings=False
    )
    block = {"kind": "parallel", "attn": {"bias": True, "groups": HEADS, "rotary": {"size": 4}, "form": form},
             "feed": {"bias": True, "gated": False, "act": "gelu"}}  # fmt: skip
    other = Decoder(block, lambda: nn.LayerNorm(W), second, tied=False)
    state = renamed(model.state_dict(), ("gpt_neox.", ""), ("layers.", "h."), ("input_layernorm", "first"), ("post_attention_layernorm", "second"),
                    ("attention.", "attn."), ("dense_h_to_4h", "up"), ("dense_4h_to_h", "down"), ("mlp.", "feed."), ("attn.dense", "attn.out"),
                    ("final_layer_norm", "last"), ("embed_in", "words"), ("lm_head", "head"), ("embed_out", "head"))  # fmt: skip
    for name in [name for name in state if "query_key_value" in name]:
        whole = state.pop(name)
        by_head = whole.unflatten(0, (3, HEADS, SIZE)).transpose(0, 1) if thirds and ".1." in name else whole.unflatten(0, (HEADS, 3, SIZE))
        state |= {name.replace("query_key_value", each): by_head[:, at].flatten(0, 1).clone() for at, each in enumerate("qkv")}
    return ported(model, other, state)


ATTN, FEED = ("h.1.attn",), ("h.1.feed",)
family("a port of neox", "three projections", neox, {
    "rows by thirds": ({"thirds": True}, (*ATTN, "h.1.attn.q", "h.1.attn.k", "h.1.attn.v"), ""),
    "all of a head rotated": ({"attn": {"rotary": {"size": 8}}}, (*ATTN, "h.1.attn.turn"), ""),
    "one norm for both branches": ({"one_norm": True}, ("h.1",), ""),
    "branches in a row": ({"kind": "parallel", "serial": True}, ("h.1",), ""),
    "a slope by tanh": ({"feed": {"act": "tanh"}}, FEED, "tanh|act"),
}, looped={"form": "looped"})  # fmt: skip


def cohere(form: str = "fused", logits: float = 0.0625, **second: Any) -> Made:
    """A norm without bias for both branches, neighbours that rotate, logits that are scaled."""
    model = config("Cohere", num_key_value_heads=2, layer_norm_eps=1e-5, logit_scale=0.0625,
                   rope_parameters={"rope_type": "default", "rope_theta": 10000.0})  # fmt: skip
    block = {"kind": "shared", "attn": {"bias": False, "groups": 2, "rotary": {"size": 8, "pairs": True}, "form": form},
             "feed": {"bias": False, "gated": True, "act": "silu"}}  # fmt: skip
    other = Decoder(block, lambda: Root(True, 1e-5), second, logits=logits)
    state = renamed(model.state_dict(), ("model.", ""), ("layers.", "h."), ("input_layernorm", "first"), ("self_attn.", "attn."), ("mlp.", "feed."),
                    ("o_proj", "out"), ("_proj", ""), ("norm.", "last."), ("embed_tokens", "words"), ("lm_head", "head"))  # fmt: skip
    return ported(model, other, state)


family("a port of cohere", "the kernel of torch", cohere, {
    "halves rotated": ({"attn": {"rotary": {"size": 8}}}, (*ATTN, "h.1.attn.turn"), ""),
    "keys tiled": ({"attn": {"tiled": True}}, ATTN, ""),
    "logits not scaled": ({"logits": 1.0}, ("",), "times|16|logits"),
    "gate and up exchanged": ({"feed": {"swapped": True}}, FEED, ""),
    "keys are not rotated": ({"attn": {"still": True}}, (*ATTN, "h.1.attn.turn"), ""),
}, written={"form": "written"})  # fmt: skip


def granite(form: str = "written", scale: float = 12.0, logits: float = 0.125, branch: float = 0.22, **second: Any) -> Made:
    """Four multipliers: of words, of scores, of branches, of logits."""
    model = config("Granite", num_key_value_heads=1, rms_norm_eps=1e-6, embedding_multiplier=12.0, attention_multiplier=0.2, residual_multiplier=0.22,
                   logits_scaling=8.0, tie_word_embeddings=True)  # fmt: skip
    block = {"kind": "serial", "branch": branch, "attn": {"bias": False, "groups": 1, "rotary": {"size": 8}, "form": form, "scale": 0.2},
             "feed": {"bias": False, "gated": True, "act": "silu"}}  # fmt: skip
    other = Decoder(block, Root, second, scale=scale, logits=logits)
    state = renamed(model.state_dict(), ("model.", ""), ("layers.", "h."), ("input_layernorm", "first"), ("post_attention_layernorm", "second"),
                    ("self_attn.", "attn."), ("mlp.", "feed."), ("o_proj", "out"), ("_proj", ""), ("norm.", "last."), ("embed_tokens", "words"),
                    ("lm_head", "head"))  # fmt: skip
    return ported(model, other, state)


family("a port of granite", "scores written out", granite, {
    "a scale by the root": ({"attn": {"scale": SIZE**-0.5}}, ATTN, "scale|times"),
    "branches not scaled": ({"branch": 1.0}, ("h.1", "h.0"), "branch|times"),
    "words scaled by the root": ({"scale": math.sqrt(W)}, ("",), "scale|times"),
    "the second residual is normed": ({"normed": True}, ("h.1",), ""),
    "positions from one": ({"attn": {"rotary": {"size": 8, "late": 1, "base": 500.0}}}, (*ATTN, "h.1.attn.turn"), ""),
}, fused={"form": "fused"})  # fmt: skip


def opt(form: str = "written", offset: int = 2, bare: bool = False, **second: Any) -> Made:
    """Learned positions, of which the first two are for padding."""
    model = config("OPT", ffn_dim=40, word_embed_proj_dim=W)
    block = {
        "kind": "serial",
        "attn": {"bias": True, "groups": HEADS, "rotary": None, "form": form},
        "feed": {"bias": True, "gated": False, "act": "relu"},
    }
    other = Decoder(block, lambda: nn.LayerNorm(W), second, places=18, offset=offset, bare=bare)
    state = renamed(model.state_dict(), ("model.decoder.", ""), ("layers.", "h."), ("self_attn_layer_norm", "first"),
                    ("final_layer_norm.", "second."),
                    ("self_attn.", "attn."), ("fc1", "feed.up"), ("fc2", "feed.down"), ("out_proj", "out"), ("_proj", ""), ("embed_tokens", "words"),
                    ("embed_positions", "places"), ("lm_head", "head"))  # fmt: skip
    last = {name: value for name, value in state.items() if name.startswith("second.")}
    state = {name: value for name, value in state.items() if name not in last}
    state |= {name.replace("second", "last"): value for name, value in last.items()}
    return ported(model, other, state)


family("a port of opt", "scores written out", opt, {
    "places from zero": ({"offset": 0}, ("", "places"), ""),
    "no last norm": ({"bare": True}, ("",), ""),
    "later tokens are seen": ({"attn": {"open": True}}, ATTN, "mask|"),
    "gelu for relu": ({"feed": {"act": "gelu"}}, FEED, "act|"),
    "heads not put back": ({"attn": {"unturned": True}}, ATTN, "order|"),
}, looped={"form": "looped"})  # fmt: skip
