"""The thirtieth batch, third part: Gemma 3 beside an engine, and Whisper beside its first code, with a cache.

Issues: one that is added to gains twice (mold 1078) or never (Liger-Kernel 74), gelu by erf and words not scaled (transformers 29402, mlx-
examples 579), one base for both kinds of layers (gemma.cpp 986, atlas 276, ollama 13452), the scale of scores (ferrox 65), halved windows
(transformers 47940), places of a cache (tiny-llm 46, x-transformers 219), an encoder with a tanh and keys with a bias (nurl 475, keras-hub
801), cross-attention of another layer's or no cache (transformers 48000 and 46111, vllm 21088).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made
from pair_fourteenth_scans import numbers
from pair_thirtieth import IDS, LENGTH, TOP, WORDS, State, W, beside, family, heads, of_library
from torch import nn


class Gain(nn.Module):
    """A norm by the root of squares. `folded`: its weight has the one already."""

    def __init__(self, size: int, folded: bool, wrong: str = "") -> None:
        super().__init__()
        self.folded, self.eps, self.weight = folded != (wrong == "one"), 1e-2 if wrong == "eps" else 1e-6, nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float() if x.dtype != torch.float64 else x
        y = y * (y.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (y * (self.weight if self.folded else 1 + self.weight)).to(x.dtype)


class Window(nn.Module):
    """Four heads of eight, two of keys, with norms of both; a window of four words or none."""

    def __init__(self, near: bool, wrong: str, folded: bool, kernel: bool) -> None:
        super().__init__()
        self.near, self.wrong, self.kernel, self.qkv, self.out = near, wrong, kernel, nn.Linear(W, 2 * W, bias=False), nn.Linear(W, W, bias=False)
        self.q_norm, self.k_norm = Gain(8, folded), Gain(8, folded)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        base = 10000.0 if self.near != (self.wrong == "base") else 1000000.0
        angles = torch.arange(x.shape[2])[:, None] * base ** (-torch.arange(0, 8, 2) / 8)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each, 8) for each in self.qkv(x).split([W, W // 2, W // 2], -1))
        if self.wrong == "late":
            q, k = self.q_norm(self.turned(q)), self.k_norm(self.turned(k))
        else:
            q, k = self.turned(k if self.wrong == "never" else self.q_norm(q)), self.turned(self.k_norm(k))
        far = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        seen = (far >= 0) & (far < (3 if self.wrong == "window" else 4)) if self.near else far >= 0
        if self.kernel:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.25, enable_gqa=True)
        else:
            axis = 1 if self.wrong == "tiled" else 2
            scores = q.unflatten(1, (2, 2)) @ k.unsqueeze(axis).mT * (8**-0.5 if self.wrong == "scale" else 0.25)
            y = (scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1) @ v.unsqueeze(axis)).flatten(1, 2)
        return self.out(y.transpose(1, 2).flatten(2))


class Four(nn.Module):
    """A block with norms before and behind both branches."""

    def __init__(self, near: bool, wrong: str, folded: bool, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.attn = wrong, Window(near, wrong, folded, kernel)
        self.norms = nn.ModuleList(Gain(W, folded, wrong if n == 1 and wrong in ("one", "eps") else "") for n in range(4))
        self.gate_up, self.down = nn.Linear(W, 4 * W, bias=False), nn.Linear(2 * W, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.attn(self.norms[0](x))
        x = x + (seen if self.wrong == "behind" else self.norms[1](seen))
        gate, up = self.gate_up(self.norms[2](x)).chunk(2, -1)
        return x + self.norms[3](self.down(F.gelu(gate, approximate="none" if self.wrong == "erf" else "tanh") * up))


class Near(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", folded: bool = False, kernel: bool = False) -> None:
        super().__init__()
        self.top, self.words, self.norm = top, nn.Embedding(WORDS, W), Gain(W, folded)
        self.layers = nn.ModuleList(Four(n != 2, wrong if n == 1 else "", folded, kernel) for n in range(4))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        x = self.words(ids) * (1 if self.top == "scale" else W**0.5)
        for layer in self.layers:
            x = layer(x)
        return (F.linear(self.norm(x), self.words.weight),)


def gemma(lost: str = "", **ways: Any) -> Made:
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    model = of_library("Gemma3ForCausalLM", vocab_size=WORDS, hidden_size=W, intermediate_size=2 * W, num_hidden_layers=4, num_attention_heads=4,
                       num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=16, sliding_window=4, layer_types=kinds, use_cache=False,
                       tie_word_embeddings=True, pad_token_id=0, bos_token_id=0, eos_token_id=1)  # fmt: skip
    names = {"model.embed_tokens": "words", "model.": "", "self_attn.o_proj": "attn.out", "self_attn": "attn", "input_layernorm": "norms.0",
             "post_attention_layernorm": "norms.1", "pre_feedforward_layernorm": "norms.2", "post_feedforward_layernorm": "norms.3",
             "mlp.down_proj": "down"}  # fmt: skip
    state: State = {}
    for name, value in model.state_dict().items():
        for before, now in names.items():
            name = name.replace(before, now)
        state[name] = value + 1 if "norm" in name and ways.get("folded") else value
    for layer in range(4):
        gate, up = (state.pop(f"layers.{layer}.mlp.{part}_proj.weight") for part in ("gate", "up"))
        state[f"layers.{layer}.gate_up.weight"] = torch.cat([up, gate] if lost == "gate" and layer == 1 else [gate, up])
        state[f"layers.{layer}.attn.qkv.weight"] = torch.cat([state.pop(f"layers.{layer}.attn.{part}_proj.weight") for part in "qkv"])
    state.pop("lm_head.weight")
    if lost == "norms":
        state["layers.1.norms.1.weight"], state["layers.1.norms.2.weight"] = state["layers.1.norms.2.weight"], state["layers.1.norms.1.weight"]
    return beside(model, Near(**ways), state)


LAYER, SEEN, NORM = ("layers.1",), ("layers.1.attn",), ("layers.1.norms.1",)
family("gemma 3 in an engine", "by products", gemma, {
    "one added twice": ({"wrong": "one", "folded": True}, NORM, ""), "one never added": ({"wrong": "one"}, NORM, ""),
    "another eps": ({"wrong": "eps"}, NORM, ""), "two norms exchanged": ({"lost": "norms"}, (*LAYER, *NORM, "layers.1.norms.2"), ""),
    "no norm behind attention": ({"wrong": "behind"}, LAYER, ""), "the base of whole attention": ({"wrong": "base"}, SEEN, ""),
    "a window one too short": ({"wrong": "window"}, SEEN, ""), "scaled by the size of heads": ({"wrong": "scale"}, SEEN, ""),
    "norms behind the turn": ({"wrong": "late"}, SEEN, ""), "heads of keys tiled": ({"wrong": "tiled"}, SEEN, ""),
    "gate and up exchanged": ({"lost": "gate"}, (*LAYER, "layers.1.gate_up"), ""), "gelu by erf": ({"wrong": "erf"}, LAYER, ""),
    "words not scaled": ({"top": "scale"}, (*TOP, "words"), ""),
}, one_in_weights={"folded": True}, by_the_kernel={"kernel": True})  # fmt: skip


FEATURES, FRAMES = numbers(2, 8, 16), 8
Cache = dict[Any, torch.Tensor]


class Reads(nn.Module):
    """Keys have no bias. Of the source they are made once, of the words they grow."""

    def __init__(self, number: int, cross: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.number, self.cross, self.wrong = number, cross, wrong
        self.query, self.key, self.value, self.out = nn.Linear(W, W), nn.Linear(W, W, bias=False), nn.Linear(W, W), nn.Linear(W, W)

    def kept(self, x: torch.Tensor, cache: Cache, name: str, layer: nn.Module) -> torch.Tensor:
        place = name, self.cross, 0 if self.wrong == "other" else self.number
        if not self.cross:
            cache[place] = torch.cat([cache[place], layer(x)], 1) if place in cache and self.wrong != "forgets" else layer(x)
        elif place not in cache:
            cache[place] = layer(x)
        return cache[place]

    def forward(self, x: torch.Tensor, source: torch.Tensor | None = None, seen: torch.Tensor | None = None,
        cache: Cache | None = None) -> torch.Tensor:
        cache = {} if cache is None else cache
        source = x if source is None else source
        k, v = self.kept(source, cache, "key", self.key), self.kept(source, cache, "value", self.value)
        root = 8 ** (-0.5 if self.wrong == "twice" else -0.25)
        scores = (heads(self.query(x), 8) * root) @ (heads(k, 8) * root).mT
        if seen is not None:
            scores = scores.masked_fill(~seen[..., -scores.shape[-1]:], torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1).to(v.dtype) @ heads(v, 8)).transpose(1, 2).flatten(2))


class Hears(nn.Module):
    def __init__(self, number: int, wrong: str = "", cross: bool = False) -> None:
        super().__init__()
        self.wrong, self.attn, self.attn_ln = wrong, Reads(number, wrong=wrong if wrong in ("twice", "forgets") else ""), nn.LayerNorm(W)
        if cross:
            self.cross_attn, self.cross_attn_ln = Reads(number, True, wrong if wrong == "other" else ""), nn.LayerNorm(W)
        self.mlp = nn.Sequential(nn.Linear(W, 2 * W), nn.GELU("tanh" if wrong == "tanh" else "none"), nn.Linear(2 * W, W))
        self.mlp_ln = nn.LayerNorm(W)

    def forward(self, x: torch.Tensor, source: torch.Tensor | None = None, seen: torch.Tensor | None = None,
        cache: Cache | None = None) -> torch.Tensor:
        x = x + self.attn(self.attn_ln(x), None, seen, cache)
        if source is not None:
            asked = x if self.wrong == "raw" else self.cross_attn_ln(x)
            hidden = torch.ones(x.shape[1], FRAMES, dtype=torch.bool).tril() if self.wrong == "masked" else None
            x = x + self.cross_attn(asked, source, hidden, cache)
        return x + self.mlp(self.mlp_ln(x))


class Encoder(nn.Module):
    def __init__(self, wrong: str = "", block: str = "") -> None:
        super().__init__()
        self.wrong, one, two = wrong, *((2, 1) if wrong == "stride" else (1, 2))
        self.conv1, self.conv2 = nn.Conv1d(8, W, 3, one, 1), nn.Conv1d(W, W, 3, two, 1)
        self.positional_embedding = nn.Parameter(torch.zeros(FRAMES, W), requires_grad=False)
        self.blocks, self.ln_post = nn.ModuleList(Hears(n, block if n == 1 else "") for n in range(3)), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv2(F.gelu(self.conv1(x)))
        x = (x if self.wrong == "straight" else F.gelu(x)).mT
        x = x + (self.positional_embedding.roll(1, 0) if self.wrong == "late" else self.positional_embedding)
        for block in self.blocks:
            x = block(x)
        return x if self.wrong == "open" else self.ln_post(x)


class Decoder(nn.Module):
    def __init__(self, wrong: str = "", block: str = "") -> None:
        super().__init__()
        self.wrong, self.token_embedding, self.positional_embedding = wrong, nn.Embedding(WORDS, W), nn.Parameter(torch.zeros(12, W))
        self.blocks, self.ln = nn.ModuleList(Hears(n, block if n == 1 else "", True) for n in range(3)), nn.LayerNorm(W)

    def forward(self, ids: torch.Tensor, source: torch.Tensor, cache: Cache, begun: int) -> torch.Tensor:
        begin = 0 if self.wrong == "anew" else begun
        x = self.token_embedding(ids) + self.positional_embedding[begin : begin + ids.shape[1]]
        seen = torch.ones(begun + ids.shape[1], begun + ids.shape[1], dtype=torch.bool).tril()[begun:]
        for block in self.blocks:
            x = block(x, source, seen, cache)
        return self.ln(x) @ self.token_embedding.weight.to(x.dtype).mT


class Transcribes(nn.Module):
    def __init__(self, encoder: str = "", decoder: str = "", hears: str = "", writes: str = "", piece: int = LENGTH, top: str = "") -> None:
        super().__init__()
        self.top, self.piece, self.encoder, self.decoder = top, piece, Encoder(encoder, hears), Decoder(decoder, writes)

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        source, made, begun = self.encoder(features), [], 0
        cache: Cache = {}
        for part in ids.split(self.piece, 1):
            made.append(self.decoder(part, source, {} if self.top == "no cache" else cache, begun))
            begun += part.shape[1]
        return torch.cat(made, 1)


class Listens(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.net(input_features=features, decoder_input_ids=ids).logits


def whisper(lost: str = "", **ways: Any) -> Made:
    model = of_library("WhisperForConditionalGeneration", vocab_size=WORDS, num_mel_bins=8, d_model=W, encoder_layers=3, decoder_layers=3,
    use_cache=False,
                       encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=2 * W, decoder_ffn_dim=2 * W, dropout=0.0,
                       max_source_positions=FRAMES, max_target_positions=12, pad_token_id=0, bos_token_id=0, eos_token_id=1,
                       decoder_start_token_id=1)  # fmt: skip
    names = {"model.": "", "layers": "blocks", "encoder_attn_layer_norm": "cross_attn_ln", "encoder_attn": "cross_attn",
        "self_attn_layer_norm": "attn_ln",
             "self_attn": "attn", "q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out", "fc1": "mlp.0", "fc2": "mlp.2",
             "final_layer_norm": "mlp_ln", "embed_tokens": "token_embedding", "embed_positions.weight": "positional_embedding",
             "encoder.layer_norm": "encoder.ln_post", "decoder.layer_norm": "decoder.ln"}  # fmt: skip
    state: State = {}
    for name, value in model.state_dict().items():
        for before, now in names.items():
            name = name.replace(before, now)
        if lost == "filter" and name == "encoder.conv2.weight":
            value = value.flip(-1)
        if name != "proj_out.weight":
            state[name] = value
    made = beside(model, Transcribes(**ways), state, MEAN["loss"], (FEATURES, IDS))
    return Listens(made[0]), *made[1:]


WRITES, HEARS, ENCODES = ("decoder.blocks.1",), ("encoder.blocks.1",), ("encoder",)
family("whisper with a cache", "at once", whisper, {
    "scaled twice": ({"writes": "twice"}, ("decoder.blocks.1.attn",), ""), "strides exchanged": ({"encoder": "stride"}, ("encoder.conv1",), ""),
    "one gelu too few": ({"encoder": "straight"}, ENCODES, ""), "gelu by tanh": ({"hears": "tanh"}, ("encoder.blocks.1.mlp.1",), ""),
    "places of the source one late": ({"encoder": "late"}, ENCODES, ""), "no last norm of the source": ({"encoder": "open"}, ENCODES, ""),
    "places anew in each piece": ({"decoder": "anew", "piece": 3}, ("decoder",), ""), "no cache": ({"top": "no cache", "piece": 3}, TOP, ""),
    "keys of the last piece alone": ({"writes": "forgets", "piece": 3}, ("decoder.blocks.1.attn",), ""),
    "the source of another layer": ({"writes": "other"}, ("decoder.blocks.1.cross_attn",), ""),
    "asked without a norm": ({"writes": "raw"}, WRITES, ""), "later frames are hidden": ({"writes": "masked"}, WRITES, ""),
    "taps turned round": ({"lost": "filter"}, ("encoder.conv2",), ""),
}, pieces_of_three={"piece": 3}, word_by_word={"piece": 1})  # fmt: skip
