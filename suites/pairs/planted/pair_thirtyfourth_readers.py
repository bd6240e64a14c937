"""The part of the thirty-fourth batch with a reader of proteins and a translator of talk: ESM and Blenderbot of transformers beside whole ports.

ESM with one module for a layer, Blenderbot with a decoder that keeps what it has made. Issues:

- ESM: words that are left out and scaled (https://github.com/facebookresearch/esm/issues/267, https://github.com/escalante-bio/mosaic/pull/76,
  https://github.com/huggingface/transformers/pull/44163), its own gelu, a norm behind the last layer, norms before the parts.
- Blenderbot: a norm of the embedded that one half has alone (https://github.com/huggingface/transformers/issues/11046), renamed norms
  (https://github.com/huggingface/transformers/issues/12203), norms before the parts and a bias of the words
  (https://github.com/huggingface/transformers/pull/7418).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, spread
from pair_thirtieth import TOP, WORDS, W, beside, family, heads
from pair_thirtysecond import MASK, SOURCE, TARGET, of_kind, renamed, translated
from torch import nn

HIDDEN = 5
"""The word that stands for one that is left out."""


def halves_turned(x: torch.Tensor, late: int = 0, way: str = "") -> torch.Tensor:
    size = x.shape[-1]
    angles = torch.arange(late, late + x.shape[-2])[:, None] * (10000.0 ** (-torch.arange(0, size, 2) / size))
    cosine, sine = (torch.cat([each, each], -1).to(x.dtype) for each in (angles.cos(), angles.sin()))
    a, b = x.chunk(2, -1)
    return x * cosine + torch.cat([b, -a] if way == "backward" else [-b, a], -1) * sine


class Reading(nn.Module):
    """One layer in one module: joined queries, keys and values."""

    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.kernel, self.one, self.two = wrong, kernel, nn.LayerNorm(W, 1e-5), nn.LayerNorm(W, 1e-12 if wrong == "eps" else 1e-5)
        self.joined, self.out, self.up, self.down = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each, 8) for each in self.joined(self.one(x)).chunk(3, -1))
        if self.wrong == "values":
            v = halves_turned(v)
        q, k = (halves_turned(each, way=self.wrong) for each in (q, k))
        if self.kernel:
            made = F.scaled_dot_product_attention(q, k, v, seen)
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / (8 if self.wrong == "scale" else math.sqrt(8))
            if self.wrong == "queries":
                seen = seen.mT
            shares = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-2 if self.wrong == "columns" else -1)
            made = torch.einsum("bhqk,bhkd->bhqd", shares.to(v.dtype), v)
        x = x + self.out(made.transpose(1, 2).flatten(2))
        up = self.up(self.two(x))
        feed = F.gelu(up, approximate="tanh") if self.wrong == "tanh" else up * 0.5 * (1 + torch.erf(up / 2**0.5))
        return x + self.down(feed)


class Proteins(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.top, self.words, self.last = top, nn.Embedding(WORDS, W), nn.LayerNorm(W)
        self.layers = nn.ModuleList(Reading(wrong if n == 1 else "", kernel) for n in range(3))
        self.dense, self.norm, self.bias = nn.Linear(W, W), nn.LayerNorm(W), nn.Parameter(torch.zeros(WORDS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        left_out = input_ids == HIDDEN
        x = self.words(input_ids)
        if self.top != "kept":
            x = x.masked_fill(left_out[..., None], 0.0)
        lengths = attention_mask.sum(-1) if self.top != "length" else input_ids.shape[1]
        if self.top != "not scaled":
            x = x * (0.88 / (1 - left_out.sum(-1).to(x.dtype) / lengths))[:, None, None]
        x = x * attention_mask[..., None].to(x.dtype)
        seen = attention_mask[:, None, None].bool().expand(-1, 1, input_ids.shape[1], -1)
        for layer in self.layers:
            x = layer(x, torch.ones_like(seen) if self.top == "padding" else seen)
        x = self.dense(x if self.top == "bare" else self.last(x))
        return F.linear(self.norm(F.relu(x) if self.top == "relu" else F.gelu(x)), self.words.weight, self.bias)


def esm(**ways: Any) -> Made:
    model = spread(of_kind("Esm", "ForMaskedLM", vocab_size=WORDS, hidden_size=W, num_hidden_layers=3, num_attention_heads=4, intermediate_size=2 * W,
                           hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=16, layer_norm_eps=1e-5,
                           position_embedding_type="rotary", token_dropout=True, mask_token_id=HIDDEN, pad_token_id=1,
                           attn_implementation="eager")).eval()  # fmt: skip
    state = renamed(dict(model.state_dict()), {
        "esm.embeddings.word_embeddings": "words", "esm.encoder.layer": "layers", "esm.encoder.emb_layer_norm_after": "last",
        "attention.LayerNorm": "one", "LayerNorm": "two", "attention.output.dense": "out", "attention.self": "self", "intermediate.dense": "up",
        "output.dense": "down", "lm_head.dense": "dense", "lm_head.layer_norm": "norm", "lm_head.bias": "bias"})  # fmt: skip
    state = {name: value for name, value in state.items() if name.partition(".")[0] in ("words", "layers", "last", "dense", "norm", "bias")}
    for name in [name for name in state if "self.query" in name]:
        state[name.replace("self.query", "joined")] = torch.cat([state.pop(name.replace("query", each)) for each in ("query", "key", "value")])
    state = {name: value for name, value in state.items() if "inv_freq" not in name}
    ids = SOURCE.clone()
    ids[0, 3], ids[1, 2], ids[1, 6:] = HIDDEN, HIDDEN, 1
    loss = lambda out: F.cross_entropy((out.logits if hasattr(out, "logits") else out)[MASK > 0].float(), SOURCE[MASK > 0])  # noqa: E731
    return beside(model, Proteins(**ways), state, loss, {"input_ids": ids, "attention_mask": MASK})


LAYER = ("layers.1",)
family("esm in one module a layer", "by formula", esm, {
    "left-out words are kept": ({"top": "kept"}, TOP, "zero|mask|hidden|masked_fill"), "words not scaled": ({"top": "not scaled"}, TOP, ""),
    "a share of the whole length": ({"top": "length"}, TOP, ""), "padding is seen": ({"top": "padding"}, TOP, "mask|seen"),
    "no norm behind": ({"top": "bare"}, TOP, ""), "relu in the head": ({"top": "relu"}, TOP, "relu"),
    "turned backward": ({"wrong": "backward"}, LAYER, ""), "values are turned": ({"wrong": "values"}, LAYER, ""),
    "scaled by the size": ({"wrong": "scale"}, LAYER, r"0\.353|2\.828"), "shares along the queries": ({"wrong": "columns"}, LAYER, "softmax"),
    "another gelu": ({"wrong": "tanh"}, LAYER, "gelu|erf|tanh"),
}, by_the_kernel={"kernel": True})  # fmt: skip


class Across(nn.Module):
    """Attention in one module: one weight for queries, one for keys and values, and what was made of them for the words before."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.q, self.kv, self.o = wrong, nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(W, W)

    def made(self, of: torch.Tensor) -> torch.Tensor:
        return self.kv(of).unflatten(-1, (2, 4, 8)).permute(2, 0, 3, 1, 4)

    def forward(self, x: torch.Tensor, kept: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        q, (k, v) = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2), kept
        if self.wrong == "exchanged":
            k, v = v, k
        scores = (q @ k.mT) * 8**-0.5
        shares = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).to(v.dtype)
        return self.o((shares @ v).transpose(1, 2).flatten(2))


