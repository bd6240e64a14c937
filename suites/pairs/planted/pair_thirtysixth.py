"""A thirty-sixth batch, committed before the judge has seen it: FNet and RoFormer of transformers beside ports.

FNet with its spectrum by products with matrices of cosines and sines. RoFormer with one joined layer and pairs of numbers turned as complex ones,
where a first place of one is no fault. Faults are of the kinds that issues of earlier batches have: the other part of a complex number, halves
for pairs, the order of parts, norms and sums at other places, another scale, eps or function, padding that is seen.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, spread
from pair_thirtieth import TOP, WORDS, State, W, beside, family, heads
from pair_thirtysecond import MASK, SOURCE, of_kind, renamed
from torch import nn

LAYER, MIX = ("layers.1",), ("layers.1.mix",)


def told(kept: torch.Tensor) -> Any:
    """The loss of all words, or of those that are no padding."""
    return lambda out: F.cross_entropy((out.logits if hasattr(out, "logits") else out)[kept].float(), SOURCE[kept])


class Waves(nn.Module):
    """The real part of a transform along both axes, by matrices."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (c, s), (wide_c, wide_s) = (self.waves(size, x) for size in x.shape[1:])
        if self.wrong == "imaginary":
            return -(s @ x @ wide_c + c @ x @ wide_s)
        if self.wrong == "width":
            return x @ wide_c
        if self.wrong == "length":
            return c @ x
        both = c @ x @ wide_c + (s @ x @ wide_s if self.wrong == "plus" else -(s @ x @ wide_s))
        return both / (x.shape[1] * x.shape[2]) ** 0.5 if self.wrong == "norm" else both

    def waves(self, size: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(size, dtype=torch.float64)
        angles = (angles[:, None] * angles % size) * (2 * torch.pi / size)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Spectral(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.mix, self.up, self.down = wrong, Waves(wrong), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.n1, self.n2 = nn.LayerNorm(W, 1e-12), nn.LayerNorm(W, 0.1 if wrong == "eps" else 1e-12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.n1(self.mix(x) if self.wrong == "no sum" else self.mix(x) + x)
        made = self.up(mixed)
        made = F.gelu(made) if self.wrong == "erf" else 0.5 * made * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (made + 0.044715 * made**3)))
        return self.n2(self.down(made) + (x if self.wrong == "residual" else mixed))


class Spectra(nn.Module):
    def __init__(self, wrong: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.words, self.places, self.kinds = top, nn.Embedding(WORDS, W), nn.Embedding(16, W), nn.Parameter(torch.zeros(4, W))
        self.norm, self.enter = nn.LayerNorm(W, 1e-12), nn.Linear(W, W)
        self.layers = nn.ModuleList(Spectral(wrong if n == 1 else "") for n in range(3))
        self.leave, self.last, self.head = nn.Linear(W, W), nn.LayerNorm(W, 1e-12), nn.Parameter(torch.zeros(WORDS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        top = self.top
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]) + (top == "places")) + (0 if top == "kinds" else self.kinds[0])
        x = self.norm(self.enter(x)) if top == "exchanged" else self.enter(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        y = self.leave(x)
        y = y if top == "no function" else F.gelu(y, approximate="tanh")
        return F.linear(y if top == "bare" else self.last(y), self.words.weight, self.head)


def fnet(lost: str = "", **ways: Any) -> Made:
    model = spread(of_kind("FNet", "ForMaskedLM", vocab_size=WORDS, hidden_size=W, num_hidden_layers=3, intermediate_size=2 * W, pad_token_id=1,
                           hidden_dropout_prob=0.0, max_position_embeddings=16)).eval()  # fmt: skip
    state: State = renamed(dict(model.state_dict()), {
        "fnet.embeddings.word_embeddings": "words", "fnet.embeddings.position_embeddings": "places", "fnet.embeddings.LayerNorm": "norm",
        "fnet.embeddings.token_type_embeddings.weight": "kinds", "fnet.embeddings.projection": "enter", "fnet.encoder.layer": "layers",
        "fourier.output.LayerNorm": "n1", "intermediate.dense": "up", "output.dense": "down", "output.LayerNorm": "n2",
        "cls.predictions.transform.dense": "leave", "cls.predictions.transform.LayerNorm": "last",
        "cls.predictions.decoder.bias": "head"})  # fmt: skip
    if lost == "norms":
        for part in ("weight", "bias"):
            one, two = (f"layers.1.{name}.{part}" for name in ("n1", "n2"))
            state[one], state[two] = state[two], state[one]
    state = {name: value for name, value in state.items() if not name.startswith(("fnet", "cls"))}
    return beside(model, Spectra(**ways), state, told(SOURCE >= 0), SOURCE)


family("fnet by matrices", "at once", fnet, {
    "the imaginary part": ({"wrong": "imaginary"}, MIX, ""), "along the width alone": ({"wrong": "width"}, MIX, ""),
    "along the length alone": ({"wrong": "length"}, MIX, ""), "sines are added": ({"wrong": "plus"}, MIX, ""),
    "a transform that keeps lengths": ({"wrong": "norm"}, MIX, "times"), "no sum before the norm": ({"wrong": "no sum"}, LAYER, ""),
    "another eps": ({"wrong": "eps"}, ("layers.1.n2",), "eps"), "the exact gelu": ({"wrong": "erf"}, LAYER, "gelu|tanh"),
    "the sum with what was mixed": ({"wrong": "residual"}, LAYER, ""), "norms exchanged": ({"lost": "norms"}, ("layers.1.n1",), "n1|n2"),
    "places from one": ({"top": "places"}, TOP, ""), "no kinds of words": ({"top": "kinds"}, TOP, ""),
    "a layer before the norm": ({"top": "exchanged"}, TOP, ""), "no function before the last norm": ({"top": "no function"}, TOP, ""),
    "no last norm": ({"top": "bare"}, TOP, ""),
})  # fmt: skip


class Turns(nn.Module):
    """A complex number for each place and pair."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        rates = (1000.0 if self.wrong == "base" else 10000.0) ** (-torch.arange(0, 8, 2, dtype=torch.float64) / (W if self.wrong == "wide" else 8))
        return torch.polar(torch.ones(len(places), 4, dtype=torch.float64), places[:, None] * rates)


class Turned(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.qkv, self.out = wrong, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def turned(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        pairs = torch.stack(x.chunk(2, -1), -1) if self.wrong == "halves" else x.unflatten(-1, (-1, 2))
        wide = torch.complex64 if x.dtype is not torch.float64 else torch.complex128
        made = torch.view_as_real(torch.view_as_complex(pairs.to(wide.to_real()).contiguous()) * turns.to(wide))
        return (torch.cat(made.unbind(-1), -1) if self.wrong == "halves" else made.flatten(-2)).to(x.dtype)

    def forward(self, x: torch.Tensor, turns: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each, 8) for each in self.qkv(x).chunk(3, -1))
        q = self.turned(q, turns)
        k = k if self.wrong == "queries" else self.turned(k, turns.conj() if self.wrong == "apart" else turns)
        v = self.turned(v, turns) if self.wrong == "values" else v
        scores = q @ k.mT * (1 / 8 if self.wrong == "size" else 8**-0.5)
        scores = scores if self.wrong == "seen" else scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        made = (scores.softmax(-2 if self.wrong == "keys" else -1).to(v.dtype) @ v)
        return self.out(made.flatten(1, 2).unflatten(1, (x.shape[1], -1)).flatten(2) if self.wrong == "merged" else made.transpose(1, 2).flatten(2))


class Rotated(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.mix, self.up, self.down = wrong, Turned(wrong), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.n1, self.n2 = nn.LayerNorm(W, 1e-12), nn.LayerNorm(W, 1e-12)

    def forward(self, x: torch.Tensor, turns: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.n1(x), turns, seen) if self.wrong == "pre" else self.n1(x + self.mix(x, turns, seen))
        made = F.gelu(self.up(x), approximate="tanh" if self.wrong == "tanh" else "none")
        return self.n2(self.down(made) if self.wrong == "no sum" else x + self.down(made))


class Rotaries(nn.Module):
    def __init__(self, wrong: str = "", turns: str = "", top: str = "", begin: int = 0) -> None:
        super().__init__()
        self.top, self.begin, self.words, self.kinds = top, begin, nn.Embedding(WORDS, W), nn.Parameter(torch.zeros(2, W))
        self.norm = nn.LayerNorm(W, 1e-12)
        self.turns, self.layers = Turns(turns), nn.ModuleList(Rotated(wrong if n == 1 else "") for n in range(3))
        self.leave, self.last, self.bias = nn.Linear(W, W), nn.LayerNorm(W, 1e-12), nn.Parameter(torch.zeros(WORDS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids) + self.kinds[1 if self.top == "kind" else 0]
        x = x if self.top == "bare" else self.norm(x)
        places = torch.arange(input_ids.shape[1], dtype=torch.float64) + self.begin
        turns = self.turns(places.flip(0) if self.top == "backward" else places)
        seen = attention_mask.bool()[:, None, None]
        for layer in self.layers:
            x = layer(x, turns, torch.ones_like(seen) if self.top == "seen" else seen)
        y = self.last(F.gelu(self.leave(x)))
        return F.linear(y, self.words.weight, None if self.top == "bias" else self.bias)


def roformer(lost: str = "", **ways: Any) -> Made:
    model = spread(of_kind("RoFormer", "ForMaskedLM", vocab_size=WORDS, hidden_size=W, num_hidden_layers=3, num_attention_heads=4, pad_token_id=1,
                           intermediate_size=2 * W, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                           max_position_embeddings=16))  # fmt: skip
    table = model.roformer.encoder.embed_positions.weight
    with torch.no_grad():
        table.copy_(model.roformer.encoder.embed_positions.create_weight())
    model.tie_weights()
    model = model.eval()
    state: State = renamed(dict(model.state_dict()), {
        "roformer.embeddings.word_embeddings": "words", "roformer.embeddings.LayerNorm": "norm", "roformer.encoder.layer": "layers",
        "roformer.embeddings.token_type_embeddings.weight": "kinds", "attention.output.dense": "mix.out", "attention.output.LayerNorm": "n1",
        "intermediate.dense": "up", "output.dense": "down", "output.LayerNorm": "n2", "cls.predictions.transform.dense": "leave",
        "cls.predictions.transform.LayerNorm": "last", "cls.predictions.decoder.bias": "bias"})  # fmt: skip
    for n in range(3):
        for part in ("weight", "bias"):
            parts = [state.pop(f"layers.{n}.attention.self.{each}.{part}") for each in ("query", "key", "value")]
            state[f"layers.{n}.mix.qkv.{part}"] = torch.cat([parts[2], *parts[:2]] if lost == "order" and n == 1 else parts)
    state = {name: value for name, value in state.items() if not name.startswith(("roformer", "cls"))}
    return beside(model, Rotaries(**ways), state, told(MASK > 0), {"input_ids": SOURCE, "attention_mask": MASK})


family("roformer in complex numbers", "at once", roformer, {
    "halves for pairs": ({"wrong": "halves"}, MIX, ""), "values are turned": ({"wrong": "values"}, MIX, ""),
    "queries alone are turned": ({"wrong": "queries"}, MIX, ""), "keys turned backward": ({"wrong": "apart"}, MIX, ""),
    "scaled by the size": ({"wrong": "size"}, MIX, r"0\.353"), "a layer sees padding": ({"wrong": "seen"}, MIX, "mask|hidden"),
    "shares of the queries": ({"wrong": "keys"}, MIX, "softmax"), "heads merged without their places": ({"wrong": "merged"}, MIX, "order|shape"),
    "norms before the parts": ({"wrong": "pre"}, LAYER, ""), "the gelu by tanh": ({"wrong": "tanh"}, LAYER, "gelu|tanh"),
    "no second sum": ({"wrong": "no sum"}, LAYER, ""), "another base": ({"turns": "base"}, ("turns",), ""),
    "rates of the whole width": ({"turns": "wide"}, ("turns",), ""), "places turned round": ({"top": "backward"}, TOP, ""),
    "padding is seen": ({"top": "seen"}, TOP, ""), "the second kind of words": ({"top": "kind"}, TOP, ""),
    "words without a norm": ({"top": "bare"}, TOP, ""),
    "no bias of the head": ({"top": "bias"}, TOP, "bias"),
    "values, queries and keys": ({"lost": "order"}, (*MIX, "layers.1.mix.qkv"), "order|which is right"),
}, places_from_one={"begin": 1})  # fmt: skip
