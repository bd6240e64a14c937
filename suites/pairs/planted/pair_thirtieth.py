"""A thirtieth batch, committed before the judge has seen any of it: models of transformers beside whole ports, with the checkpoint converted.

Each `model` is the class of transformers, each port is written as the original code or as an engine is, with modules, names and shapes of
its own: GPT-2 beside a model with linear layers, CodeGen beside one with its queries in halves and a cache, Falcon beside an engine with
codes of eight bits. In the other parts Bloom and Gemma 3, Whisper, Swin, EfficientNet and Segformer. The second block or layer of the port
has the fault, or the model itself.

Issues of this part: a square weight that is not turned (nntile 402, lablup/mlxcel 926, AutoGPTQ 139), rows of another convention of places
(AiDotNet 2074, nurl 584, gpt-fast 190, maxtext 581, DeepSeek-V3 938), an order of parts in a joined weight (tt-metal 41731, ChatLearn 277,
lightseq 22), places that are counted twice with a cache (tiny-llm 46, mlx-lm 1396). Faults that no issue has are of the kinds that these
issues have.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, language_loss, spread
from pair_twentythird import Faults
from torch import nn

WORDS, LENGTH, W = 30, 8, 32
IDS = torch.randint(2, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(30))
TOP = ("",)
State = dict[str, torch.Tensor]


def family(name: str, way: str, make: Callable[..., Made], faults: Faults, **more: dict[str, Any]) -> None:
    """As `pair_twentyfourth.family`, for any batch: a pair is of the batch whose module has `make`."""
    for other, ways in {way: dict[str, Any](), **more}.items():
        healthy(name, other.replace("_", " "), functools.partial(make, **ways))
    for fault, (bad, names, said) in faults.items():
        broken(name, fault, functools.partial(make, **bad), *names, said=said)


def of_library(kind: str, **sizes: Any) -> nn.Module:
    """A model of transformers with weights as after training, whose forward pass is repeatable."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind.partition('For')[0].removesuffix('Model').removesuffix('LMHead')}Config")
    if kind.startswith("Gemma3"):
        config = transformers.Gemma3TextConfig
    return spread(getattr(transformers, kind)(config(**sizes))).eval()


def beside(model: nn.Module, other: nn.Module, state: State, loss: Any = None, inputs: Any = IDS) -> Made:
    other.load_state_dict(state)
    return model, other.eval(), inputs, {"loss": loss if loss is not None else language_loss(IDS)}


def later_hidden(scores: torch.Tensor) -> torch.Tensor:
    count, keys = scores.shape[-2:]
    return scores.masked_fill(torch.ones(count, keys, dtype=torch.bool).triu(1 + keys - count), -math.inf)


def heads(x: torch.Tensor, size: int) -> torch.Tensor:
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