class Half(nn.Module):
    def __init__(self, across: bool, wrong: str) -> None:
        super().__init__()
        self.wrong, self.own, self.norms = wrong, Across(wrong), nn.ModuleList(nn.LayerNorm(W) for _ in range(3 if across else 2))
        self.across = Across("exchanged" if wrong == "across" else "") if across else None
        self.up, self.down = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor, kept: torch.Tensor | None, hidden: torch.Tensor, read: torch.Tensor | None = None,
                padding: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        y = x if self.wrong == "post" else self.norms[0](x)
        now = self.own.made(y)
        kept = now if kept is None or self.wrong == "forgets" else torch.cat([kept, now], 3)
        x = x + self.own(y, kept, hidden[..., -kept.shape[3] :])
        x = self.norms[0](x) if self.wrong == "post" else x
        if self.across is not None and read is not None and padding is not None:
            y = self.norms[1](x)
            x = (y if self.wrong == "normed" else x) + self.across(y, self.across.made(read), padding)
        y = self.up(self.norms[-1](x))
        return x + self.down(F.silu(y) if self.wrong == "silu" else F.gelu(y)), kept


class Talk(nn.Module):
    def __init__(self, wrong: str = "", reads: str = "", top: str = "", piece: int = 7) -> None:
        super().__init__()
        self.top, self.piece, self.words = top, piece, nn.Embedding(WORDS, W)
        self.places = nn.ModuleList(nn.Embedding(16, W) for _ in range(2))
        self.reads, self.writes = (nn.ModuleList(Half(across, bad if n == 1 else "") for n in range(2)) for across, bad in ((False, reads),
                                                                                                                             (True, wrong)))
        self.norms = nn.ModuleList(nn.LayerNorm(W) for _ in range(2))
        self.register_buffer("final", torch.zeros(1, WORDS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padding = attention_mask[:, None, None] == 0
        x = self.words(input_ids) + self.places[0](torch.arange(input_ids.shape[1]))
        for layer in self.reads:
            x, _ = layer(x, None, padding)
        x = x if self.top == "bare" else self.norms[0](x)
        kept: list[torch.Tensor | None] = [None] * len(self.writes)
        made = []
        for begun in range(0, decoder_input_ids.shape[1], self.piece):
            part = decoder_input_ids[:, begun : begun + self.piece]
            count = part.shape[1]
            y = self.words(part) + self.places[self.top != "one table"](torch.arange(count) + (0 if self.top == "anew" else begun))
            hidden = torch.ones(count, begun + count, dtype=torch.bool).triu(begun + 1)
            for n, layer in enumerate(self.writes):
                y, kept[n] = layer(y, kept[n], hidden, x, torch.zeros_like(padding) if self.top == "padding" else padding)
            made.append(y)
        return F.linear(self.norms[1](torch.cat(made, 1)), self.words.weight) + self.final, x


def blenderbot(lost: str = "", **ways: Any) -> Made:
    sizes = {f"{half}_{name}": size for half in ("encoder", "decoder") for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 2 * W))}
    model: Any = spread(of_kind("Blenderbot", "ForConditionalGeneration", vocab_size=WORDS, d_model=W, max_position_embeddings=16, dropout=0.0,
                                use_cache=False, pad_token_id=1, eos_token_id=0, decoder_start_token_id=1, attn_implementation="eager",
                                **sizes)).eval()  # fmt: skip
    with torch.no_grad():
        model.final_logits_bias.normal_()
    state = renamed(dict(model.state_dict()), {
        "model.encoder.layers": "reads", "model.decoder.layers": "writes", "model.shared": "words", "final_logits_bias": "final",
        "model.encoder.layer_norm": "norms.0", "model.decoder.layer_norm": "norms.1", "model.encoder.embed_positions": "places.0",
        "model.decoder.embed_positions": "places.1", "encoder_attn_layer_norm": "norms.1", "encoder_attn": "across",
        "self_attn_layer_norm": "norms.0", "self_attn": "own", "q_proj": "q", "out_proj": "o", "fc1": "up", "fc2": "down"})  # fmt: skip
    state = {name.replace("final_layer_norm", "norms.1" if "reads" in name else "norms.2"): value for name, value in state.items()
             if "embed" not in name and "lm_head" not in name}  # fmt: skip
    for name in [name for name in state if "k_proj" in name]:
        state[name.replace("k_proj", "kv")] = torch.cat([state.pop(name), state.pop(name.replace("k_proj", "v_proj"))])
    if lost == "norms":
        for part in ("weight", "bias"):
            one, two = f"writes.1.norms.0.{part}", f"writes.1.norms.1.{part}"
            state[one], state[two] = state[two], state[one]
    if lost == "bias":
        state["writes.1.own.kv.bias"] = torch.cat([torch.zeros(W), state["writes.1.own.kv.bias"][W:]])
    return beside(model, Talk(**ways), state, translated, {"input_ids": SOURCE, "attention_mask": MASK, "decoder_input_ids": TARGET})


WRITES, READS = ("writes.1",), ("reads.1",)
family("blenderbot with kept keys", "at once", blenderbot, {
    "norms behind the parts": ({"reads": "post"}, READS, ""), "a residual of the norm": ({"wrong": "normed"}, WRITES, "add|norm"),
    "values for keys across": ({"wrong": "across"}, ("writes.1.across",), ""), "silu for gelu": ({"wrong": "silu"}, WRITES, "silu|gelu"),
    "padding is seen across": ({"top": "padding"}, TOP, "mask|padding"), "no norm of what was read": ({"top": "bare"}, TOP, ""),
    "places of the other half": ({"top": "one table"}, TOP, ""), "places anew in each piece": ({"top": "anew", "piece": 3}, TOP, ""),
    "norms exchanged": ({"lost": "norms"}, ("writes.1.norms.0",), ""), "keys are forgotten": ({"wrong": "forgets", "piece": 3}, WRITES, ""),
}, pieces_of_three={"piece": 3}, word_by_word={"piece": 1})  # fmt: skip
