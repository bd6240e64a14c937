"""A thirty-second batch, committed before the judge has seen it: OPT and Marian of transformers beside whole ports. MPNet and BEiT in the other part.

OPT in an engine with a joined layer and a cache, Marian beside a translator whose decoder goes on with what it has. The second layer has the
fault, or a part around the layers. Issues:

- OPT: places that begin at two (https://github.com/EleutherAI/gpt-neox/pull/650), a norm behind the last layer that ports lacked
  (https://github.com/huggingface/transformers/pull/17785, https://github.com/OpenNMT/CTranslate2/pull/850), norms behind the sums, as in one size
  alone (https://github.com/facebookresearch/metaseq/issues/383), keys before queries in the joined weight (the conversion script of
  https://github.com/huggingface/transformers/pull/17088), scores that a kernel scales again (queries are scaled before, in the same), a mask from the
  upper left with a cache (https://github.com/pytorch/pytorch/issues/108108).
- Marian: the table's rows from two on, and words without their scale (https://github.com/bytedance/lightseq/issues/422), sines and cosines side by
  side (https://github.com/allenai/allennlp/issues/2993), padding that is seen across (https://github.com/huggingface/transformers/pull/47946), the
  bias of all words (https://github.com/huggingface/transformers/pull/3908), norms before the layers
  (https://github.com/OpenNMT/OpenNMT-py/issues/2186), a decoder without a mask of later words
  (https://github.com/zhouhaoyi/Informer2020/issues/38), places with a cache (https://github.com/huggingface/candle/pull/1226).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, spread
from pair_thirtieth import IDS, LENGTH, TOP, WORDS, State, W, beside, family, heads, of_library
from torch import nn

NARROW = 16
Cache = dict[int, tuple[torch.Tensor, torch.Tensor]]


def shares(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """Attention by its formula. Queries have their scale already. `hidden`: keys that a query does not see."""
    scores = q @ k.mT
    scores = scores if hidden is None else scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)


class Joined(nn.Module):
    """Four heads, with one weight for keys, values and queries, in this order."""

    def __init__(self, number: int, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.number, self.wrong, self.kernel, self.kvq, self.out = number, wrong, kernel, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, cache: Cache) -> torch.Tensor:
        k, v, q = (heads(each, 8) for each in self.kvq(x).chunk(3, -1))
        if self.wrong == "order":
            k, v, q = v, q, k
        if self.number in cache and self.wrong != "forgets":
            k, v = torch.cat([cache[self.number][0], k], 2), torch.cat([cache[self.number][1], v], 2)
        cache[self.number] = k, v
        hidden = hidden[:, -k.shape[2] :]
        if self.wrong == "upper left":
            hidden = torch.ones_like(hidden).triu(1)
        if self.kernel:
            return self.out(F.scaled_dot_product_attention(q, k, v, ~hidden).transpose(1, 2).flatten(2))
        scale = 8**-1.0 if self.wrong == "twice" else 8**-0.5
        return self.out(shares(q * scale, k, v, hidden))


class Layer(nn.Module):
    def __init__(self, number: int, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.attn, self.one, self.two = wrong, Joined(number, wrong, kernel), nn.LayerNorm(W), nn.LayerNorm(W)
        self.up, self.down = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, cache: Cache) -> torch.Tensor:
        if self.wrong == "behind":
            x = self.one(x + self.attn(x, hidden, cache))
            return self.two(x + self.down(F.relu(self.up(x))))
        x = x + self.attn(self.one(x), hidden, cache)
        made = self.up(self.two(x))
        return x + self.down(F.gelu(made) if self.wrong == "gelu" else F.relu(made))


class Engine(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", kernel: bool = False, piece: int = LENGTH) -> None:
        super().__init__()
        self.top, self.piece, self.words, self.places = top, piece, nn.Embedding(WORDS, NARROW), nn.Embedding(18, W)
        self.wider, self.narrower, self.norm = nn.Linear(NARROW, W, bias=False), nn.Linear(W, NARROW, bias=False), nn.LayerNorm(W)
        self.layers = nn.ModuleList(Layer(n, wrong if n == 1 else "", kernel) for n in range(3))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        cache: Cache = {}
        made: list[torch.Tensor] = []
        for begun in range(0, LENGTH, self.piece):
            words = self.words(ids[:, begun : begun + self.piece])
            count, keys = words.shape[1], begun + words.shape[1]
            first = {"zero": begun, "anew": 2}.get(self.top, begun + 2)
            x = self.wider(words) + self.places(torch.arange(first, first + count))
            hidden = torch.ones(count, keys, dtype=torch.bool).triu(1 + begun)
            for layer in self.layers:
                x = layer(x, hidden, cache)
            made.append(F.linear(self.narrower(x if self.top == "no norm" else self.norm(x)), self.words.weight))
        return (torch.cat(made, 1),)


def of_kind(kind: str, rest: str, **sizes: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    made: nn.Module = getattr(transformers, kind + rest)(getattr(transformers, f"{kind}Config")(**sizes))
    return made


def renamed(state: State, names: dict[str, str]) -> State:
    found: State = {}
    for name, value in state.items():
        for before, now in names.items():
            name = name.replace(before, now)
        found[name] = value
    return found


def opt(lost: str = "", **ways: Any) -> Made:
    model = of_library("OPTForCausalLM", vocab_size=WORDS, hidden_size=W, num_hidden_layers=3, ffn_dim=2 * W, max_position_embeddings=16,
                       dropout=0.0, num_attention_heads=4, word_embed_proj_dim=NARROW, use_cache=False, pad_token_id=1, bos_token_id=0,
                       eos_token_id=1)  # fmt: skip
    state = renamed(dict(model.state_dict()), {
        "model.decoder.layers": "layers", "model.decoder.final_layer_norm": "norm", "model.decoder.embed_tokens": "words",
        "model.decoder.embed_positions": "places", "model.decoder.project_in": "wider", "model.decoder.project_out": "narrower",
        "self_attn_layer_norm": "one", "final_layer_norm": "two", "fc1": "up", "fc2": "down", "self_attn.out_proj": "attn.out",
        "self_attn": "attn"})  # fmt: skip
    del state["lm_head.weight"]
    for name in [name for name in state if "k_proj" in name]:
        state[name.replace("k_proj", "kvq")] = torch.cat([state.pop(name.replace("k_proj", f"{each}_proj")) for each in "kvq"])
    if lost == "bias":
        state["layers.1.attn.kvq.bias"] = torch.zeros(3 * W)
    if lost == "norms":
        state["layers.1.one.weight"], state["layers.1.two.weight"] = state["layers.1.two.weight"], state["layers.1.one.weight"]
    return beside(model, Engine(**ways), state)


LAYER, ATTN = ("layers.1",), ("layers.1.attn",)
family("opt in an engine", "at once", opt, {
    "places from zero": ({"top": "zero"}, TOP, ""), "places anew in each piece": ({"top": "anew", "piece": 3}, TOP, ""),
    "no last norm": ({"top": "no norm"}, TOP, ""), "norms behind the sums": ({"wrong": "behind"}, LAYER, ""),
    "gelu for relu": ({"wrong": "gelu"}, LAYER, ""), "queries first": ({"wrong": "order"}, (*ATTN, "layers.1.attn.kvq"), ""),
    "scaled twice": ({"wrong": "twice"}, ATTN, ""), "a mask from the upper left": ({"wrong": "upper left", "piece": 3}, ATTN, ""),
    "keys of a piece are forgotten": ({"wrong": "forgets", "piece": 3}, ATTN, ""), "no bias": ({"lost": "bias"}, ("layers.1.attn.kvq",), ""),
    "norms exchanged": ({"lost": "norms"}, ("layers.1.one",), ""),
}, pieces_of_three={"piece": 3}, word_by_word={"piece": 1}, pieces_of_five={"piece": 5})  # fmt: skip


class Waves(nn.Module):
    """Sines of the places, and then their cosines."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, first: int, count: int) -> torch.Tensor:
        base = 1000.0 if self.wrong == "base" else 10000.0
        angles = torch.arange(first, first + count)[:, None] / base ** (torch.arange(0, W, 2) / W)
        made = (angles.sin(), angles.cos())
        return torch.stack(made, -1).flatten(1) if self.wrong == "pairs" else torch.cat(made, 1)


