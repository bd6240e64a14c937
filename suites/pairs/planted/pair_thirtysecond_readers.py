"""The thirty-second batch, second part: MPNet of transformers beside an encoder with one table of distances, BEiT beside its first code.

Issues:

- MPNet: distances from key to query (https://github.com/dmlc/gluon-nlp/pull/1470), buckets of the past alone
  (https://github.com/lucidrains/x-transformers/pull/10), a bias before the scale and places that begin behind the padding
  (https://github.com/sbryngelson/ANEForge/pull/255), padding that counts as a place (https://github.com/huggingface/transformers/issues/238), a bias
  and a mask that layers share (https://github.com/foundation-model-stack/foundation-model-stack/pull/432), norms before the layers
  (https://github.com/tracel-ai/models/issues/30), the bias of a head (https://github.com/huggingface/transformers/issues/7167), places of
  another encoder's kind (https://github.com/Blaizzy/mlx-embeddings/pull/10).
- BEiT: columns before rows (https://github.com/leondgarse/keras_cv_attention_models/issues/26), three distances to the class's token
  (https://github.com/open-mmlab/mmsegmentation/pull/1235), one table for all blocks (https://github.com/czczup/ViT-Adapter/issues/178), a bias of
  queries and values alone (https://github.com/open-mmlab/mmsegmentation/pull/1469), scales that are not loaded
  (https://github.com/riccardomusmeci/mlx-image/pull/26), an index that is not made (https://github.com/huggingface/candle/pull/2306), a mean of
  patches behind the norm (https://github.com/microsoft/unilm/issues/431 and the code that it cites).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_thirtieth import TOP, WORDS, W, beside, family, heads, of_library
from pair_thirtysecond import renamed
from torch import nn

TEXT = torch.randint(2, WORDS, (2, 12), generator=torch.Generator().manual_seed(33))
TEXT[1, :3] = 1
READ = (TEXT != 1).long()


class Distances(nn.Module):
    """A bias of each head for each distance."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.table = wrong, nn.Embedding(32, 4)

    def forward(self, count: int) -> torch.Tensor:
        far = torch.arange(count)[None] - torch.arange(count)[:, None]  # key - query
        far = -far if self.wrong == "turned" else far
        if self.wrong == "past":
            return self.table(self.bucket((-far).clamp(min=0), 32)).permute(2, 0, 1)
        return self.table((far > 0) * 16 + self.bucket(far.abs(), 16)).permute(2, 0, 1)

    def bucket(self, far: torch.Tensor, count: int) -> torch.Tensor:
        exact = count // 2
        most = 64 if self.wrong == "nearer" else 128
        late = exact + ((far / exact).clamp(min=1).log() / math.log(most / exact) * (count - exact)).long()
        return torch.where(far < exact, far, late.clamp(max=count - 1))


class Sees(nn.Module):
    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.kernel, self.qkv, self.o = wrong, kernel, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each, 8) for each in self.qkv(x).chunk(3, -1))
        if self.kernel:
            return self.o(F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype)).transpose(1, 2).flatten(2))
        scores = (q @ k.mT + bias) / 8**0.5 if self.wrong == "before" else q @ k.mT / 8**0.5 + bias
        y = scores.softmax(-1).to(v.dtype) @ v
        return self.o(y.flatten(2).view(x.shape) if self.wrong == "merged" else y.transpose(1, 2).flatten(2))


class Around(nn.Module):
    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.attn, self.n1, self.n2 = wrong, Sees(wrong, kernel), nn.LayerNorm(W), nn.LayerNorm(W)
        self.wi, self.wo = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if self.wrong == "first":
            x = x + self.attn(self.n1(x), bias)
            return x + self.wo(F.gelu(self.wi(self.n2(x))))
        x = self.n1(x + self.attn(x, bias))
        return self.n2(x + self.wo(F.gelu(self.wi(x), approximate="tanh" if self.wrong == "tanh" else "none")))


