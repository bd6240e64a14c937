"""A thirty-third batch, small, committed after the mends of the thirty-second and before the judge has seen it: GPT-BigCode and RegNet beside ports.

GPT-BigCode with parts for its places and its mask, and with layers that are handed what they have seen. RegNet as its first code has it. Issues:
places with a cache (https://github.com/ml-explore/mlx-examples/issues/1203), one head of keys in a joined weight
(https://github.com/lablup/mlxcel/pull/926), heads that are repeated (https://github.com/OpenNMT/CTranslate2/issues/1231), a step in another filter
and sizes of squeezes (https://github.com/facebookresearch/pycls/issues/80), slopes and norms of a port
(https://github.com/huggingface/transformers/pull/16188), the last slope of a block (https://github.com/pytorch/vision/pull/4403).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made
from pair_fourteenth_scans import numbers
from pair_thirtieth import LENGTH, TOP, WORDS, W, beside, family, heads, of_library
from pair_thirtysecond import of_kind, renamed
from torch import nn

Past = tuple[torch.Tensor, torch.Tensor]


class Placed(nn.Module):
    """Words and their places."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.words, self.places = wrong, nn.Embedding(WORDS, W), nn.Embedding(16, W)

    def forward(self, ids: torch.Tensor, begun: int) -> torch.Tensor:
        first = begun + (self.wrong == "late")
        return self.words(ids) + self.places(torch.arange(first, first + ids.shape[1]))