class Looks(nn.Module):
    """Four heads, each part with a layer of its own for queries, and one for keys and values."""

    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.kernel, self.q, self.kv, self.o = wrong, kernel, nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
        q, (k, v) = heads(self.q(x), 8), (heads(each, 8) for each in self.kv(keys).chunk(2, -1))
        if self.kernel:
            return self.o(F.scaled_dot_product_attention(q, k, v, None if hidden is None else ~hidden).transpose(1, 2).flatten(2))
        return self.o(shares(q * (W if self.wrong == "width" else 8) ** -0.5, k, v, hidden))


class Reads(nn.Module):
    """A layer of either half. With `across` it also looks at what was read."""

    def __init__(self, across: bool, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.own, self.n1, self.n3 = wrong, Looks(wrong, kernel), nn.LayerNorm(W), nn.LayerNorm(W)
        self.other, self.n2 = (Looks("", kernel), nn.LayerNorm(W)) if across else (None, None)
        self.up, self.down = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(
        self, x: torch.Tensor, seen: torch.Tensor, hidden: torch.Tensor | None, read: torch.Tensor | None = None, apart: torch.Tensor | None = None
    ) -> torch.Tensor:  # fmt: skip
        """`seen`: all inputs of this layer so far."""
        if self.wrong == "first":
            x = x + self.own(self.n1(x), self.n1(seen), hidden)
        else:
            x = self.n1(x + self.own(x, seen, hidden))
        if self.other is not None and self.n2 is not None and read is not None:
            x = self.n2(x + self.other(x, x if self.wrong == "itself" else read, None if self.wrong == "itself" else apart))
        made = self.up(x)
        return self.n3(x + self.down(F.gelu(made) if self.wrong == "gelu" else F.silu(made)))


class Writes(nn.Module):
    """The half that writes, in pieces."""

    def __init__(self, wrong: str, top: str, kernel: bool, piece: int) -> None:
        super().__init__()
        self.top, self.piece, self.layers = top, piece, nn.ModuleList(Reads(True, wrong if n == 1 else "", kernel) for n in range(3))

    def forward(self, x: torch.Tensor, read: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
        before: list[torch.Tensor] = [x[:, :0]] * len(self.layers)
        made = []
        for part in x.split(self.piece, 1):
            y, begun = part, before[0].shape[1]
            hidden = torch.ones(part.shape[1], begun + part.shape[1], dtype=torch.bool).triu(1 + begun)
            for n, layer in enumerate(self.layers):
                before[n] = torch.cat([before[n], y], 1)
                y = layer(y, before[n], None if self.top == "seen" and n == 1 else hidden, read, None if self.top == "padding" else apart)
            made.append(y)
        return torch.cat(made, 1)


class Translator(nn.Module):
    def __init__(self, wrong: str = "", reads: str = "", top: str = "", waves: str = "", kernel: bool = False, piece: int = 7) -> None:
        super().__init__()
        self.top, self.words, self.places = top, nn.Embedding(WORDS, W), Waves(waves)
        self.reads = nn.ModuleList(Reads(False, reads if n == 1 else "", kernel) for n in range(3))
        self.writes = Writes(wrong, top, kernel, piece)
        self.register_buffer("final", torch.zeros(1, WORDS))

    def embedded(self, ids: torch.Tensor, scale: float, first: int = 0) -> torch.Tensor:
        return self.words(ids) * scale + self.places(first, ids.shape[1])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        apart = attention_mask[:, None, None] == 0
        x = self.embedded(input_ids, W**0.5, 2 if self.top == "two" else 0)
        for layer in self.reads:
            x = layer(x, x, apart)
        y = self.embedded(decoder_input_ids, 1.0 if self.top == "scale" else W**0.5, 1 if self.top == "late" else 0)
        logits = F.linear(self.writes(y, x, apart), self.words.weight)
        return logits if self.top == "final" else logits + self.final, x


SOURCE = torch.randint(2, WORDS, (2, 9), generator=torch.Generator().manual_seed(32))
MASK = torch.ones(2, 9, dtype=torch.int64)
MASK[1, 6:] = 0
TARGET = IDS[:, :7]


def translated(out: Any) -> torch.Tensor:
    return F.cross_entropy((out.logits if hasattr(out, "logits") else out[0]).flatten(0, 1).float(), IDS[:, 1:8].flatten())


def marian(lost: str = "", **ways: Any) -> Made:
    sizes = {f"{half}_{name}": size for half in ("encoder", "decoder") for name, size in (("layers", 3), ("attention_heads", 4), ("ffn_dim", 2 * W))}
    model: Any = spread(of_kind("Marian", "MTModel", vocab_size=WORDS, d_model=W, max_position_embeddings=16, activation_function="swish",
                                dropout=0.0, scale_embedding=True, use_cache=False, pad_token_id=1, eos_token_id=0, decoder_start_token_id=1,
                                **sizes)).eval()  # fmt: skip
    with torch.no_grad():
        for half in (model.model.encoder, model.model.decoder):
            half.embed_positions.weight.copy_(half.embed_positions.create_weight())
        model.final_logits_bias.normal_()
    state = renamed(dict(model.state_dict()), {
        "model.encoder.layers": "reads", "model.decoder.layers": "writes.layers", "model.shared": "words", "final_logits_bias": "final",
        "encoder_attn_layer_norm": "n2", "encoder_attn": "other", "self_attn_layer_norm": "n1", "self_attn": "own", "final_layer_norm": "n3",
        "q_proj": "q", "out_proj": "o", "fc1": "up", "fc2": "down"})  # fmt: skip
    state = {name: value for name, value in state.items() if "embed" not in name and "lm_head" not in name}
    for name in [name for name in state if "k_proj" in name]:
        state[name.replace("k_proj", "kv")] = torch.cat([state.pop(name), state.pop(name.replace("k_proj", "v_proj"))])
    if lost == "halves":
        weights = [f"writes.layers.1.other.kv.{each}" for each in ("weight", "bias")]
        state.update({name: state[name].roll(W, 0) for name in weights})
    inputs = {"input_ids": SOURCE, "attention_mask": MASK, "decoder_input_ids": TARGET}
    return beside(model, Translator(**ways), state, translated, inputs)


READS, WRITES, SECOND = ("reads.1",), ("writes",), ("writes.layers.1",)
family("marian in a translator", "at once", marian, {
    "sines and cosines in pairs": ({"waves": "pairs"}, ("places",), ""), "waves of another base": ({"waves": "base"}, ("places",), ""),
    "places from two": ({"top": "two"}, TOP, ""), "places one late in the answer": ({"top": "late"}, TOP, ""),
    "an answer without its scale": ({"top": "scale"}, TOP, ""), "padding is seen across": ({"top": "padding"}, WRITES, ""),
    "later words are seen": ({"top": "seen"}, WRITES, ""), "norms first": ({"reads": "first"}, READS, ""),
    "gelu for silu": ({"wrong": "gelu"}, SECOND, ""), "looks at itself": ({"wrong": "itself"}, SECOND, ""),
    "no bias of the words": ({"top": "final"}, TOP, ""), "values for keys": ({"lost": "halves"}, ("writes.layers.1.other",
                                                                                            "writes.layers.1.other.kv"), ""),
    "scaled by the width": ({"reads": "width"}, ("reads.1.own",), ""),
}, by_the_kernel={"kernel": True}, pieces_of_three={"piece": 3}, word_by_word={"piece": 1})  # fmt: skip
