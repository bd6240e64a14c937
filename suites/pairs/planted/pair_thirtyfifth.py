"""A thirty-fifth batch, committed after the mends of the thirty-fourth and before the judge has seen it: Granite, DistilBERT and PoolFormer of
transformers beside ports.

Granite in an engine with a cache, heads in groups and places as matrices that turn pairs. DistilBERT as functions on weights with an axis for heads,
with norms of its own. PoolFormer with channels last and sums by shifts. Faults are of the kinds that the issues of earlier batches have: four
scales of Granite, one bias more, norms before the parts, the place of a scale, padding that counts, another side of a window.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, spread
from pair_fourteenth_scans import numbers
from pair_thirtieth import LENGTH, TOP, WORDS, State, W, beside, family, of_library
from pair_thirtysecond import MASK, SOURCE, of_kind, renamed
from torch import nn


class Turns(nn.Module):
    """For each place and pair of numbers a matrix of two by two."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, begun: int, count: int) -> torch.Tensor:
        first = 0 if self.wrong == "anew" else begun
        angles = torch.arange(first, first + count)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / (16 if self.wrong == "size" else 8))
        sine = -angles.sin() if self.wrong == "backward" else angles.sin()
        return torch.stack([angles.cos(), -sine, sine, angles.cos()], -1).unflatten(-1, (2, 2))


class Groups(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.qkv, self.out = wrong, nn.Linear(W, 64, bias=False), nn.Linear(W, W, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (-1, 8)).transpose(1, 2) for each in self.qkv(x).split([32, 16, 16], -1))
        q, k = (torch.einsum("tpij,bhtjp->bhtip", turns.to(q.dtype), each.unflatten(-1, (2, 4))).flatten(-2) for each in (q, k))
        kept[:] = [torch.cat([one, two], 2) for one, two in zip(kept, (k, v), strict=True)] if kept else [k, v]
        k, v = kept
        keys = k.repeat(1, 2, 1, 1) if self.wrong == "tiled" else k.repeat_interleave(2, 1)
        values = v.repeat(1, 2, 1, 1) if self.wrong == "tiled" else v.repeat_interleave(2, 1)
        scores = q @ keys.mT * (8**-0.5 if self.wrong == "usual" else 0.2)
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2] - (self.wrong == "itself"))
        shares = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
        return self.out((shares.to(v.dtype) @ values).transpose(1, 2).flatten(2))


