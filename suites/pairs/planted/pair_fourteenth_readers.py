"""A fourteenth batch, second part: a translator with caches and an encoder with windows, as transformers has them, beside hand-written ones.

Faults as such ports have them: places without their offset, a cache of another layer, padding that is seen, a window of one more.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth import turned
from pair_tenth import Only
from torch import nn

W, WORDS, SIZE, HEADS, WIDE = 32, 23, 8, 4, 40
Held = dict[str, torch.Tensor]


def by_heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)


class Reading(nn.Module):
    """Attention whose queries are of `x`, and keys of `memory`. `held`: what was read before. `scale`: of scores."""

    def __init__(self, scale: float = SIZE**-0.5, swapped: bool = False, flash: bool = True) -> None:
        super().__init__()
        self.scale, self.swapped, self.flash = scale, swapped, flash
        self.q, self.kv, self.out = nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(W, W)

    def keys(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = (by_heads(each) for each in self.kv(memory).chunk(2, -1))
        return (v, k) if self.swapped else (k, v)

    def forward(self, x: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor], seen: torch.Tensor) -> torch.Tensor:
        q, (k, v) = by_heads(self.q(x)), keys
        if self.flash:
            made = F.scaled_dot_product_attention(q, k, v, seen, scale=self.scale)
        else:
            made = ((q * self.scale) @ k.mT).float().masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype) @ v
        return self.out(made.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer of the encoder, or with `cross` of the decoder. `before`: its norms come before branches."""

    def __init__(self, cross: bool, before: bool = False, tanh: bool = False, blind: bool = True, ahead: int = 0, own: Any = None, other: Any = None,
                 theirs: bool = False, eps: float = 1e-5, flash: bool = True) -> None:  # fmt: skip
        super().__init__()
        self.before, self.tanh, self.blind, self.ahead, self.theirs = before, tanh, blind, ahead, theirs
        self.own, self.own_norm = Reading(flash=flash, **(own or {})), nn.LayerNorm(W, eps)
        if cross:
            self.cross, self.cross_norm = Reading(flash=flash, **(other or {})), nn.LayerNorm(W)
        self.up, self.down, self.norm = nn.Linear(W, WIDE), nn.Linear(WIDE, W), nn.LayerNorm(W)

    def branch(self, x: torch.Tensor, norm: nn.Module, part: Any) -> torch.Tensor:
        return x + part(norm(x)) if self.before else norm(x + part(x))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh" if self.tanh else "none"))

    def forward(self, x: torch.Tensor, seen: torch.Tensor, held: Held | None = None, memory: Any = None, shown: Any = None) -> torch.Tensor:
        def own(x: torch.Tensor) -> torch.Tensor:
            k, v = self.own.keys(x)
            if held is not None:
                k, v = (torch.cat([held[name], new], 2) if name in held else new for name, new in (("k", k), ("v", v)))
                held.update(k=k, v=v)
                places = torch.arange(k.shape[2])
                return self.own(x, (k, v), places[-x.shape[1] :, None] + self.ahead >= places)
            return self.own(x, (k, v), seen if self.blind else torch.ones_like(seen))

        def cross(x: torch.Tensor) -> torch.Tensor:
            assert held is not None
            if "cross_k" not in held:
                held["cross_k"], held["cross_v"] = self.cross.keys(memory)
            return self.cross(x, (held["cross_k"], held["cross_v"]), shown if self.blind else torch.ones_like(shown))

        x = self.branch(x, self.own_norm, own)
        x = x if memory is None else self.branch(x, self.cross_norm, cross)
        return self.branch(x, self.norm, self.feed)


