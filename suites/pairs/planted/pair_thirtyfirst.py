"""A thirty-first batch, small, committed after the mends of the thirtieth and before the judge has seen it: MPT and Segformer beside whole ports.

MPT in an engine with a cache, whose table of distances is a part. Segformer beside its first code, whose parts keep pictures with channels
first. Issues: slopes for heads that are no power of two (ggml 143), a bias of distances with a cache (keras-hub 2861), a norm that is left out
(segmentation_pytorch 4), borders of resized pictures (mmsegmentation 1230).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_thirtieth import LENGTH, TOP, WORDS, State, beside, family, heads, of_library
from pair_thirtieth_sights import picture_loss
from torch import nn

B, HEADS, SIZE = 48, 6, 8


class Far(nn.Module):
    """Slopes times distances, for the last queries of so many keys."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, keys: int) -> torch.Tensor:
        rates = 2.0 ** -torch.arange(1.0, 9.0)
        rates = rates[:HEADS] if self.wrong == "first" else torch.cat([rates[1::2], rates[::2]])[:HEADS]
        if self.wrong == "steeper":
            rates = rates * 2
        return rates[:, None, None] * torch.arange(1 - keys, 1)


class Clipped(nn.Module):
    def __init__(self, number: int, wrong: str) -> None:
        super().__init__()
        self.number, self.wrong, self.wqkv, self.out = number, wrong, nn.Linear(B, 3 * B, bias=False), nn.Linear(B, B, bias=False)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, far: torch.Tensor, cache: dict[int, torch.Tensor]) -> torch.Tensor:
        made = self.wqkv(x)
        made = made if self.wrong == "open" else made.clamp(-2, 2)
        q, kv = made.split([B, 2 * B], -1)
        cache[self.number] = kv if self.number not in cache else torch.cat([cache[self.number], kv], 1)
        k, v = (heads(each, SIZE) for each in cache[self.number].chunk(2, -1))
        scores = heads(q, SIZE) @ k.mT * SIZE**-0.5 + far
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(1 if self.wrong == "heads" else -1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


class ClippedBlock(nn.Module):
    def __init__(self, number: int, wrong: str) -> None:
        super().__init__()
        self.wrong, self.one, self.two, self.attn = wrong, nn.LayerNorm(B, bias=False), nn.LayerNorm(B, bias=False), Clipped(number, wrong)
        self.up, self.down = nn.Linear(B, 4 * B, bias=False), nn.Linear(4 * B, B, bias=False)

    def forward(self, x: torch.Tensor, far: torch.Tensor, hidden: torch.Tensor, cache: dict[int, torch.Tensor]) -> torch.Tensor:
        x = x + self.attn(self.one(x), hidden, far.flip(0) if self.wrong == "turned" else far, cache)
        return x + self.down(F.relu(self.up(self.two(x))) if self.wrong == "relu" else F.gelu(self.up(self.two(x))))


class Engine(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", far: str = "", piece: int = LENGTH) -> None:
        super().__init__()
        self.top, self.piece, self.words, self.far, self.norm = top, piece, nn.Embedding(WORDS, B), Far(far), nn.LayerNorm(B, bias=False)
        self.blocks = nn.ModuleList(ClippedBlock(n, wrong if n == 1 else "") for n in range(3))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        cache: dict[int, torch.Tensor] = {}
        made: list[torch.Tensor] = []
        for begun in range(0, LENGTH, self.piece):
            x = self.words(ids[:, begun : begun + self.piece])
            keys = begun + x.shape[1]
            far = self.far(x.shape[1] if self.top == "of the piece" else keys)
            far = F.pad(far, (keys - far.shape[-1], 0))
            hidden = torch.ones(keys, keys, dtype=torch.bool).triu(2 if self.top == "next" else 1)[begun:]
            for block in self.blocks:
                x = block(x, far, hidden, cache)
            made.append(F.linear(self.norm(x), self.words.weight))
        return (torch.cat(made, 1),)


def mpt(**ways: Any) -> Made:
    import transformers

    attention = transformers.models.mpt.configuration_mpt.MptAttentionConfig(clip_qkv=2.0)
    model = of_library("MptForCausalLM", vocab_size=WORDS, d_model=B, n_heads=HEADS, n_layers=3, max_seq_len=16, attn_config=attention,
        use_cache=False,
                       tie_word_embeddings=True, bos_token_id=0, eos_token_id=1)  # fmt: skip
    state: State = {}
    for name, value in model.state_dict().items():
        for before, now in {"transformer.wte": "words", "transformer.norm_f": "norm", "transformer.": "", "norm_1": "one", "norm_2": "two",
            "ffn.": "",
                            "up_proj": "up", "down_proj": "down", "out_proj": "out", "Wqkv": "wqkv"}.items():  # fmt: skip
            name = name.replace(before, now)
        if name != "lm_head.weight":
            state[name] = value
    return beside(model, Engine(**ways), state)


FAR, BLOCK, ATTN = ("far",), ("blocks.1",), ("blocks.1.attn",)
family("mpt in an engine", "at once", mpt, {
    "the first slopes": ({"far": "first"}, FAR, ""), "steeper slopes": ({"far": "steeper"}, FAR, ""),
    "slopes turned": ({"wrong": "turned"}, BLOCK, ""),
    "distances of the piece": ({"top": "of the piece", "piece": 3}, TOP, ""), "the next word is seen": ({"top": "next"}, TOP, ""),
    "products not clipped": ({"wrong": "open"}, ATTN, ""), "shares of heads": ({"wrong": "heads"}, ATTN, ""),
    "relu for gelu": ({"wrong": "relu"}, BLOCK, ""),
}, pieces_of_three={"piece": 3}, word_by_word={"piece": 1}, pieces_of_five={"piece": 5})  # fmt: skip


class Reduces(nn.Module):
    """Queries of all places, keys of few."""

    def __init__(self, wide: int, count: int, ratio: int, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.count, self.wrong, self.kernel, self.q, self.kv, self.proj = count, wrong, kernel, nn.Linear(wide, wide), nn.Linear(wide,
            2 * wide), nn.Linear(wide, wide)
        self.sr, self.norm = (nn.Conv2d(wide, wide, ratio, ratio), nn.LayerNorm(wide)) if ratio > 1 else (None, None)

    def forward(self, x: torch.Tensor, side: int) -> torch.Tensor:
        y = x
        if self.sr is not None and self.norm is not None:
            y = x.mT.unflatten(-1, (side, side))
            y = self.sr(y.mT if self.wrong == "turned" else y).flatten(2).mT
            y = y if self.wrong == "no norm" else self.norm(y)
        size = x.shape[-1] // self.count
        q, k, v = heads(self.q(x), size), *(heads(each, size) for each in self.kv(y).chunk(2, -1))
        if self.kernel:
            return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        scores = q @ k.mT / math.sqrt(x.shape[-1] if self.wrong == "width" else size)
        return self.proj((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


class Mixed(nn.Module):
    def __init__(self, wide: int, count: int, ratio: int, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.norm1, self.attn, self.norm2 = wrong, nn.LayerNorm(wide), Reduces(wide, count, ratio, wrong, kernel), nn.LayerNorm(wide)
        self.fc1, self.fc2 = nn.Linear(wide, 2 * wide), nn.Linear(2 * wide, wide)
        self.dwconv = nn.Conv2d(2 * wide, 2 * wide, 3, 1, 1, groups=2 * wide)

    def forward(self, x: torch.Tensor, side: int) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), side)
        y = self.fc1(self.norm2(x)).mT.unflatten(-1, (side, side))
        y = self.dwconv(y).flatten(2).mT if self.wrong != "no filter" else y.flatten(2).mT
        return x + self.fc2(F.gelu(y))


class Stages(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", kernel: bool = False, doubled: bool = False) -> None:
        super().__init__()
        self.top, self.doubled = top, doubled
        self.embed = nn.ModuleList([nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1)])
        self.first, self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(32)]), nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(32)])
        self.one = nn.ModuleList(Mixed(16, 2, 2, wrong if n == 1 else "", kernel) for n in range(3))
        self.two = nn.ModuleList(Mixed(32, 4, 1, "", kernel) for _ in range(2))
        self.linear = nn.ModuleList([nn.Linear(16, 24), nn.Linear(32, 24)])
        self.fuse, self.bn, self.pred = nn.Conv2d(48, 24, 1, bias=False), nn.BatchNorm2d(24), nn.Conv2d(24, 5, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        found = []
        for n, blocks in enumerate((self.one, self.two)):
            x = self.embed[n](x)
            side = x.shape[-1]
            y = self.first[n](x.flatten(2).mT)
            for block in blocks:
                y = block(y, side)
            x = (y if self.top == "no norm" and n == 0 else self.norms[n](y)).mT.unflatten(-1, (side, side))
            found.append(self.linear[n](x.flatten(2).mT).mT.unflatten(-1, (side, side)))
        if self.doubled:
            found[1] = F.interpolate(found[1], scale_factor=2, mode="bilinear")
        else:
            found[1] = F.interpolate(found[1], size=found[0].shape[2:], mode="bilinear", align_corners=self.top == "corners")
        y = torch.cat(found if self.top == "order" else found[::-1], 1)
        return (self.pred(F.relu(self.bn(self.fuse(y)))),)


def segformer(**ways: Any) -> Made:
    model = of_library("SegformerForSemanticSegmentation", num_encoder_blocks=2, depths=[3, 2], sr_ratios=[2, 1], hidden_sizes=[16, 32],
        patch_sizes=[3, 3],
                       strides=[2, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2], decoder_hidden_size=24, num_labels=5, drop_path_rate=0.0,
                       classifier_dropout_prob=0.0)  # fmt: skip
    state: State = {}
    for name, value in model.state_dict().items():
        for before, now in {"segformer.stages.0.blocks": "one", "segformer.stages.1.blocks": "two", "layernorm_before": "norm1",
            "layernorm_after": "norm2",
                            "attention.sequence_reduction.sequence_reduction": "attn.sr", "attention.sequence_reduction.layer_norm": "attn.norm",
                            "attention.": "attn.", "q_proj": "q", "o_proj": "proj", "mlp.dwconv.dwconv": "dwconv", "mlp.": "",
                            "decode_head.linear_projections": "linear", ".proj.weight": ".weight" if "linear_proj" in name else ".proj.weight",
                            ".proj.bias": ".bias" if "linear_proj" in name else ".proj.bias", "decode_head.linear_fuse": "fuse",
                            "decode_head.batch_norm": "bn", "decode_head.classifier": "pred"}.items():  # fmt: skip
            name = name.replace(before, now)
        for n in "01":
            stage = f"segformer.stages.{n}."
            name = name.replace(f"{stage}patch_embeddings.proj", f"embed.{n}").replace(f"{stage}patch_embeddings.layer_norm", f"first.{n}")
            name = name.replace(f"{stage}layer_norm", f"norms.{n}")
        state[name] = value
    for name in [name for name in state if "k_proj" in name]:
        state[name.replace("k_proj", "kv")] = torch.cat([state.pop(name), state.pop(name.replace("k_proj", "v_proj"))])
    return beside(model, Stages(**ways), state, picture_loss, numbers(2, 3, 16, 16))


ONE = ("one.1",)
family("segformer by its first code", "by products", segformer, {
    "keys of a turned picture": ({"wrong": "turned"}, ("one.1.attn",), ""), "keys without a norm": ({"wrong": "no norm"}, ("one.1.attn",), ""),
    "scaled by the width": ({"wrong": "width"}, ("one.1.attn",), ""), "no filter in the feed": ({"wrong": "no filter"}, ONE, ""),
    "a stage without its norm": ({"top": "no norm"}, TOP, ""), "corners on corners": ({"top": "corners"}, TOP, ""),
    "fused in the other order": ({"top": "order"}, TOP, ""),
}, by_the_kernel={"kernel": True}, made_twice_as_large={"doubled": True}, both={"kernel": True, "doubled": True})  # fmt: skip