class SelfAttention(nn.Module):
    """Of a model as people write it to learn: one joined layer, two heads."""

    def __init__(self, wrong: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.wrong, self.kernel, self.c_attn, self.c_proj = wrong, kernel, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each, W // 2) for each in self.c_attn(x).split(W, 2))
        if self.wrong == "order":
            q, k, v = k, v, q
        if self.kernel:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.mT) * (1.0 / math.sqrt(W if self.wrong == "width" else W // 2))
            y = (scores if self.wrong == "seen" else later_hidden(scores)).softmax(-1) @ v
        y = y.flatten(1, 2).unflatten(1, (LENGTH, -1)).flatten(2) if self.wrong == "merged" else y.transpose(1, 2).flatten(2)
        return self.c_proj(y)


class Feed(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = nn.Linear(W, 4 * W), nn.GELU("none" if wrong == "erf" else "tanh"), nn.Linear(4 * W, W)
        self.dropout = nn.Dropout(0.2 if wrong == "dropout" else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class LearnedBlock(nn.Module):
    def __init__(self, wrong: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.wrong, self.attn, self.mlp = wrong, SelfAttention(wrong, kernel), Feed(wrong)
        self.ln_1, self.ln_2 = nn.LayerNorm(W), nn.LayerNorm(W, eps=1e-1 if wrong == "eps" else 1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return (self.ln_2(x) if self.wrong == "residual" else x) + self.mlp(self.ln_2(x))


class Learned(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.top = top
        parts = [LearnedBlock(wrong if n == 1 else "", kernel) for n in range(3)]
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(WORDS, W), "wpe": nn.Embedding(16, W), "h": nn.ModuleList(parts),
            "ln_f": nn.LayerNorm(W)})
        self.lm_head = nn.Linear(W, WORDS, bias=False)
        if top != "untied":
            self.transformer["wte"].weight = self.lm_head.weight  # type: ignore[assignment]

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        t: Any = self.transformer
        x = t.wte(ids) + t.wpe(torch.arange(ids.shape[1]) + (self.top == "places"))
        for n, block in enumerate(t.h):
            x = block(x) if self.top != "skipped" or n != 2 else x
        return (self.lm_head(x if self.top == "no norm" else t.ln_f(x)),)


class RowByRow(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.cat([self.net(each[None])[0] for each in ids]),)


def gpt2(lost: str = "", compiled: bool = False, alone: bool = False, **ways: Any) -> Made:
    model = of_library("GPT2LMHeadModel", vocab_size=WORDS, n_positions=16, n_embd=W, n_layer=3, n_head=2, use_cache=False, attn_pdrop=0.0,
                       embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=1)  # fmt: skip
    state = {}
    for name, value in model.state_dict().items():
        turned = any(part in name for part in ("c_attn.weight", "c_fc.weight", "c_proj.weight")) and (lost, name) != ("turn",
            "transformer.h.1.attn.c_proj.weight")
        state[name] = value.T.contiguous() if turned else value
    if lost == "bias":
        state["transformer.h.1.mlp.c_proj.bias"] = torch.zeros(W)
    if lost == "norm":
        state["transformer.h.1.ln_2.weight"] = state["transformer.h.1.ln_1.weight"]
    made = beside(model, Learned(**ways), state)
    if ways.get("wrong") == "dropout":
        made[1].train()
    if compiled:
        return made[0], torch.compile(made[1]), *made[2:]
    return (made[0], RowByRow(made[1]), *made[2:]) if alone else made


H = ("transformer.h.1",)
H_ATTN, H_MLP = ("transformer.h.1.attn",), ("transformer.h.1.mlp",)
family("gpt2 in linear layers", "by products", gpt2, {
    "a square weight not turned": ({"lost": "turn"}, ("transformer.h.1.attn.c_proj",), ""),
    "a bias that was not copied": ({"lost": "bias"}, ("transformer.h.1.mlp.c_proj",), ""),
    "the other norm's gain": ({"lost": "norm"}, ("transformer.h.1.ln_2",), ""),
    "gelu by erf": ({"wrong": "erf"}, ("transformer.h.1.mlp.gelu",), ""),
    "dropout left on": ({"wrong": "dropout"}, ("transformer.h.1.mlp.dropout",), ""),
    "scaled by the width": ({"wrong": "width"}, H_ATTN, ""), "later words are seen": ({"wrong": "seen"}, H_ATTN, ""),
    "parts in another order": ({"wrong": "order"}, H_ATTN, ""), "heads merged without a turn": ({"wrong": "merged"}, H_ATTN, ""),
    "another eps": ({"wrong": "eps"}, ("transformer.h.1.ln_2",), ""), "a residual behind the norm": ({"wrong": "residual"}, H, ""),
    "a head that is not tied": ({"top": "untied"}, ("lm_head", "transformer.wte", *TOP), ""), "places from one": ({"top": "places"}, TOP, ""),
    "no last norm": ({"top": "no norm"}, TOP, ""), "one layer too few": ({"top": "skipped"}, TOP, ""),
}, by_the_kernel={"kernel": True}, compiled={"compiled": True}, row_by_row={"alone": True})  # fmt: skip


class Keys:
    """What each layer has seen."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def grown(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if layer in self.held:
            k, v = torch.cat([self.held[layer][0], k], 2), torch.cat([self.held[layer][1], v], 2)
        self.held[layer] = k, v
        return k, v


class Turned(nn.Module):
    """Four heads of eight, whose first four numbers are turned as two halves, or as pairs."""

    def __init__(self, number: int, wrong: str = "", halves: bool = True) -> None:
        super().__init__()
        self.number, self.wrong, self.halves = number, wrong, halves
        self.qkv, self.out = nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W, bias=False)

    def turned(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        size = 8 if self.wrong == "whole" else 4
        angles = places[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        cos, sin, part = angles.cos().to(x.dtype), angles.sin().to(x.dtype), x[..., :size]
        a, b = part.chunk(2, -1) if self.halves else (part[..., ::2], part[..., 1::2])
        made = (a * cos - b * sin, b * cos + a * sin)
        return torch.cat([torch.cat(made, -1) if self.halves else torch.stack(made, -1).flatten(-2), x[..., size:]], -1)

    def forward(self, x: torch.Tensor, places: torch.Tensor, keys: Keys) -> torch.Tensor:
        q, k, v = (heads(each, 8) for each in self.qkv(x).chunk(3, -1))
        q = q if self.wrong == "queries" else self.turned(q, places)
        fresh = k if self.wrong == "late" else self.turned(k, places)
        k, v = keys.grown(self.number, fresh, v)
        if self.wrong == "late":
            k = self.turned(k, torch.arange(k.shape[2]) + 1)
        return self.out((later_hidden(q @ k.mT * (1 if self.wrong == "scale" else 8**-0.5)).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Side(nn.Module):
    """Attention and a feed beside each other, behind one norm."""

    def __init__(self, number: int, wrong: str = "", halves: bool = True) -> None:
        super().__init__()
        self.wrong, self.norm, self.attn = wrong, nn.LayerNorm(W), Turned(number, wrong, halves)
        self.up, self.down = nn.Linear(W, 4 * W), nn.Linear(4 * W, W)

    def forward(self, x: torch.Tensor, places: torch.Tensor, keys: Keys) -> torch.Tensor:
        y = self.norm(x)
        seen = self.attn(y, places, keys)
        y = {"stream": x, "after": self.norm(x + seen)}.get(self.wrong, y)
        return x + seen + self.down(F.gelu(self.up(y), approximate="none" if self.wrong == "erf" else "tanh"))


class Coder(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", halves: bool = True, piece: int = LENGTH) -> None:
        super().__init__()
        self.top, self.piece, self.words, self.norm, self.head = top, piece, nn.Embedding(WORDS, W), nn.LayerNorm(W), nn.Linear(W, WORDS)
        self.blocks = nn.ModuleList(Side(n, wrong if n == 1 else "", halves) for n in range(3))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        keys, made, seen = Keys(), [], 0
        for part in ids.split(self.piece, 1):
            places = torch.arange(part.shape[1]) + (seen + len(made) if self.top == "jump" else 0 if self.top == "anew" else seen)
            x = self.words(part)
            for block in self.blocks:
                x = block(x, places, keys)
            made.append(self.head(self.norm(x)))
            seen += part.shape[1]
        return (torch.cat(made, 1),)


def codegen(lost: str = "", **ways: Any) -> Made:
    model = of_library("CodeGenForCausalLM", vocab_size=WORDS, n_positions=16, n_ctx=16, n_embd=W, n_layer=3, n_head=4, rotary_dim=4, use_cache=False,
                       attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False)  # fmt: skip
    names = {"transformer.wte": "words", "transformer.ln_f": "norm", "lm_head": "head", "transformer.h": "blocks", "ln_1": "norm", "mlp.fc_in": "up",
             "mlp.fc_out": "down", "attn.out_proj": "attn.out", "attn.qkv_proj": "attn.qkv"}  # fmt: skip
    pairs = torch.tensor([0, 2, 1, 3, 4, 5, 6, 7])
    state = {}
    for name, value in model.state_dict().items():
        for before, now in names.items():
            name = name.replace(before, now)
        if name.endswith("qkv.weight"):
            bad = lost if "blocks.1." in name else ""
            q, v, k = value.chunk(3) if bad == "shards" else value.unflatten(0, (4, 3, 8)).transpose(0, 1).flatten(1, 2)
            if ways.get("halves", True):
                q, k = (x.unflatten(0, (4, 8))[:, pairs].flatten(0, 1) if x is k or bad != "pairs" else x for x in (q, k))
            value = torch.cat([q, v, k] if bad == "values" else [q, k, v])
        state[name] = value
    if lost == "bias":
        state["head.bias"] = torch.zeros(WORDS)
    return beside(model, Coder(**ways), state)


BLOCK, ATTN = ("blocks.1",), ("blocks.1.attn",)
JOINED = (*ATTN, "blocks.1.attn.qkv")
family("codegen with a cache", "at once", codegen, {
    "values for keys": ({"lost": "values"}, JOINED, ""), "shards not put together": ({"lost": "shards"}, JOINED, ""),
    "queries in pairs": ({"lost": "pairs"}, JOINED, ""), "no bias of the head": ({"lost": "bias"}, ("head",), ""),
    "the whole head turned": ({"wrong": "whole"}, ATTN, ""), "no scale of scores": ({"wrong": "scale", "piece": 3}, ATTN, ""),
    "queries not turned": ({"wrong": "queries"}, ATTN, ""), "keys turned as they are read, one late": ({"wrong": "late", "piece": 3}, ATTN, ""),
    "a feed without the norm": ({"wrong": "stream"}, BLOCK, ""), "a feed behind attention": ({"wrong": "after"}, BLOCK, ""),
    "gelu by erf": ({"wrong": "erf"}, BLOCK, ""),
    "places that jump with a cache": ({"top": "jump", "piece": 3}, TOP, ""), "places anew in each piece": ({"top": "anew", "piece": 3}, TOP, ""),
}, pairs={"halves": False}, pieces_of_three={"piece": 3}, word_by_word={"piece": 1, "halves": False})  # fmt: skip