class Translator(nn.Module):
    """`pieces`: how many tokens at a time. `encoder_bad` and `decoder_bad`: ways of second layers."""

    def __init__(self, offset: int = 2, scaled: bool = True, raw: bool = False, bias: bool = True, pieces: int = 6, places: bool = True,
        rows: bool = False,
                 shared: bool = False, encoder_bad: Any = None, decoder_bad: Any = None, flash: bool = True) -> None:  # fmt: skip
        super().__init__()
        self.offset, self.scaled, self.raw, self.biased, self.pieces, self.placed, self.rows, self.shared = (
            offset, scaled, raw, bias, pieces, places, rows, shared)  # fmt: skip
        self.words, self.places_in, self.places_out = nn.Embedding(WORDS, W), nn.Embedding(18, W), nn.Embedding(18, W)
        self.begin_in, self.begin_out = nn.LayerNorm(W), nn.LayerNorm(W)
        self.encoder = nn.ModuleList([Layer(False, flash=flash), Layer(False, flash=flash, **(encoder_bad or {}))])
        self.decoder = nn.ModuleList([Layer(True, flash=flash), Layer(True, flash=flash, **(decoder_bad or {}))])
        self.register_buffer("bias", torch.zeros(1, WORDS))

    def embedded(self, ids: torch.Tensor, places: nn.Module, norm: nn.Module, begin: int = 0) -> torch.Tensor:
        where = torch.arange(ids.shape[1]) + self.offset + (begin if self.placed else 0)
        return norm(self.words(ids) * (math.sqrt(W) if self.scaled else 1) + places(where))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        if not self.rows:
            return self.translated(ids, mask.bool(), wanted)
        parts = zip(ids.split(1), mask.bool().split(1), wanted.split(1), strict=True)  # each row without its padding
        return torch.cat([self.translated(row[:, see[0]], see[:, see[0]], want) for row, see, want in parts])

    def translated(self, ids: torch.Tensor, seen: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        seen = seen[:, None, None]
        first = memory = self.embedded(ids, self.places_in, self.begin_in)
        for layer in self.encoder:
            memory = layer(memory, seen)
        held: list[Held] = [{} for _ in self.decoder]
        made, begin = [], 0
        for piece in wanted.split(self.pieces, 1):
            x = self.embedded(piece, self.places_out, self.begin_out, begin)
            for number, layer in enumerate(self.decoder):
                if self.shared and number and "cross_k" not in held[number]:
                    held[number] |= {name: value for name, value in held[0].items() if name.startswith("cross")}
                x = layer(x, seen, held[number], first if self.raw else memory, seen)
            made.append(F.linear(x, self.words.weight, self.bias[0].to(x.dtype) if self.biased else None))
            begin += piece.shape[1]
        return torch.cat(made, 1)


def translated(attention: str = "sdpa", **ways: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    model: Any = spread(transformers.BartForConditionalGeneration(transformers.BartConfig(
        vocab_size=WORDS, d_model=W, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
        encoder_ffn_dim=WIDE, decoder_ffn_dim=WIDE, max_position_embeddings=16, scale_embedding=True, use_cache=False, pad_token_id=1,
        attn_implementation=attention))).eval()  # fmt: skip
    model.final_logits_bias.normal_()
    other = Translator(**ways).eval()
    state, found = model.state_dict(), {"bias": model.final_logits_bias, "words.weight": model.model.shared.weight}
    for side, short in (("encoder", "in"), ("decoder", "out")):
        held = {name.removeprefix(f"model.{side}."): value for name, value in state.items() if name.startswith(f"model.{side}.")}
        found[f"places_{short}.weight"] = held["embed_positions.weight"]
        for name, value in held.items():
            if name.startswith("layernorm_embedding"):
                found[name.replace("layernorm_embedding", f"begin_{short}")] = value
            if name.startswith("layers") and "k_proj" not in name and "v_proj" not in name:
                for old, new in (("layers", side), ("self_attn_layer_norm", "own_norm"), ("encoder_attn_layer_norm", "cross_norm"),
                    ("self_attn", "own"),
                                 ("encoder_attn", "cross"), ("_proj", ""), ("fc1", "up"), ("fc2", "down"), ("final_layer_norm", "norm")):  # fmt: skip
                    name = name.replace(old, new)
                found[name] = value
            elif "k_proj" in name:
                name, v = name.replace("k_proj", "kv"), held[name.replace("k_proj", "v_proj")]
                name = name.replace("layers", side).replace("self_attn", "own").replace("encoder_attn", "cross")
                found[name] = torch.cat([value, v])
    other.load_state_dict(found)
    generator = torch.Generator().manual_seed(2)
    ids, wanted = (torch.randint(3, WORDS, (2, length), generator=generator) for length in (7, 6))
    mask = torch.ones_like(ids)
    mask[1, 4:], ids[1, 4:] = 0, 1
    return Only(model), other, (ids, mask, wanted), dict(MEAN)


class Near(nn.Module):
    """Attention of tokens to both sides, with a window or without. `window`: how far tokens see to each side."""

    def __init__(self, window: int, base: float, way: str = "torch", scale: float = SIZE**-0.5, mixed: bool = False, blind: bool = True,
        side: int = 0) -> None:
        super().__init__()
        self.window, self.base, self.way, self.scale, self.mixed, self.blind, self.side = window, base, way, scale, mixed, blind, side
        self.qkv, self.out = nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        made = self.qkv(x)
        q, k, v = made.unflatten(-1, (HEADS, 3, SIZE)).unbind(-2) if self.mixed else made.unflatten(-1, (3, HEADS, SIZE)).unbind(-3)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        places = torch.arange(x.shape[1])
        q, k = (turned(each, 1.0, self.base, False, places) for each in (q, k))
        far = places[:, None] - places
        seen = (far.abs() <= self.window) & (far <= self.window - self.side)
        seen = seen & mask[:, None, None] if self.blind else seen.expand(len(x), 1, -1, -1)
        if self.way == "torch":
            made = F.scaled_dot_product_attention(q, k, v, seen, scale=self.scale)
        else:
            scores = (torch.einsum("bhtd,bhsd->bhts", q, k).float() * self.scale).masked_fill(~seen, -1e30)
            scores = (scores - scores.amax(-1, keepdim=True)).exp()
            made = torch.einsum("bhts,bhsd->bhtd", (scores / scores.sum(-1, keepdim=True)).to(v.dtype), v)
        return self.out(made.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, swapped: bool = False, act: str = "none") -> None:
        super().__init__()
        self.swapped, self.act, self.both, self.down = swapped, act, nn.Linear(W, 2 * WIDE, bias=False), nn.Linear(WIDE, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.both(x).chunk(2, -1)
        one, two = (two, one) if self.swapped else (one, two)
        return self.down((F.silu(one) if self.act == "silu" else F.gelu(one, approximate=self.act)) * two)


class Sided(nn.Module):
    def __init__(self, kinds: list[str], bad: Any = None, feed: Any = None, way: str = "torch", packed: bool = False, eps: float = 1e-5,
        first: bool = False) -> None:
        super().__init__()
        self.packed, self.first = packed, first
        self.words, self.begin, self.last = nn.Embedding(WORDS, W), nn.LayerNorm(W, bias=False), nn.LayerNorm(W, eps, bias=False)
        ways = [{"window": 99, "base": 160000.0} if kind.startswith("full") else {"window": 2, "base": 10000.0} for kind in kinds]
        self.attend = nn.ModuleList([Near(**{**each, "way": way, **((bad or {}) if number == 2 else {})}) for number, each in enumerate(ways)])
        self.feed = nn.ModuleList([Gated(**((feed or {}) if number == 2 else {})) for number in range(3)])
        self.one, self.two = (nn.ModuleList([nn.LayerNorm(W, bias=False) for _ in range(count)]) for count in (2, 3))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x, mask = self.begin(self.words(ids)), mask.bool()
        for number, (attend, feed, two) in enumerate(zip(self.attend, self.feed, self.two, strict=True)):
            x = x + attend(self.one[number - 1](x) if number else F.layer_norm(x, (W,)) if self.first else x, mask)
            if self.packed:
                x = x.index_put((mask,), x[mask] + feed(two(x[mask])))
            else:
                x = x + feed(two(x))
        return self.last(x)


def sided(attention: str = "sdpa", **ways: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    model: Any = spread(transformers.ModernBertModel(transformers.ModernBertConfig(
        vocab_size=WORDS, hidden_size=W, intermediate_size=WIDE, num_hidden_layers=3, num_attention_heads=HEADS, local_attention=4, pad_token_id=0,
        attn_implementation=attention))).eval()  # fmt: skip
    other, found = Sided(model.config.layer_types, **ways).eval(), {}
    for name, value in model.state_dict().items():
        for old, new in (("embeddings.tok_embeddings", "words"), ("embeddings.norm", "begin"), ("final_norm", "last")):
            name = name.replace(old, new)
        if name.startswith("layers."):
            number, part = name.removeprefix("layers.").split(".", 1)
            for old, new in (("attn.Wqkv", "attend.N.qkv"), ("attn.Wo", "attend.N.out"), ("attn_norm", f"one.{int(number) - 1}"),
                ("mlp_norm", "two.N"),
                             ("mlp.Wi", "feed.N.both"), ("mlp.Wo", "feed.N.down")):  # fmt: skip
                part = part.replace(old, new)
            name = part.replace("N", number)
        found[name] = value
    other.load_state_dict(found)
    ids = torch.randint(3, WORDS, (2, 9), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    kept = mask.bool()

    def loss(out: torch.Tensor) -> torch.Tensor:
        return out[kept].float().mul(torch.linspace(-1, 2, W)).square().mean()

    return Chosen(Only(model, "last_hidden_state")), Chosen(other), (ids, mask), {"loss": loss}


class Chosen(nn.Module):
    """What is padding is given as zeros."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.net(ids, mask) * mask[..., None]


for way, given in {"at once": {}, "a token at a time": {"pieces": 1}, "three at a time": {"pieces": 3, "flash": False},
    "by formulas": {"flash": False},
                   "rows without padding": {"rows": True}, "beside eager attention": {"attention": "eager"}}.items():  # fmt: skip
    healthy("bart", way, lambda given=given: translated(**given))  # type: ignore[misc]
for fault, modules, bad in (
    ("places two rows lower", ("", "places_in"), {"offset": 0}), ("words not scaled", ("", "words"), {"scaled": False}),
    ("the source before its encoder", ("",), {"raw": True}), ("no bias of logits", ("",), {"bias": False}),
    ("places that stay", ("", "places_out"), {"pieces": 2, "places": False}),
    ("one cache for both layers", ("", "decoder.1", "decoder.1.cross"), {"shared": True}),
    ("norms before branches", ("decoder.1",), {"decoder_bad": {"before": True}}),
    ("padding seen by the encoder", ("encoder.1", "encoder.1.own"), {"encoder_bad": {"blind": False}}),
    ("padding seen by the decoder", ("decoder.1", "decoder.1.cross"), {"decoder_bad": {"blind": False}}),
    ("the next token seen", ("decoder.1", "decoder.1.own"), {"decoder_bad": {"ahead": 1}}),
    ("gelu by tanh", ("decoder.1",), {"decoder_bad": {"tanh": True}}), ("no scale", ("decoder.1.cross",), {"decoder_bad": {"other": {"scale": 1.0}}}),
    ("keys and values swapped", ("decoder.1.cross", "decoder.1.cross.kv", "decoder.1"), {"decoder_bad": {"other": {"swapped": True}}}),
    ("an eps of 1e-2", ("encoder.1.own_norm",), {"encoder_bad": {"eps": 1e-2}}),
):  # fmt: skip
    broken("bart", fault, lambda bad=bad: translated(**bad), *modules)  # type: ignore[misc]
for way, given in {"torch's kernel": {}, "by formulas": {"way": "formulas"}, "packed": {"packed": True},
    "beside eager attention": {"attention": "eager"}}.items():
    healthy("modern bert", way, lambda given=given: sided(**given))  # type: ignore[misc]
for fault, modules, bad in (
    ("a window of one more", ("net.attend.2",), {"bad": {"window": 3}}),
    ("a window of one less to the left", ("net.attend.2",), {"bad": {"side": 1}}),
    ("the base of whole attention", ("net.attend.2",), {"bad": {"base": 160000.0}}),
    ("queries, keys and values by heads", ("net.attend.2",), {"bad": {"mixed": True}}),
    ("padding seen", ("net.attend.2",), {"bad": {"window": 5, "blind": False}}),
    ("gate and input swapped", ("net.feed.2",), {"feed": {"swapped": True}}),
    ("silu for gelu", ("net.feed.2",), {"feed": {"act": "silu"}}), ("gelu by tanh", ("net.feed.2",), {"feed": {"act": "tanh"}}),
    ("an eps of 1e-1", ("net.last",), {"eps": 1e-1}), ("a norm before the first layer", ("net",), {"first": True}),
):  # fmt: skip
    broken("modern bert", fault, lambda bad=bad: sided(**bad), *modules)  # type: ignore[misc]