class Seen(nn.Module):
    """Truth values of keys that a query sees."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, count: int, keys: int) -> torch.Tensor:
        return torch.ones(count, keys, dtype=torch.bool).tril(keys - count + (self.wrong == "next"))


class OneKey(nn.Module):
    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.kernel, self.q, self.kv, self.out = wrong, kernel, nn.Linear(W, W), nn.Linear(W, 16), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, past: Past | None) -> tuple[torch.Tensor, Past]:
        q, (k, v) = heads(self.q(x), 8), self.kv(x)[:, None].chunk(2, -1)
        if self.wrong == "values":
            k, v = v, k
        if self.wrong == "heads":
            q = self.q(x).unflatten(-1, (8, 4)).permute(0, 3, 1, 2)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        if self.kernel:
            y = F.scaled_dot_product_attention(q, k.expand(-1, 4, -1, -1), v.expand(-1, 4, -1, -1), seen)
        else:
            scores = (q @ k.mT * (1.0 if self.wrong == "scale" else 8**-0.5)).masked_fill(~seen, -1e30)
            y = scores.softmax(-1).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


class Feeds(nn.Module):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.up, self.down = wrong, nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.up(x)
        return self.down(F.relu(made) if self.wrong == "relu" else F.gelu(made, approximate="tanh"))


class Handed(nn.Module):
    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.attn, self.mlp = wrong, OneKey(wrong, kernel), Feeds(wrong)
        self.n1, self.n2 = nn.LayerNorm(W), nn.LayerNorm(W, eps=0.1 if wrong == "eps" else 1e-5)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, past: Past | None) -> tuple[torch.Tensor, Past]:
        y = self.n1(x)
        made, now = self.attn(x if self.wrong == "no norm" else y, seen, past)
        x = (y if self.wrong == "normed" else x) + made
        return x + self.mlp(self.n1(x) if self.wrong == "first norm" else self.n2(x)), now


class Codes(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", parts: str = "", kernel: bool = False, piece: int = LENGTH) -> None:
        super().__init__()
        self.top, self.piece, self.embed, self.seen, self.norm = top, piece, Placed(parts), Seen(parts), nn.LayerNorm(W)
        self.blocks = nn.ModuleList(Handed(wrong if n == 1 else "", kernel) for n in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        past: list[Past | None] = [None] * len(self.blocks)
        made = []
        for begun in range(0, LENGTH, self.piece):
            part = ids[:, begun : begun + self.piece]
            x = self.embed(part, 0 if self.top == "anew" else begun)
            seen = self.seen(part.shape[1], begun + part.shape[1])
            for n, block in enumerate(self.blocks):
                x, past[n] = block(x, torch.ones_like(seen) if self.top == "all" and n == 1 else seen, past[n])
            made.append(F.linear(x if self.top == "bare" else self.norm(x), self.embed.words.weight))
        return torch.cat(made, 1)


def bigcode(lost: str = "", **ways: Any) -> Made:
    model = of_library("GPTBigCodeForCausalLM", vocab_size=WORDS, n_positions=16, n_embd=W, n_layer=3, n_head=4, n_inner=2 * W, use_cache=False,
                       attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=1)  # fmt: skip
    state = renamed(dict(model.state_dict()), {
        "transformer.wte": "embed.words", "transformer.wpe": "embed.places", "transformer.ln_f": "norm", "transformer.h": "blocks", "ln_1": "n1",
        "ln_2": "n2", "attn.c_proj": "attn.out", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down"})  # fmt: skip
    state = {name: value for name, value in state.items() if "lm_head" not in name}
    for name in [name for name in state if "c_attn" in name]:
        state[name.replace("c_attn", "q")], state[name.replace("c_attn", "kv")] = state.pop(name).split([W, 16])
    if lost == "norm":
        state["norm.weight"] = state["blocks.2.n2.weight"]
    if lost == "keys":
        state["blocks.1.attn.kv.weight"] = state["blocks.0.attn.kv.weight"]
    return beside(model, Codes(**ways), state)


BLOCK, ATTN = ("blocks.1",), ("blocks.1.attn",)
family("bigcode with parts", "at once", bigcode, {
    "places anew in each piece": ({"top": "anew", "piece": 3}, TOP, ""), "places one late": ({"parts": "late"}, ("embed",), ""),
    "the next word is seen": ({"parts": "next"}, ("seen",), ""), "all words are seen by a block": ({"top": "all"}, TOP, ""),
    "values for keys": ({"wrong": "values"}, ATTN, ""), "heads that alternate": ({"wrong": "heads"}, ATTN, ""),
    "no scale of scores": ({"wrong": "scale"}, ATTN, ""), "relu for gelu": ({"wrong": "relu"}, ("blocks.1.mlp",), ""),
    "another eps": ({"wrong": "eps"}, ("blocks.1.n2",), ""), "attention without the norm": ({"wrong": "no norm"}, BLOCK, ""),
    "a residual of the norm": ({"wrong": "normed"}, BLOCK, ""), "the first norm twice": ({"wrong": "first norm"}, BLOCK, ""),
    "no last norm": ({"top": "bare"}, TOP, ""), "another norm's gain": ({"lost": "norm"}, ("norm",), ""),
    "the first block's keys": ({"lost": "keys"}, ("blocks.1.attn.kv",), ""),
}, by_the_kernel={"kernel": True}, pieces_of_three={"piece": 3}, word_by_word={"piece": 1, "kernel": True})  # fmt: skip


class Squeeze(nn.Module):
    def __init__(self, wide: int, narrow: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.fc1, self.fc2 = wrong, nn.Linear(wide, narrow), nn.Linear(narrow, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.amax((2, 3)) if self.wrong == "largest" else x.mean((2, 3))
        made = self.fc1(mean)
        share = self.fc2(F.silu(made) if self.wrong == "silu" else F.relu(made))
        return x * (F.hardsigmoid(share) if self.wrong == "hard" else share.sigmoid())[..., None, None]


class Bottle(nn.Module):
    def __init__(self, wide: int, out: int, step: int, wrong: str) -> None:
        super().__init__()
        first = step if wrong == "early" else 1
        self.wrong, self.a, self.a_bn = wrong, nn.Conv2d(wide, out, 1, first, bias=False), nn.BatchNorm2d(out)
        self.b, self.b_bn = nn.Conv2d(out, out, 3, step // first, 1, groups=out // 8, bias=False), nn.BatchNorm2d(out)
        self.se = Squeeze(out, wide // 4, wrong)
        self.c, self.c_bn = nn.Conv2d(out, out, 1, bias=False), nn.BatchNorm2d(out, eps=0.1 if wrong == "eps" else 1e-5)
        self.proj, self.bn = (nn.Conv2d(wide, out, 1, step, bias=False), nn.BatchNorm2d(out)) if wide != out else (None, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.b_bn(self.b(F.relu(self.a_bn(self.a(x))))))
        y = self.c_bn(self.c(y if self.wrong == "after" else self.se(y)))
        y = self.se(y) if self.wrong == "after" else y
        if self.proj is not None and self.bn is not None:
            x = self.proj(x) if self.wrong == "bare" else self.bn(self.proj(x))
        return x + F.relu(y) if self.wrong == "slope" else F.relu(x + y)


class Regular(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", at: int = 1) -> None:
        super().__init__()
        self.top, self.stem, self.bn, self.head = top, nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Linear(32, 5)
        plan = ((16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1))
        self.blocks = nn.ModuleList(Bottle(*each, wrong if n == at else "") for n, each in enumerate(plan))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.bn(self.stem(x))
        x = made if self.top == "straight" else F.relu(made)
        for block in self.blocks:
            x = block(x)
        return self.head(x.amax((2, 3)) if self.top == "largest" else x.mean((2, 3)))


class Logits(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).logits


def regnet(lost: str = "", last: bool = False, traced: bool = False, **ways: Any) -> Made:
    model = of_kind("RegNet", "ForImageClassification", embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], groups_width=8, num_labels=5,
                    layer_type="y", downsample_in_first_stage=False)  # fmt: skip
    picture = numbers(2, 3, 16, 16)
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    for each in norms:
        each.momentum = None
        nn.init.uniform_(each.weight, 0.5, 1.5)
        nn.init.normal_(each.bias, std=0.3)
    model.train()(picture)
    for each in norms:
        each.momentum = 0.1
    names = {"regnet.embedder.embedder.convolution": "stem", "regnet.embedder.embedder.normalization": "bn", "classifier.1": "head"}
    for n in range(4):
        names |= {f"regnet.encoder.stages.{n // 2}.layers.{n % 2}": f"blocks.{n}"}
    for n, part in enumerate("abxc"):
        names |= {f"layer.{n}.convolution": part, f"layer.{n}.normalization": f"{part}_bn"}
    names |= {"layer.2.attention.0": "se.fc1", "layer.2.attention.2": "se.fc2", "shortcut.convolution": "proj", "shortcut.normalization": "bn"}
    state = renamed(dict(model.eval().state_dict()), names)
    state = {name: value.flatten(1) if ".se." in name and value.dim() > 1 else value for name, value in state.items()}
    if lost == "turned":
        state["blocks.1.b.weight"] = state["blocks.1.b.weight"].mT.contiguous()
    if lost == "mean":
        state["blocks.1.b_bn.running_mean"] = torch.zeros(16)
    made = beside(model, Regular(**ways), state, MEAN["loss"], picture)
    other = made[1].to(memory_format=torch.channels_last) if last else made[1]
    return Logits(made[0]), torch.jit.trace(other, picture) if traced else other, *made[2:]


SQUEEZE, DEEPER = ("blocks.1.se",), {"at": 2}
family("regnet by its first code", "by parts", regnet, {
    "a step in the first filter": ({"wrong": "early", **DEEPER}, ("blocks.2.a",), ""),
    "the largest for the mean": ({"wrong": "largest"}, SQUEEZE, ""),
    "silu in the squeeze": ({"wrong": "silu"}, SQUEEZE, ""), "a straight sigmoid": ({"wrong": "hard"}, SQUEEZE, ""),
    "a squeeze after the last": ({"wrong": "after"}, BLOCK, ""), "another eps": ({"wrong": "eps"}, ("blocks.1.c_bn",), ""),
    "a way past without its norm": ({"wrong": "bare", **DEEPER}, ("blocks.2",), ""), "a slope before the sum": ({"wrong": "slope"}, BLOCK, ""),
    "a stem without its slope": ({"top": "straight"}, TOP, ""), "pooled by the largest": ({"top": "largest"}, TOP, ""),
    "rows and columns of taps": ({"lost": "turned"}, ("blocks.1.b",), ""), "a mean of zero": ({"lost": "mean"}, ("blocks.1.b_bn",), ""),
}, channels_last={"last": True}, traced={"traced": True}, channels_last_traced={"traced": True, "last": True})  # fmt: skip