class Scaled(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.gain = eps, nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        return (wide / (wide.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.gain).to(x.dtype)


class Rock(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.n1, self.n2, self.mix = wrong, Scaled(), Scaled(0.2 if wrong == "eps" else 1e-6), Groups(wrong)
        self.up, self.down = nn.Linear(W, 4 * W, bias=False), nn.Linear(2 * W, W, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
        x = x + self.mix(self.n1(x), turns, kept) * (1.0 if self.wrong == "residual" else 0.3)
        gate, value = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down((gate.relu() if self.wrong == "relu" else F.silu(gate)) * value) * 0.3


class Engine(nn.Module):
    def __init__(self, wrong: str = "", turns: str = "", top: str = "", piece: int = LENGTH) -> None:
        super().__init__()
        self.top, self.piece, self.words, self.turns, self.norm = top, piece, nn.Embedding(WORDS, W), Turns(turns), Scaled()
        self.layers = nn.ModuleList(Rock(wrong if n == 1 else "") for n in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        kept: list[list[torch.Tensor]] = [[] for _ in self.layers]
        made = []
        for part in ids.split(self.piece, 1):
            begun = kept[0][0].shape[2] if kept[0] else 0
            x = self.words(part) * (1.0 if self.top == "words" else 2.5)
            for n, layer in enumerate(self.layers):
                x = layer(x, self.turns(begun, part.shape[1]), kept[0 if self.top == "one cache" and n == 1 else n])
            made.append(F.linear(self.norm(x), self.words.weight))
        logits = torch.cat(made, 1)
        return logits * 4.0 if self.top == "logits" else logits / 4.0


def granite(lost: str = "", **ways: Any) -> Made:
    model = of_library("GraniteForCausalLM", vocab_size=WORDS, hidden_size=W, intermediate_size=2 * W, num_hidden_layers=3, num_attention_heads=4,
                       num_key_value_heads=2, max_position_embeddings=16, use_cache=False, embedding_multiplier=2.5, logits_scaling=4.0,
                       residual_multiplier=0.3, attention_multiplier=0.2, tie_word_embeddings=True, attn_implementation="eager",
                       rope_parameters={"rope_type": "default", "rope_theta": 1e4}, bos_token_id=0, eos_token_id=1, pad_token_id=1)  # fmt: skip
    state = renamed(dict(model.state_dict()), {
        "model.embed_tokens": "words", "model.norm.weight": "norm.gain", "model.layers": "layers", "input_layernorm.weight": "n1.gain",
        "post_attention_layernorm.weight": "n2.gain", "self_attn.o_proj": "mix.out", "self_attn": "mix", "mlp.down_proj": "down"})  # fmt: skip
    for n in range(3):
        state[f"layers.{n}.mix.qkv.weight"] = torch.cat([state.pop(f"layers.{n}.mix.{each}_proj.weight") for each in "qkv"])
        state[f"layers.{n}.up.weight"] = torch.cat([state.pop(f"layers.{n}.mlp.{each}_proj.weight") for each in ("gate", "up")])
    if lost == "halves":
        state["layers.1.up.weight"] = state["layers.1.up.weight"].roll(2 * W, 0)
    return beside(model, Engine(**ways), {name: value for name, value in state.items() if "lm_head" not in name})


LAYER, MIX = ("layers.1",), ("layers.1.mix",)
family("granite in an engine", "at once", granite, {
    "words not scaled": ({"top": "words"}, TOP, r"0\.4|2\.5"), "logits multiplied": ({"top": "logits"}, TOP, "16"),
    "the usual scale of scores": ({"wrong": "usual"}, MIX, r"1\.767"), "residuals not scaled": ({"wrong": "residual"}, LAYER, r"3\.33"),
    "heads tiled": ({"wrong": "tiled"}, MIX, ""), "words do not see themselves": ({"wrong": "itself"}, MIX, "mask"),
    "another eps": ({"wrong": "eps"}, ("layers.1.n2",), "plus|eps"), "relu for silu": ({"wrong": "relu"}, LAYER, "relu"),
    "value and gate exchanged": ({"lost": "halves"}, ("layers.1.up",), ""), "turned backward": ({"turns": "backward"}, ("turns",), ""),
    "frequencies of another size": ({"turns": "size"}, ("turns",), ""),
    "places anew in each piece": ({"turns": "anew", "piece": 3}, ("turns",), ""),
    "a cache for two layers": ({"top": "one cache", "piece": 3}, TOP, ""),
}, pieces_of_three={"piece": 3}, word_by_word={"piece": 1})  # fmt: skip


class Posted(nn.Module):
    """A layer whose weights have an axis for heads, (4, 8, width), and for queries, keys and values together, in two dictionaries."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong
        self.w = nn.ParameterDict({"qkv": torch.zeros(3, 4, 8, W), "o": torch.zeros(4, 8, W), "up": torch.zeros(W, 2 * W),
                                   "down": torch.zeros(2 * W, W),
                                   "one": torch.ones(W), "two": torch.ones(W)})  # fmt: skip
        self.b = nn.ParameterDict({"qkv": torch.zeros(3, 4, 8), "o": torch.zeros(W), "up": torch.zeros(2 * W), "down": torch.zeros(W),
                                   "one": torch.zeros(W), "two": torch.zeros(W)})  # fmt: skip

    def normed(self, x: torch.Tensor, which: str) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread_ = (centred**2).mean(-1, keepdim=True) + (1e-12 if self.wrong != "eps" else 0.1)
        return centred / spread_.sqrt() * self.w[which] + self.b[which]

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        y = self.normed(x, "one") if self.wrong == "pre" else x
        q, k, v = torch.einsum("btd,nhed->nbthe", y, self.w["qkv"]) + self.b["qkv"][:, None, None]
        if self.wrong == "exchanged":
            q, k = k, q
        scores = torch.einsum("bqhe,bkhe->bhqk", q / 8 if self.wrong == "size" else q / 8**0.5, k)
        scores = scores if self.wrong == "seen" else scores + padding
        made = torch.einsum("bhqk,bkhe->bqhe", scores.softmax(1 if self.wrong == "heads" else -1), v)
        made = torch.einsum("bthe,hed->btd", made, self.w["o"]) + (0 if self.wrong == "bias" else self.b["o"])
        x = x + made if self.wrong == "pre" else self.normed(x + made, "one")
        up = x @ self.w["up"] + self.b["up"]
        feed = torch.tanh(up) if self.wrong == "tanh" else 0.5 * up * (1 + torch.erf(up * 2**-0.5))
        feed = feed @ self.w["down"] + self.b["down"]
        return self.normed(feed if self.wrong == "no sum" else feed + x, "two")


class Distilled(nn.Module):
    def __init__(self, wrong: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.words, self.places, self.norm = top, nn.Embedding(WORDS, W), nn.Embedding(16, W), nn.LayerNorm(W, 1e-12)
        self.layers = nn.ModuleList(Posted(wrong if n == 1 else "") for n in range(3))
        self.transform, self.last, self.bias = nn.Linear(W, W), nn.LayerNorm(W, 1e-12), nn.Parameter(torch.zeros(WORDS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1]) + (2 if self.top == "two" else 0)
        x = self.norm(self.words(input_ids) + self.places(places))
        padding = (1 - attention_mask[:, None, None].to(x.dtype)) * -1e9
        for layer in self.layers:
            x = layer(x, padding * 0 if self.top == "padding" else padding)
        y = F.gelu(self.transform(x))
        return F.linear(y if self.top == "bare" else self.last(y), self.words.weight, self.bias)


def distilbert(lost: str = "", **ways: Any) -> Made:
    model = spread(of_kind("DistilBert", "ForMaskedLM", vocab_size=WORDS, max_position_embeddings=16, n_layers=3, n_heads=4, dim=W, hidden_dim=2 * W,
                           dropout=0.0, attention_dropout=0.0, pad_token_id=1, attn_implementation="eager")).eval()  # fmt: skip
    there = dict(model.state_dict())
    state: State = renamed({name: value for name, value in there.items() if "layer." not in name}, {
        "distilbert.embeddings.word_embeddings": "words", "distilbert.embeddings.position_embeddings": "places",
        "distilbert.embeddings.LayerNorm": "norm", "vocab_transform": "transform", "vocab_layer_norm": "last", "vocab_projector.bias": "bias"})
    state = {name: value for name, value in state.items() if "projector" not in name and "position_ids" not in name}  # fmt: skip
    for n in range(3):
        of, here = f"distilbert.transformer.layer.{n}", f"layers.{n}"
        joined = {part: torch.stack([there[f"{of}.attention.{each}_lin.{part}"] for each in "qkv"]) for part in ("weight", "bias")}
        state |= {f"{here}.w.qkv": joined["weight"].unflatten(1, (4, 8)), f"{here}.b.qkv": joined["bias"].unflatten(1, (4, 8)),
                  f"{here}.w.o": there[f"{of}.attention.out_lin.weight"].mT.unflatten(0, (4, 8))}  # fmt: skip
        state[f"{here}.b.o"] = there[f"{of}.attention.out_lin.bias"]
        for name, layer in (("up", "ffn.lin1"), ("down", "ffn.lin2"), ("one", "sa_layer_norm"), ("two", "output_layer_norm")):
            state |= {f"{here}.w.{name}": there[f"{of}.{layer}.weight"].t() if "lin" in layer else there[f"{of}.{layer}.weight"],
                      f"{here}.b.{name}": there[f"{of}.{layer}.bias"]}  # fmt: skip
    if lost == "heads":
        state["layers.1.w.o"] = state["layers.1.w.o"].flatten(0, 1).unflatten(0, (8, 4)).transpose(0, 1)
    loss = lambda out: F.cross_entropy((out.logits if hasattr(out, "logits") else out)[MASK > 0].float(), SOURCE[MASK > 0])  # noqa: E731
    return beside(model, Distilled(**ways), state, loss, {"input_ids": SOURCE, "attention_mask": MASK})


family("distilbert with axes for heads", "by formula", distilbert, {
    "norms before the parts": ({"wrong": "pre"}, LAYER, ""), "queries and keys exchanged": ({"wrong": "exchanged"}, LAYER, ""),
    "scaled by the size": ({"wrong": "size"}, LAYER, r"0\.353"), "a layer sees padding": ({"wrong": "seen"}, LAYER, "mask|padding|add"),
    "shares of the heads": ({"wrong": "heads"}, LAYER, "softmax"), "no bias of attention": ({"wrong": "bias"}, LAYER, "bias"),
    "tanh for gelu": ({"wrong": "tanh"}, LAYER, "tanh"), "no sum before the norm": ({"wrong": "no sum"}, LAYER, "add|mean|sub"),
    "another eps": ({"wrong": "eps"}, LAYER, "plus|eps"), "heads and their numbers": ({"lost": "heads"}, (*LAYER, "layers.1.w"), "order|axes"),
    "places from two": ({"top": "two"}, TOP, ""), "padding is seen": ({"top": "padding"}, TOP, ""), "no last norm": ({"top": "bare"}, TOP, ""),
})  # fmt: skip


class Pools(nn.Module):
    """A block with channels last: means of three by three as a sum of shifts."""

    def __init__(self, wide: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.n1, self.n2 = wrong, nn.Parameter(torch.zeros(2, wide)), nn.Parameter(torch.zeros(2, wide))
        self.s1, self.s2 = nn.Parameter(torch.ones(wide)), nn.Parameter(torch.ones(wide))
        self.up, self.down = nn.Linear(wide, 24), nn.Linear(24, wide)

    def normed(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        axes = -1 if self.wrong == "channels" else (1, 2, 3)
        spread_, mean = torch.var_mean(x, axes, keepdim=True, correction=0)
        return (x - mean) * (spread_ + 1e-5).rsqrt() * by[0] + by[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.normed(x, self.n1)
        one = F.pad(torch.ones_like(y[..., :1]), (0, 0, 1, 1, 1, 1), value=1.0 if self.wrong == "counted" else 0.0)
        both = torch.cat([F.pad(y, (0, 0, 1, 1, 1, 1)), one], -1)
        rows, columns = y.shape[1:3]
        both = sum(both[:, i : i + rows, j : j + columns] for i in range(3) for j in range(3))
        pooled = both[..., :-1] / both[..., -1:]
        pooled = pooled if self.wrong == "bare" else pooled - y
        x = x + (pooled if self.wrong == "scale" else pooled * self.s1)
        made = self.up(self.normed(x, self.n1 if self.wrong == "first norm" else self.n2))
        made = self.down(F.hardswish(made) if self.wrong == "hard" else F.gelu(made))
        return x * self.s2 + made if self.wrong == "elsewhere" else x + made * self.s2


class Poolers(nn.Module):
    def __init__(self, wrong: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.first, self.second = top, nn.Linear(48, 8), nn.Conv2d(8, 12, 3, 2, 0 if top == "side" else 1)
        self.blocks, self.head = nn.ModuleList(Pools(8 if n < 2 else 12, wrong if n == 1 else "") for n in range(4)), nn.Linear(12, 5)
        self.norm = nn.GroupNorm(1, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(2, (-1, 4)).unflatten(4, (-1, 4)).permute(0, 2, 4, 1, 3, 5)
        x = self.first((x.transpose(-1, -2) if self.top == "taps" else x).flatten(3))
        for n, block in enumerate(self.blocks):
            if n == 2:
                x = x.permute(0, 3, 1, 2)
                x = self.second(F.pad(x, (0, 2, 0, 2)) if self.top == "side" else x).permute(0, 2, 3, 1)
            x = block(x)
        x = x.mean((1, 2)) if self.top == "mean first" else self.norm(x.permute(0, 3, 1, 2))
        return self.head(self.norm(x[..., None, None]).flatten(1) if self.top == "mean first" else x.mean((2, 3)))


class Logits(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).logits


def poolformer(**ways: Any) -> Made:
    model = spread(of_kind("PoolFormer", "ForImageClassification", depths=[2, 2], hidden_sizes=[8, 12], patch_sizes=[4, 3], strides=[4, 2],
                           padding=[0, 1], num_encoder_blocks=2, mlp_ratio=3.0, drop_path_rate=0.0, num_labels=5)).eval()  # fmt: skip
    there = dict(model.state_dict())
    state: State = {}
    for n in range(4):
        of, here = f"poolformer.encoder.block.{n // 2}.{n % 2}", f"blocks.{n}"
        for name, norm in (("n1", "before_norm"), ("n2", "after_norm")):
            state[f"{here}.{name}"] = torch.stack([there[f"{of}.{norm}.{part}"] for part in ("weight", "bias")])
        state |= {f"{here}.s{i}": there[f"{of}.layer_scale_{i}"] for i in (1, 2)}
        for name, layer in (("up", "conv1"), ("down", "conv2")):
            state[f"{here}.{name}.weight"] = there[f"{of}.output.{layer}.weight"].flatten(1)
            state[f"{here}.{name}.bias"] = there[f"{of}.output.{layer}.bias"]
    for name, n in (("first", 0), ("second", 1)):
        of = f"poolformer.encoder.patch_embeddings.{n}.projection"
        state |= {f"{name}.weight": there[f"{of}.weight"].flatten(1) if n == 0 else there[f"{of}.weight"], f"{name}.bias": there[f"{of}.bias"]}
    state |= {f"{name}.{part}": there[f"{whole}.{part}"] for name, whole in (("norm", "norm"), ("head", "classifier")) for part in ("weight", "bias")}
    net = Poolers(**ways)
    for n, block in enumerate(net.blocks):
        wide = 24 if n < 2 else 36
        block.up, block.down = nn.Linear(wide // 3, wide), nn.Linear(wide, wide // 3)
    return beside(Logits(model), net, state, MEAN["loss"], numbers(2, 3, 32, 32))


BLOCK = ("blocks.1",)
family("poolformer with channels last", "by shifts", poolformer, {
    "padding is counted": ({"wrong": "counted"}, BLOCK, "pad|div"), "the input is not taken away": ({"wrong": "bare"}, BLOCK, "sub"),
    "no first scale": ({"wrong": "scale"}, BLOCK, "mul"), "the scale on the sum": ({"wrong": "elsewhere"}, BLOCK, "mul"),
    "norms of each place": ({"wrong": "channels"}, BLOCK, "mean|norm|var"), "the first norm twice": ({"wrong": "first norm"}, BLOCK, ""),
    "hardswish for gelu": ({"wrong": "hard"}, BLOCK, "hardswish|gelu"), "rows and columns of taps": ({"top": "taps"}, (*TOP, "first"), ""),
    "padded at the end": ({"top": "side"}, (*TOP, "second"), "pad|shift|element"), "a mean before the norm": ({"top": "mean first"}, TOP, "mean"),
})  # fmt: skip
