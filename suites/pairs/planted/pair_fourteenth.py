"""A fourteenth batch, committed before the judge has seen any of it: six decoders of transformers beside one hand-written decoder.

Faults as such ports have them: another layout of rotary pairs, heads of keys tiled, a norm over the wrong width,
    a multiplier that is left out. A fault
is in the second of two blocks where it can be.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, language_loss, spread
from pair_tenth import Only
from torch import nn
from torch.utils.checkpoint import checkpoint

W, WORDS, LENGTH, SIZE, HEADS, GROUPS, WIDE = 32, 23, 8, 8, 4, 2, 40


@dataclasses.dataclass(frozen=True)
class Kind:
    """A decoder. `where` its norms are: before or after branches, or one or two of them before branches side by side. `turned`: the share of a head
    that is turned by places, as halves or as neighbours. `normed`: queries and keys, by heads or whole."""

    norm: str = "rms"
    eps: float = 1e-6
    where: str = "before"
    turned: float = 1.0
    neighbours: bool = False
    normed: str = ""
    gated: bool = True
    biased: bool = False
    groups: int = GROUPS
    scale: float = SIZE**-0.5
    residual: float = 1.0
    words: float = 1.0
    logits: float = 1.0
    base: float = 10000.0
    act: str = "silu"


class Norm(nn.Module):
    def __init__(self, kind: Kind, width: int, eps: float = 0, axis: int = -1, **_: Any) -> None:
        super().__init__()
        self.kind, self.eps, self.axis, self.weight = kind.norm, eps or kind.eps, axis, nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if kind.norm == "layer" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        if self.kind != "rms":
            wide = wide - wide.mean(self.axis, keepdim=True)
        wide = wide / (wide.square().mean(self.axis, keepdim=True) + self.eps).sqrt() * self.weight.float()
        return (wide if self.bias is None else wide + self.bias.float()).to(x.dtype)


def turned(x: torch.Tensor, share: float, base: float, neighbours: bool, places: torch.Tensor) -> torch.Tensor:
    """Heads turned by their places, as complex numbers. Shape (batch, heads, length, size)."""
    size = int(x.shape[-1] * share)
    pairs, rest = x[..., :size].float(), x[..., size:]
    pairs = pairs.unflatten(-1, (-1, 2)) if neighbours else pairs.unflatten(-1, (2, -1)).mT
    angles = places[:, None] * base ** -(torch.arange(0, size, 2) / size)
    made = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles))
    return torch.cat([(made if neighbours else made.mT).flatten(-2).to(x.dtype), rest], -1)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scale: float, kind: str) -> torch.Tensor:
    """Attention of queries (batch, heads, length, size) that share keys (batch, groups, length, size), by torch's kernel or in three other ways."""
    if kind == "torch":
        return F.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
    share = q.shape[1] // k.shape[1]
    if kind == "groups":
        scores = torch.einsum("bgrtd,bgsd->bgrts", q.unflatten(1, (-1, share)), k).float() * scale
        return torch.einsum("bgrts,bgsd->bgrtd", scores.masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype), v).flatten(1, 2)
    k, v = (each.repeat(1, share, 1, 1) if kind == "tiled" else each.repeat_interleave(share, 1) for each in (k, v))
    if kind == "blocks":
        most, sums, made = torch.full_like(q[..., :1].float(), -1e30), torch.zeros_like(q[..., :1]).float(), torch.zeros_like(q).float()
        for keys, values, see in zip(k.split(3, 2), v.split(3, 2), seen.split(3, -1), strict=True):
            scores = ((q @ keys.mT).float() * scale).masked_fill(~see, -1e30)
            new = torch.maximum(most, scores.amax(-1, keepdim=True))
            shares, old, most = (scores - new).exp().masked_fill(~see, 0), (most - new).exp(), new
            sums, made = sums * old + shares.sum(-1, keepdim=True), made * old + shares @ values.float()
        return (made / sums).to(v.dtype)
    return ((q @ k.mT).float() * scale).masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype) @ v