class Masked(nn.Module):
    """The head: a layer, a norm and the words."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.dense, self.norm, self.bias = wrong, nn.Linear(W, W), nn.LayerNorm(W), nn.Parameter(torch.zeros(WORDS))

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        made = self.dense(x)
        return F.linear(self.norm(made if self.wrong == "straight" else F.gelu(made)), words, None if self.wrong == "bias" else self.bias)


class Encoder(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", far: str = "", head: str = "", kernel: bool = False, split: bool = False) -> None:
        super().__init__()
        self.top, self.split, self.words, self.places, self.norm = top, split, nn.Embedding(WORDS, W), nn.Embedding(20, W), nn.LayerNorm(W)
        self.far, self.head = Distances(far), Masked(head)
        self.layers = nn.ModuleList(Around(wrong if n == 1 else "", kernel) for n in range(3))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        if self.split:
            return torch.cat([self.read(*each) for each in zip(input_ids.split(1), attention_mask.split(1), strict=True)])
        return self.read(input_ids, attention_mask)

    def read(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = (ids != 1).cumsum(1) * (ids != 1) + 1
        if self.top == "zero":
            places = places - 1
        if self.top == "counted":
            places = torch.arange(2, 2 + ids.shape[1]).expand_as(ids)
        x = self.norm(self.words(ids) + self.places(places))
        bias = self.far(ids.shape[1])[None] + (1 - mask[:, None, None].to(x.dtype)) * -1e30
        if self.top == "padding":
            bias = self.far(ids.shape[1])[None].expand(len(ids), -1, -1, -1)
        for n, layer in enumerate(self.layers):
            x = layer(x, bias if self.top != "once" or n == 0 else (1 - mask[:, None, None].to(x.dtype)).expand_as(bias) * -1e30)
        return self.head(x, self.words.weight)


def masked_loss(out: Any) -> torch.Tensor:
    logits = out.logits if hasattr(out, "logits") else out
    return F.cross_entropy(logits[READ == 1].float(), TEXT[READ == 1])


def mpnet(lost: str = "", **ways: Any) -> Made:
    model = of_library("MPNetForMaskedLM", vocab_size=WORDS, hidden_size=W, num_hidden_layers=3, num_attention_heads=4, intermediate_size=2 * W,
                       hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=20, layer_norm_eps=1e-5, pad_token_id=1,
                       bos_token_id=0, eos_token_id=2)  # fmt: skip
    state = renamed(dict(model.state_dict()), {
        "mpnet.encoder.layer.": "layers.", "mpnet.encoder.relative_attention_bias": "far.table", "mpnet.embeddings.word_embeddings": "words",
        "mpnet.embeddings.position_embeddings": "places", "mpnet.embeddings.LayerNorm": "norm", "lm_head.layer_norm": "head.norm",
        "lm_head.decoder.bias": "head.bias", "lm_head.dense": "head.dense", "attention.LayerNorm": "n1", "output.LayerNorm": "n2",
        "attention.attn": "attn", "intermediate.dense": "wi", "output.dense": "wo"})  # fmt: skip
    state = {name: value for name, value in state.items() if not name.startswith("lm_head")}
    for name in [name for name in state if ".attn.q." in name]:
        state[name.replace(".q.", ".qkv.")] = torch.cat([state.pop(name.replace(".q.", f".{each}.")) for each in "qkv"])
    if lost == "shift":
        state["places.weight"] = state["places.weight"].roll(-1, 0)
    return beside(model, Encoder(**ways), state, masked_loss, {"input_ids": TEXT, "attention_mask": READ})


FAR, LAYER, SEES, HEAD = ("far",), ("layers.1",), ("layers.1.attn",), ("head",)
family("mpnet with one table", "by products", mpnet, {
    "distances turned": ({"far": "turned"}, FAR, ""), "the past alone": ({"far": "past"}, FAR, ""), "buckets nearer": ({"far": "nearer"}, FAR, ""),
    "a bias before the scale": ({"wrong": "before"}, SEES, ""), "places from one": ({"top": "zero"}, TOP, ""),
    "padding counts as places": ({"top": "counted"}, TOP, ""), "padding is seen": ({"top": "padding"}, TOP, ""),
    "distances in the first layer alone": ({"top": "once"}, TOP, ""), "norms first": ({"wrong": "first"}, LAYER, ""),
    "a straight head": ({"head": "straight"}, HEAD, ""), "no bias of the head": ({"head": "bias"}, HEAD, ""),
    "gelu by tanh": ({"wrong": "tanh"}, LAYER, ""), "heads merged without a turn": ({"wrong": "merged"}, SEES, ""),
    "a table without its first row": ({"lost": "shift"}, ("places",), ""),
}, by_the_kernel={"kernel": True}, row_by_row={"split": True}, rows_by_the_kernel={"split": True, "kernel": True})  # fmt: skip


class Patchwise(nn.Module):
    """Attention with a table of distances of its own, whose last three are those of the class's token."""

    def __init__(self, wrong: str, kernel: bool, side: int = 3) -> None:
        super().__init__()
        self.wrong, self.kernel, self.qkv, self.proj = wrong, kernel, nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(W)), nn.Parameter(torch.zeros(W))
        many = (2 * side - 1) ** 2 + 3
        self.table = nn.Parameter(torch.zeros(many, 4))
        at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="xy" if wrong == "columns" else "ij")).flatten(1)
        far = at[:, :, None] - at[:, None] + side - 1
        index = torch.zeros(side**2 + 1, side**2 + 1, dtype=torch.int64)
        index[1:, 1:] = far[0] * (2 * side - 1) + far[1]
        index[0], index[:, 0], index[0, 0] = many - 3, many - 2, many - 1
        self.register_buffer("index", index.T.contiguous() if wrong == "class" else index, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        none = torch.zeros_like(self.v_bias)
        biases = (self.q_bias, self.v_bias, none) if self.wrong == "biases" else (self.q_bias, none, self.v_bias)
        q, k, v = (heads(each, 8) for each in F.linear(x, self.qkv.weight, torch.cat(biases)).chunk(3, -1))
        bias = self.table[self.index.flatten()].unflatten(0, self.index.shape).permute(2, 0, 1)[None]
        if self.kernel:
            return self.proj(F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype)).transpose(1, 2).flatten(2))
        scores = (q * 8**-0.5) @ k.mT
        scores = scores if self.wrong == "no bias" else scores + bias
        return self.proj((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


class Scaled(nn.Module):
    def __init__(self, wrong: str, kernel: bool) -> None:
        super().__init__()
        self.wrong, self.norm1, self.norm2, self.attn = wrong, nn.LayerNorm(W, eps=1e-6), nn.LayerNorm(W, eps=1e-6), Patchwise(wrong, kernel)
        self.fc1, self.fc2 = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.gamma_1, self.gamma_2 = nn.Parameter(torch.ones(W)), nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.wrong == "gamma":
            x = x + self.attn(self.norm1(x))
        else:
            x = x + self.gamma_1 * self.attn(self.norm1(x))
        made = F.gelu(self.fc1(self.norm2(x)))
        return (x + self.fc2(made)) * self.gamma_2 if self.wrong == "sum" else x + self.fc2(made) * self.gamma_2


class Pictures(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", kernel: bool = False, unfolded: bool = False) -> None:
        super().__init__()
        self.top, self.unfolded, self.embed, self.token = top, unfolded, nn.Conv2d(3, W, 4, 4), nn.Parameter(torch.zeros(1, 1, W))
        self.blocks = nn.ModuleList(Scaled(wrong if n == 1 else "", kernel) for n in range(3))
        self.fc_norm, self.head = nn.LayerNorm(W, eps=1e-6), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.unfolded:
            x = F.linear(F.unfold(x, 4, stride=4).mT, self.embed.weight.flatten(1), self.embed.bias)
        else:
            made = self.embed(x)
            x = (made.mT if self.top == "columns" else made).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        if self.top == "norm first":
            return self.head(self.fc_norm(x[:, 1:]).mean(1))
        return self.head(self.fc_norm({"token": x[:, 0], "all": x.mean(1)}.get(self.top, x[:, 1:].mean(1))))


def beit(lost: str = "", **ways: Any) -> Made:
    model = of_library("BeitForImageClassification", hidden_size=W, num_hidden_layers=3, num_attention_heads=4, intermediate_size=2 * W,
                       image_size=12, patch_size=4, num_labels=5, layer_scale_init_value=0.5, use_relative_position_bias=True, use_mean_pooling=True,
                       layer_norm_eps=1e-6, drop_path_rate=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    state = renamed(dict(model.state_dict()), {
        "beit.layers": "blocks", "beit.embeddings.patch_embeddings.projection": "embed", "beit.embeddings.cls_token": "token",
        "beit.pooler.layernorm": "fc_norm", "classifier": "head", "layernorm_before": "norm1", "layernorm_after": "norm2", "mlp.": "",
        "relative_position_bias.relative_position_bias_table": "attn.table", "attention.": "attn.", "lambda_": "gamma_",
        "o_proj": "proj", "q_proj.bias": "q_bias", "v_proj.bias": "v_bias"})  # fmt: skip
    for name in [name for name in state if "q_proj" in name]:
        state[name.replace("q_proj", "qkv")] = torch.cat([state.pop(name.replace("q_proj", f"{each}_proj")) for each in "qkv"])
    if lost == "table":
        state["blocks.1.attn.table"] = state["blocks.0.attn.table"]
    if lost == "gammas":
        state["blocks.1.gamma_1"], state["blocks.1.gamma_2"] = state["blocks.1.gamma_2"], state["blocks.1.gamma_1"]
    return beside(model, Pictures(**ways), state, picture, numbers(2, 3, 12, 12))


def picture(out: Any) -> torch.Tensor:
    return (out.logits if hasattr(out, "logits") else out).float().square().mean()


BLOCK, OWN = ("blocks.1",), ("blocks.1.attn",)
family("beit by its first code", "by products", beit, {
    "columns before rows": ({"wrong": "columns"}, OWN, ""), "from and to the class": ({"wrong": "class"}, OWN, ""),
    "the first block's table": ({"lost": "table"}, OWN, ""), "a bias of keys": ({"wrong": "biases"}, OWN, ""),
    "no distances": ({"wrong": "no bias"}, OWN, ""), "no scale of attention": ({"wrong": "gamma"}, BLOCK, ""),
    "a scale of the sum": ({"wrong": "sum"}, BLOCK, ""), "scales exchanged": ({"lost": "gammas"}, BLOCK, ""),
    "patches by columns": ({"top": "columns"}, TOP, ""), "the norm before the mean": ({"top": "norm first"}, TOP, ""),
    "the token for the mean": ({"top": "token"}, TOP, ""), "the token in the mean": ({"top": "all"}, TOP, ""),
}, by_the_kernel={"kernel": True}, unfolded={"unfolded": True}, unfolded_by_the_kernel={"unfolded": True, "kernel": True})  # fmt: skip
