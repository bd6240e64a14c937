"""The twenty-sixth batch, second part: a checkpoint whose weights are dealt out to ranks, and scales that are folded into norms.

The issues: the same shard on each rank (vllm-gguf-plugin 103), joined weights that are split in the middle (Automodel 1324, vllm 36242), heads of
keys by rank (vllm 2379), a norm over a rank's share (sglang 20967); zeros that are one off (GPTQModel 2350), a zero that is subtracted twice
(llm-awq 324), a scale that is folded into the gain without its one (imp 1966).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, spread
from pair_fourteenth_scans import numbers
from pair_twentyfifth import WORDS
from pair_twentyfourth import LENGTH, TOP, B, State, W, ported
from pair_twentysixth import ATTEND, family
from torch import nn

FEED = ("layers.1.feed",)


class Block(nn.Module):
    """A whole block: four heads of queries, two of keys, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.RMSNorm(W, eps=1e-5), nn.RMSNorm(W, eps=1e-5)
        self.attend = nn.ModuleDict({"q": nn.Linear(W, W), "k": nn.Linear(W, W // 2), "v": nn.Linear(W, W // 2), "out": nn.Linear(W, W)})
        self.q_norm = nn.RMSNorm(W, eps=1e-5)
        self.feed = nn.ModuleDict({"gate": nn.Linear(W, 24, bias=False), "up": nn.Linear(W, 24, bias=False), "down": nn.Linear(24, W)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, (a, f) = self.norm(x), (self.attend, self.feed)
        q, k, v = (each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in (self.q_norm(a["q"](y)), a["k"](y), a["v"](y)))
        mixed = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True)
        x = x + a["out"](mixed.transpose(1, 2).flatten(2))
        y = self.last(x)
        return x + f["down"](F.silu(f["gate"](y)) * f["up"](y))


class Checkpoint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers, self.norm = nn.Embedding(22, W), nn.ModuleList([Block() for _ in range(3)]), nn.RMSNorm(W, eps=1e-5)
        self.head = nn.Linear(W, 22, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).float().log_softmax(-1)


class Heads(nn.Module):
    """The heads of all ranks: a joined weight for each, and partial sums."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.q_norm = wrong, nn.RMSNorm(W, eps=1e-5)
        self.qkv, self.out = nn.ModuleList([nn.Linear(W, W) for _ in range(2)]), nn.ModuleList([nn.Linear(W // 2, W, bias=n == 0) for n in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = zip(*(each(x).split([8, 4, 4], -1) for each in self.qkv), strict=True)
        if self.wrong == "norm":
            q = tuple(F.rms_norm(each, (8,), half, 1e-5) for each, half in zip(q, self.q_norm.weight.chunk(2), strict=True))
        else:
            q = self.q_norm(torch.cat(q, -1)).chunk(2, -1)
        k = k[::-1] if self.wrong == "keys" else k
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        made: Any = 0
        for query, key, value, out in zip(q, k, v, self.out, strict=True):
            scores = query.unflatten(-1, (2, 4)).transpose(1, 2) @ key[:, None].mT / (math.sqrt(8) if self.wrong == "scale" else 2)
            mixed = scores.masked_fill(~mask, -math.inf).softmax(-1) @ value[:, None]
            made = made + out(mixed.transpose(1, 2).flatten(2))
        return made


class Gated(nn.Module):
    """The gated layer of all ranks. `pairs`: rows of gates and of values in turn."""

    def __init__(self, pairs: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.pairs, self.wrong = pairs, wrong
        self.into = nn.ModuleList([nn.Linear(W, 24, bias=False) for _ in range(2)])
        self.down, self.bias = nn.ModuleList([nn.Linear(12, W, bias=False) for _ in range(2)]), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: Any = 0 if self.wrong == "bias" else self.bias
        for into, down in zip(self.into, self.down, strict=True):
            y = into(x)
            gate, up = (y[..., ::2], y[..., 1::2]) if self.pairs else y.chunk(2, -1)
            made = made + down((gate if self.wrong == "bent" else F.silu(gate)) * up) + (self.bias if self.wrong == "bias" else 0)
        return made / 2 if self.wrong == "mean" else made


class Ranked(nn.Module):
    def __init__(self, pairs: bool = False, attend: str = "", feed: str = "") -> None:
        super().__init__()
        self.norm, self.last, self.attend, self.feed = nn.RMSNorm(W, eps=1e-5), nn.RMSNorm(W, eps=1e-5), Heads(attend), Gated(pairs, feed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.feed(self.last(x))


class Ranks(nn.Module):
    """The words are dealt out too, to ranks of twelve, of which the last has two words that do not exist."""

    def __init__(self, pairs: bool = False, top: str = "", **second: str) -> None:
        super().__init__()
        self.top, self.words, self.norm = top, nn.ModuleList([nn.Embedding(12, W) for _ in range(2)]), nn.RMSNorm(W, eps=1e-5)
        self.layers = nn.ModuleList([Ranked(pairs, **(second if n == 1 else {})) for n in range(3)])
        self.heads = nn.ModuleList([nn.Linear(W, 12, bias=False) for _ in range(2)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: Any = 0
        for rank, words in enumerate(self.words):
            own = tokens - (11 if self.top == "first" and rank else 12) * rank
            inside = (own >= 0) & (own < 12)
            x = x + words(own.clamp(0, 11)) * inside[..., None]
        for layer in self.layers:
            x = layer(x)
        logits = torch.cat([head(self.norm(x)) for head in self.heads], -1).float()
        return logits.log_softmax(-1)[..., :22] if self.top == "padded" else logits[..., :22].log_softmax(-1)


def sharded(load: str = "", **ways: Any) -> Made:
    """`load`: what the loader does wrong for the second layer."""

    def convert(state: State) -> State:
        found, pairs = {"norm.weight": state["norm.weight"]}, ways.get("pairs", False)
        for rank in range(2):
            rows = slice(12 * rank, 12 * rank + 12)
            for name, at in (("words", "words"), ("head", "heads")):
                found[f"{at}.{rank}.weight"] = F.pad(state[f"{name}.weight"], (0, 0, 0, 2))[rows]
        for n in range(3):
            at = f"layers.{n}"
            found |= {f"{at}.{name}.weight": state[f"{at}.{name}.weight"] for name in ("norm", "last")}
            found |= {f"{at}.attend.q_norm.weight": state[f"{at}.q_norm.weight"], f"{at}.feed.bias": state[f"{at}.feed.down.bias"]}
            found[f"{at}.attend.out.0.bias"] = state[f"{at}.attend.out.bias"]
            for rank in range(2):
                found |= one_rank(state, at, rank, load if n == 1 else "", pairs)
        return found

    return ported(Checkpoint(), Ranks(**ways), WORDS, convert)


def one_rank(state: State, at: str, rank: int, load: str, pairs: bool) -> State:
    """The shards of a layer that a rank loads."""
    part = 0 if load == "same" else rank
    gate, up = (state[f"{at}.feed.{name}.weight"] for name in ("gate", "up"))
    into = torch.stack([gate.chunk(2)[part], up.chunk(2)[part]], 1 if pairs else 0).flatten(0, 1)
    into = torch.cat([gate, up]).chunk(2)[rank] if load == "joined" else into
    found = {f"{at}.feed.into.{rank}.weight": into, f"{at}.feed.down.{rank}.weight": state[f"{at}.feed.down.weight"].chunk(2, 1)[rank]}
    for kind in ("weight", "bias"):
        parts = [state[f"{at}.attend.{name}.{kind}"].chunk(2)[0 if load == "values" and name == "v" else rank] for name in "qkv"]
        found[f"{at}.attend.qkv.{rank}.{kind}"] = torch.cat(parts)
    found[f"{at}.attend.out.{rank}.weight"] = state[f"{at}.attend.out.weight"].chunk(2, 1)[1 - rank if load == "columns" else rank]
    return found


LOADED = ("layers.1.feed.into.0", "layers.1.feed.into.1", *FEED)
family("a checkpoint in shards", "two ranks", sharded, {
    "the same shard on each rank": ({"load": "same"}, LOADED, ""), "a joined weight split in the middle": ({"load": "joined"}, LOADED, ""),
    "the same values on each rank": ({"load": "values"}, ("layers.1.attend.qkv.1", *ATTEND), ""),
    "columns of the other rank": ({"load": "columns"}, ("layers.1.attend.out.0", "layers.1.attend.out.1", *ATTEND), ""),
    "a norm over a share": ({"attend": "norm"}, ATTEND, ""), "keys of the other rank": ({"attend": "keys"}, ATTEND, ""),
    "the scale of all heads": ({"attend": "scale"}, ATTEND, ""), "a bias on each rank": ({"feed": "bias"}, FEED, ""),
    "a mean over ranks": ({"feed": "mean"}, FEED, ""), "a gate that is not bent": ({"feed": "bent"}, FEED, ""),
    "words one off on the second rank": ({"top": "first"}, TOP, ""), "words that do not exist": ({"top": "padded"}, TOP, ""),
}, gates_and_values_in_turn={"pairs": True})  # fmt: skip


class Plus(nn.Module):
    """A norm whose gain is one more than its weight. `whole`: the gain itself."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.whole, self.weight = whole, nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (W,), self.weight if self.whole else 1 + self.weight, 1e-5)


class Grouped(nn.Module):
    """A product with numbers of four bits, each eight of which have a scale and a zero. `raw`: they are scaled in each call."""

    def __init__(self, rows: int, raw: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.raw, self.wrong, self.bias = raw, wrong, nn.Parameter(torch.zeros(rows))
        self.register_buffer("codes", torch.zeros(rows, W, dtype=torch.uint8))
        self.register_buffer("zeros", torch.zeros(rows, 2, dtype=torch.uint8))
        self.register_buffer("scales", torch.ones(rows, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes, zeros = self.codes.to(self.scales.dtype).unflatten(1, (2, 8)), self.zeros.to(self.scales.dtype)[..., None]
        zeros = {"one": zeros - 1, "eight": zeros + 8}.get(self.wrong, zeros)
        scales = (self.scales.flip(1) if self.wrong == "groups" else self.scales)[..., None]
        if self.raw:
            groups = x.unflatten(-1, (2, 8))
            products = (
                torch.einsum("...gi,ogi->...og", groups.to(scales.dtype), codes) - groups.sum(-1)[..., None, :].to(scales.dtype) * zeros[..., 0]
            )
            return (products * scales[..., 0]).sum(-1).to(x.dtype) + self.bias
        return F.linear(x, ((codes - zeros) * scales).flatten(1), self.bias)


class Smooth(nn.Module):
    """A norm, a product with four bits that expects its input divided by a scale of each channel, and a product. `folded`: the norm divides."""

    def __init__(self, folded: bool = False, raw: bool = False, wrong: str = "", codes: str = "") -> None:
        super().__init__()
        self.folded, self.wrong = folded, wrong
        self.norm, self.up, self.gate = Plus(folded), Grouped(24, raw, codes), Grouped(24, raw)
        self.down = nn.Linear(24, W)
        self.register_buffer("scale", torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = y if self.folded else y / self.scale
        gate = self.gate(y * self.scale if self.wrong == "gate" else y)
        return x + self.down(F.silu(gate) * self.up(y))


class Served(nn.Module):
    def __init__(self, folded: bool = False, raw: bool = False, **second: str) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Smooth(folded, raw, **(second if n == 1 else {})) for n in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def smoothed(load: str = "", **ways: Any) -> Made:
    """Models that are served: no weight has a gradient. `load`: what the script does wrong with the norm of the second layer."""
    torch.manual_seed(0)
    model, other = spread(Served()), Served(**ways)
    for layer in model.layers:
        layer.scale.copy_(torch.rand(W) * 3 + 0.4)
        for each in (layer.up, layer.gate):
            each.codes.random_(16)
            each.zeros.random_(5, 11)
            each.scales.copy_(torch.rand(24, 2) * 0.05 + 0.02)
    state = dict(model.state_dict())
    if ways.get("folded"):
        for n in range(3):
            gain, scale = 1 + state[f"layers.{n}.norm.weight"], state[f"layers.{n}.scale"]
            wrong = load if n == 1 else ""
            state[f"layers.{n}.norm.weight"] = {"times": gain * scale, "delta": 1 + (gain - 1) / scale, "none": gain}.get(wrong, gain / scale)
    other.load_state_dict(state)
    return model.requires_grad_(False), other.requires_grad_(False), numbers(3, LENGTH, 6), {}


GAIN, SCALED = ("layers.1.norm",), ("layers.1.up",)
family("scales folded into a norm", "the norm divides", lambda **bad: smoothed(**{"folded": True, **bad}), {
    "the gain is multiplied": ({"load": "times"}, GAIN, ""), "the weight is divided and not the gain": ({"load": "delta"}, GAIN, ""),
    "not divided": ({"load": "none"}, (*GAIN, *B), ""), "one of two products not divided": ({"wrong": "gate"}, B, ""),
    "zeros one off": ({"codes": "one"}, SCALED, ""), "eight more": ({"codes": "eight"}, SCALED, ""),
    "scales of the other group": ({"codes": "groups"}, SCALED, ""),
    "zeros one off in raw products": ({"codes": "one", "raw": True}, SCALED, ""),
}, raw_products={"raw": True}, not_folded_raw={"folded": False, "raw": True})  # fmt: skip