class Attend(nn.Module):
    def __init__(self, kind: Kind, **ways: Any) -> None:
        super().__init__()
        self.kind, self.ways, self.groups = dataclasses.replace(kind, **ways.get("other", {})), ways, kind.groups
        self.widths = [HEADS * SIZE, kind.groups * SIZE, kind.groups * SIZE]
        if ways.get("fused", True):
            self.qkv = nn.Linear(W, sum(self.widths), kind.biased and not ways.get("unbiased"))
        else:
            self.q, self.k, self.v = (nn.Linear(W, width, kind.biased) for width in self.widths)
        self.out = nn.Linear(HEADS * SIZE, W, kind.biased)
        if kind.normed:
            self.q_norm, self.k_norm = (Norm(kind, SIZE if kind.normed == "heads" else width, **ways) for width in self.widths[:2])

    def forward(self, x: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
        kind, ways = self.kind, self.ways
        q, k, v = self.qkv(x).split(self.widths, -1) if "qkv" in self._modules else (self.q(x), self.k(x), self.v(x))
        if kind.normed == "whole" and not ways.get("by_heads"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (each.unflatten(-1, (-1, SIZE)) for each in (q, k, v))
        if kind.normed == "whole" and ways.get("by_heads"):
            q, k = (F.rms_norm(e.float(), (SIZE,), n.weight.view(-1, SIZE)[0].float(), 1e-6).to(e.dtype) for e,
                n in ((q, self.q_norm), (k, self.k_norm)))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        places = torch.arange(x.shape[1]) + (held[0].shape[2] if held else 0)
        if kind.normed == "heads" and not ways.get("late_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (turned(each, kind.turned, kind.base, kind.neighbours, places + more) for each, more in ((q, ways.get("ahead", 0)), (k, 0)))
        if kind.normed == "heads" and ways.get("late_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        if held:
            k, v = torch.cat([held[0], k], 2), torch.cat([held[1], v], 2)
        held[:] = k, v
        seen = places[:, None] + ways.get("sees", 0) >= torch.arange(k.shape[2])
        made = attended(q, k, v, seen, kind.scale, ways.get("way", "torch"))
        return self.out(made.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, kind: Kind, **ways: Any) -> None:
        super().__init__()
        self.act = {"silu": F.silu, "gelu": F.gelu, "tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu}[ways.get("act", kind.act)]
        self.gated, self.swapped = kind.gated, ways.get("swapped", False)
        if kind.gated:
            self.both = nn.Linear(W, 2 * WIDE, kind.biased)
        else:
            self.up = nn.Linear(W, WIDE, kind.biased)
        self.down = nn.Linear(WIDE, W, kind.biased)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.gated:
            return self.down(self.act(self.up(x)))
        gate, up = self.both(x).chunk(2, -1)
        return self.down(self.act(up) * gate if self.swapped else self.act(gate) * up)


class Block(nn.Module):
    def __init__(self, kind: Kind, **ways: Any) -> None:
        super().__init__()
        self.where, self.residual = ways.get("where", kind.where), ways.get("residual", kind.residual)
        self.attend, self.feed = Attend(kind, **ways), Feed(kind, **ways)
        self.one = Norm(kind, W, **ways.get("one", {}))
        self.two = Norm(kind, W, **ways.get("two", {})) if kind.where != "shared" else None

    def forward(self, x: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
        two = self.two or self.one
        if self.where == "after":
            x = x + self.one(self.attend(x, held))
            return x + two(self.feed(x))
        if self.where == "shared":
            hidden = self.one(x)
            return x + self.attend(hidden, held) + self.feed(hidden)
        if self.where == "parallel":
            return x + self.attend(self.one(x), held) + self.feed(two(x))
        if self.where == "outside":  # norms of the sums, as in the first transformers
            x = self.one(x + self.attend(x, held))
            return two(x + self.feed(x))
        x = x + self.residual * self.attend(self.one(x), held)
        return x + self.residual * self.feed(two(x))


class Decoder(nn.Module):
    """`bad`: ways of the second block alone. `pieces`: how many tokens at a time, with a cache."""

    def __init__(self, kind: Kind, bad: dict[str, Any] | None = None, pieces: int = LENGTH, saved: bool = True, **ways: Any) -> None:
        super().__init__()
        self.kind, self.pieces, self.saved, self.tied = kind, pieces, saved, ways.get("tied", False)
        self.scales = ways.get("scales", (kind.words, kind.logits))
        self.words, self.norm, self.head = nn.Embedding(WORDS, W), Norm(kind, W, **ways.get("last", {})), nn.Linear(W, WORDS,
            ways.get("head_bias", False))
        self.blocks = nn.ModuleList([Block(kind, **ways), Block(kind, **ways, **(bad or {}))])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        held: list[list[torch.Tensor]] = [[] for _ in self.blocks]
        made = []
        for piece in ids.split(self.pieces, 1):
            x = self.words(piece) * self.scales[0]
            for block, own in zip(self.blocks, held, strict=True):
                x = block(x, own) if self.saved else checkpoint(lambda x, block=block: block(x, []), x, use_reentrant=False)
            made.append(self.head(self.norm(x)) * self.scales[1])
        return torch.cat(made, 1)


RENAMED = (
    (r"^(model|gpt_neox)\.", ""), ("^(embed_tokens|embed_in)", "words"), ("^layers", "blocks"), ("^(final_layernorm|final_layer_norm)", "norm"),
    ("^(lm_head|embed_out)", "head"), ("self_attn|attention(?=[.]q|[.]d)", "attend"), ("[.]([qkv])_proj", r".\1"), ("o_proj|attend.dense", "out"),
    (r"(\d)\.out", r"\1.attend.out"), ("mlp", "feed"), ("gate_proj", "gate"), ("up_proj|fc1|dense_h_to_4h", "up"),
    ("down_proj|fc2|dense_4h_to_h", "down"),
    ("input_layernorm", "one"),
)  # fmt: skip


def ported(model: nn.Module, kind: Kind, fused: bool) -> dict[str, torch.Tensor]:
    """The weights of a model of transformers under the decoder's names."""
    found = {}
    for name, value in model.state_dict().items():
        for before, after in (*RENAMED, *((("post_attention_layernorm", "one"), ("post_feedforward_layernorm", "two")) if kind.where == "after" else
                                          (("post_attention_layernorm", "two"),))):  # fmt: skip
            name = re.sub(before, after, name)
        found[name] = value
    for name in [name for name in found if "query_key_value" in name]:
        parts = found.pop(name).unflatten(0, (HEADS, 3, SIZE)).unbind(1)
        found |= {name.replace("query_key_value", each): part.flatten(0, 1) for each, part in zip("qkv", parts, strict=True)}
    for name in [name for name in found if ".attend.q." in name and fused]:
        found[name.replace(".q.", ".qkv.")] = torch.cat([found.pop(name.replace(".q.", f".{each}.")) for each in "qkv"])
    for name in [name for name in found if ".gate." in name]:
        found[name.replace(".gate.", ".both.")] = torch.cat([found.pop(name), found.pop(name.replace(".gate.", ".up."))])
    return found


COMMON: dict[str, Any] = {"hidden_size": W, "intermediate_size": WIDE, "num_hidden_layers": 2, "num_attention_heads": HEADS, "vocab_size": WORDS,
                          "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}  # fmt: skip
MODELS: dict[str, tuple[Kind, str, dict[str, Any]]] = {
    "qwen": (Kind(normed="heads"), "Qwen3", {"num_key_value_heads": GROUPS, "head_dim": SIZE, "tie_word_embeddings": True}),
    "olmo": (Kind(normed="whole", where="after"), "Olmo2", {"num_key_value_heads": GROUPS, "rms_norm_eps": 1e-6}),
    "neox": (Kind("layer", 1e-5, "parallel", 0.5, gated=False, biased=True, groups=HEADS, act="gelu"), "GPTNeoX", {"partial": 0.5}),
    "phi": (Kind("layer", 1e-5, "shared", 0.5, gated=False, biased=True, act="tanh"), "Phi", {"num_key_value_heads": GROUPS, "partial": 0.5}),
    "cohere": (Kind("centred", 1e-5, "shared", neighbours=True, logits=0.25), "Cohere", {"num_key_value_heads": GROUPS, "logit_scale": 0.25}),
    "granite": (Kind(scale=0.2, residual=0.5, words=3.0, logits=0.25), "Granite", {
        "num_key_value_heads": GROUPS, "attention_multiplier": 0.2, "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 4.0}),
}  # fmt: skip


def pair(name: str, attention: str = "sdpa", compiled: bool = False, **ways: Any) -> Made:
    import transformers

    kind, library, given = MODELS[name]
    given = dict(given)
    rope = {"rope_type": "default", "rope_theta": kind.base} | ({"partial_rotary_factor": given.pop("partial")} if "partial" in given else {})
    torch.manual_seed(0)
    config = getattr(transformers, f"{library}Config")(**COMMON, **given, rope_parameters=rope, attn_implementation=attention)
    model = spread(getattr(transformers, f"{library}ForCausalLM")(config)).eval()
    other = Decoder(kind, head_bias=getattr(model, "lm_head", None) is not None and model.lm_head.bias is not None, **ways)
    if "tied" not in ways and config.tie_word_embeddings:
        other.head.weight = other.words.weight
    state = ported(model, kind, ways.get("fused", True))
    bad = ways.get("bad") or {}
    other.load_state_dict({name: value for name, value in state.items() if not (bad.get("unbiased") and "blocks.1.attend.qkv.bias" in name)})
    ids = torch.randint(3, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    return Only(model), torch.compile(other) if compiled else other.eval(), ids, {"loss": language_loss(ids)}


def faulty(name: str, fault: str, *modules: str, said: str = "", **ways: Any) -> None:
    broken(name, fault, lambda: pair(name, **ways), *modules, said=said)


for decoder in MODELS:
    for way, given in {
        "torch's kernel": {}, "projections apart": {"fused": False, "way": "plain"}, "by groups": {"way": "groups"},
        "blocks of keys": {"way": "blocks"},
        "a token at a time": {"pieces": 1, "way": "plain"}, "recomputed": {"saved": False, "attention": "eager"},
    }.items():  # fmt: skip
        healthy(decoder, way, lambda decoder=decoder, given=given: pair(decoder, **given))  # type: ignore[misc]
    faulty(decoder, "another scale", "blocks.1.attend", bad={"other": {"scale": 0.25}})
    faulty(decoder, "the other layout of pairs", "blocks.1.attend", bad={"other": {"neighbours": decoder != "cohere"}})
    faulty(decoder, "queries one place ahead", "blocks.1.attend", bad={"ahead": 1})
    faulty(decoder, "sees the next token", "blocks.1.attend", bad={"sees": 1})
    faulty(decoder, "another base", "blocks.1.attend", bad={"other": {"base": 500.0}})
    if decoder != "neox":
        faulty(decoder, "heads of keys tiled", "blocks.1.attend", bad={"way": "tiled"})
healthy("olmo", "compiled", lambda: pair("olmo", compiled=True))
faulty("qwen", "turned before the norm", "blocks.1.attend", bad={"late_norm": True})
faulty("qwen", "gate and up swapped", "blocks.1.feed", bad={"swapped": True})
faulty("qwen", "head no longer tied", "", "words", "head", said="one parameter in model, and two in other: head.weight and words.weight", tied=False)
faulty("qwen", "an eps of 1e-3", "blocks.1.one", bad={"one": {"eps": 1e-3}})
faulty("olmo", "norms by heads", "blocks.1.attend", bad={"by_heads": True})
faulty("olmo", "norms before branches", "blocks.1", bad={"where": "before"})
faulty("olmo", "norms of the sums", "blocks.1", bad={"where": "outside"})
faulty("neox", "branches one after the other", "blocks.1", bad={"where": "before"})
faulty("neox", "gelu by tanh", "blocks.1.feed", bad={"act": "tanh"})
faulty("neox", "the whole head turned", "blocks.1.attend", bad={"other": {"turned": 1.0}})
faulty("phi", "no bias of queries, keys and values", "blocks.1.attend.qkv", "blocks.1.attend", bad={"unbiased": True})
faulty("phi", "gelu by erf", "blocks.1.feed", bad={"act": "gelu"})
faulty("phi", "a norm over tokens", "blocks.1.one", bad={"one": {"axis": 1}})
faulty("cohere", "logits not scaled", "", scales=(1.0, 1.0))
faulty("cohere", "gelu for silu", "blocks.1.feed", bad={"act": "gelu"})
faulty("cohere", "an eps of 1e-2 in the last norm", "norm", last={"eps": 1e-2})
faulty("granite", "words not scaled", "", "words", scales=(1.0, 0.25))
faulty("granite", "branches not scaled", "blocks.1", bad={"residual": 1.0})
faulty("granite", "logits multiplied", "", scales=(3.0, 4.0))
