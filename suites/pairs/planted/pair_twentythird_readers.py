"""The twenty-third batch, second part: readers of transformers beside torch's own layers, and filters of two kinds beside products.

Faults as such ports have them: places that do not count from the padding, a padding that is read, norms before a branch and not after it, one layer
too few where one layer is used again, a row too many of places, patches by columns.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, spread
from pair_fourteenth_scans import numbers
from pair_fourteenth_sights import renamed
from pair_tenth import Only
from pair_twentythird import HEADS, SIZES, UP, WORDS, State, W, family
from torch import nn

LENGTH = 9
REAL = torch.arange(LENGTH) < torch.tensor([9, 5])[:, None]
IDS = torch.randint(2, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(13)).masked_fill(~REAL, 1)
PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def layer(eps: float = 1e-12, first: bool = False, act: Any = F.gelu) -> nn.Module:
    return nn.TransformerEncoderLayer(W, HEADS, UP, 0.0, act, eps, batch_first=True, norm_first=first)


def in_torch(state: State) -> State:
    """Names and shapes as torch's encoder layer has them."""
    found = renamed(state, ("attention.output.dense", "self_attn.out_proj"), ("intermediate.dense", "linear1"),
                        ("attention.output.LayerNorm", "norm1"),
                    ("output.LayerNorm", "norm2"), ("output.dense", "linear2"))  # fmt: skip
    for kind in ("weight", "bias"):
        for name in [name for name in found if name.endswith(f"attention.self.query.{kind}")]:
            parts = [found.pop(name.replace("query", part)) for part in ("query", "key", "value")]
            found[name.replace(f"attention.self.query.{kind}", f"self_attn.in_proj_{kind}")] = torch.cat(parts)
    return found


class Reader(nn.Module):
    """Words, places and kinds of words, then torch's layers. `places`: "padding" (they count from the padding's number on), "two" or "all"."""

    def __init__(self, places: str = "padding", blind: bool = False, kinds: bool = True, second: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.mode, self.blind, self.with_kinds = places, blind, kinds
        self.words, self.places, self.kinds = nn.Embedding(WORDS, W, padding_idx=1), nn.Embedding(20, W, padding_idx=1), nn.Embedding(1, W)
        self.norm, self.layer = nn.LayerNorm(W, eps=1e-5), nn.ModuleList([layer(1e-5), layer(**{"eps": 1e-5, **(second or {})})])

    def forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        counted = {
            "padding": real.cumsum(1) * real + 1,
            "zero": real.cumsum(1) * real - real.long(),
            "all": torch.arange(2, 2 + LENGTH).expand(2, -1),
        }
        x = self.words(ids) + self.places(counted[self.mode])
        x = self.norm(x + self.kinds.weight[0] if self.with_kinds else x)
        for block in self.layer:
            x = block(x, src_key_padding_mask=None if self.blind else ~real)
        return x * real[..., None]


class Real(Only):
    """A model of transformers whose results for padding count nothing."""

    def forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return self.net(ids, attention_mask=real.long()).last_hidden_state * real[..., None]


def roberta(loss: Any = None, **bad: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    config = transformers.RobertaConfig(vocab_size=WORDS, type_vocab_size=1, layer_norm_eps=1e-5, **{**SIZES, "max_position_embeddings": 20}, **PLAIN)
    model = spread(transformers.RobertaModel(config, add_pooling_layer=False))
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[1] = model.embeddings.position_embeddings.weight[1] = 0
    state = renamed(model.state_dict(), ("embeddings.word_embeddings", "words"), ("embeddings.position_embeddings", "places"), ("encoder.", ""),
                    ("embeddings.token_type_embeddings", "kinds"), ("embeddings.LayerNorm", "norm"))  # fmt: skip
    other = Reader(**bad)
    other.load_state_dict({name: value for name, value in in_torch(state).items() if "_ids" not in name})
    return Real(model), other, (IDS, REAL), dict(MEAN)


SECOND = ("layer.1",)
family("a port of roberta", "torch's layers", roberta, {
    "places from zero": ({"places": "zero"}, ("", "places"), ""), "padding is read": ({"blind": True}, ("", "layer.0", "layer.0.self_attn"), ""),
    "no kinds of words": ({"kinds": False}, ("",), ""), "norms before": ({"second": {"first": True}}, SECOND, ""),
    "a norm's other eps": ({"second": {"eps": 1e-2}}, ("layer.1.norm1", *SECOND), "eps"),
    "relu for gelu": ({"second": {"act": F.relu}}, SECOND, ""),
}, counted_through={"places": "all"})  # fmt: skip


class Again(nn.Module):
    """One layer that is used three times, behind words of a small size. `late`: a norm that is left out at the second time."""

    def __init__(self, times: int = 3, linked: bool = True, residual: bool = False, copies: bool = False) -> None:
        super().__init__()
        self.times, self.linked, self.residual, self.copies = times, linked, residual, copies
        self.words, self.places, self.kinds = nn.Embedding(WORDS, 8), nn.Embedding(16, 8), nn.Embedding(2, 8)
        self.norm, self.map, self.layer = nn.LayerNorm(8, eps=1e-12), nn.Linear(8, W), layer(act=lambda x: F.gelu(x, approximate="tanh"))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = first = self.map(self.norm(self.words(ids) + self.places.weight[: ids.shape[1]] + self.kinds.weight[0]))
        for time in range(self.times):
            x = x.detach() if time == 1 and not self.linked else x
            x = self.layer(x + first if self.residual and time == 1 else x)
        return x


def albert(**bad: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    held = {**SIZES, "num_hidden_layers": 3}
    config = transformers.AlbertConfig(vocab_size=WORDS, embedding_size=8, classifier_dropout_prob=0.0, hidden_act="gelu_new", **held, **PLAIN)
    model = spread(transformers.AlbertModel(config, add_pooling_layer=False))
    state = renamed(model.state_dict(), ("embeddings.word_embeddings", "words"), ("embeddings.position_embeddings", "places"), ("encoder.", ""),
                    ("embeddings.token_type_embeddings", "kinds"), ("embeddings.LayerNorm", "norm"), ("embedding_hidden_mapping_in", "map"),
                    ("albert_layer_groups.0.albert_layers.0.", "layer."), ("full_layer_layer_norm", "norm2"), ("attention.LayerNorm", "norm1"),
                    ("ffn_output", "linear2"), ("ffn", "linear1"), ("attention.dense", "self_attn.out_proj"),
                    ("attention.", "attention.self."))  # fmt: skip
    other = Again(**bad)
    other.load_state_dict({name: value for name, value in in_torch(state).items() if "_ids" not in name})
    return Only(model, "last_hidden_state"), other, IDS, dict(MEAN)


family("a port of albert", "torch's layer thrice", albert, {
    "one time too few": ({"times": 2}, ("",), ""), "one time too many": ({"times": 4}, ("",), ""),
    "the first result once more": ({"residual": True}, ("",), ""), "a result that is cut off": ({"linked": False}, ("",), ""),
})  # fmt: skip


class Sight(nn.Module):
    """Patches by a product, and torch's layers with norms before."""

    def __init__(
        self, columns: bool = False, last: bool = False, bare: bool = False, places: bool = True, second: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.columns, self.last, self.bare, self.with_places = columns, last, bare, places
        self.patch, self.token, self.places = nn.Linear(3 * 16, W), nn.Parameter(torch.zeros(1, 1, W)), nn.Parameter(torch.zeros(1, 10, W))
        self.layer, self.norm = nn.ModuleList([layer(first=True), layer(**{"first": True, **(second or {})})]), nn.LayerNorm(W, eps=1e-12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tiles = x.unflatten(2, (3, 4)).unflatten(4, (3, 4))  # (batch, channels, rows, within, columns, within)
        tiles = tiles.permute(0, 4, 2, 1, 3, 5) if self.columns else tiles.permute(0, 2, 4, 1, 3, 5)
        rows, token = self.patch(tiles.flatten(3).flatten(1, 2)), self.token.expand(len(x), -1, -1).to(x.dtype)
        y = torch.cat([rows, token.to(rows.dtype)] if self.last else [token.to(rows.dtype), rows], 1)
        y = y + self.places if self.with_places else torch.cat([y[:, :1], y[:, 1:] + self.places[:, 1:]], 1)
        for block in self.layer:
            y = block(y)
        return y if self.bare else self.norm(y)


def vit(**bad: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=12, patch_size=4, **{name: value for name, value in SIZES.items() if "max" not in name}, **PLAIN)
    model = spread(transformers.ViTModel(config, add_pooling_layer=False))
    with torch.no_grad():
        model.embeddings.cls_token.normal_(), model.embeddings.position_embeddings.normal_()
    state = renamed(model.state_dict(), ("embeddings.cls_token", "token"), ("embeddings.position_embeddings", "places"), ("encoder.", ""),
                    ("embeddings.patch_embeddings.projection", "patch"), ("layernorm_before", "norm1"), ("layernorm_after", "norm2"),
                    ("attention.attention.", "attention.self."), ("layers.", "layer."), ("mlp.fc1", "linear1"), ("mlp.fc2", "linear2"),
                    ("attention.q_proj", "attention.self.query"), ("attention.k_proj", "attention.self.key"),
                    ("attention.v_proj", "attention.self.value"), ("attention.o_proj", "self_attn.out_proj"), ("layernorm", "norm"))  # fmt: skip
    state["patch.weight"] = state["patch.weight"].flatten(1)
    other = Sight(**bad)
    other.load_state_dict(in_torch(state))
    return Only(model, "last_hidden_state"), other, numbers(2, 3, 12, 12), dict(MEAN)


family("a port of vit", "torch's layers and a product", vit, {
    "patches by columns": ({"columns": True}, ("", "patch"), ""), "the token last": ({"last": True}, ("",), ""),
    "no last norm": ({"bare": True}, ("",), ""),
    "no place for the token": ({"places": False}, ("",), ""), "norms after": ({"second": {"first": False}}, SECOND, ""),
})  # fmt: skip


class Separable(nn.Module):
    """A filter for each channel and a product of channels, with torch's filters, or as sums of moved pictures. Faults are of the latter."""

    def __init__(self, sums: bool = False, mirrored: bool = False, edge: str = "constant", step: int = 1, mixed: bool = False) -> None:
        super().__init__()
        self.sums, self.mirrored, self.edge, self.step, self.mixed = sums, mirrored, edge, step, mixed
        self.norm, self.deep, self.point = nn.GroupNorm(1, 12), nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(12, 12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        if not self.sums:
            return x + self.point(F.silu(self.deep(y)))
        taps, wide, size = self.deep.weight.to(y.dtype), F.pad(y, [self.step] * 4, mode=self.edge), x.shape[-1]
        taps = taps.flip(-1) if self.mirrored else taps.roll(1, 0) if self.mixed else taps
        made = sum(
            taps[:, 0, i, j, None, None] * wide[..., self.step * i : self.step * i + size, self.step * j : self.step * j + size]
            for i in range(3) for j in range(3)
        )  # fmt: skip
        made = F.silu(made + self.deep.bias.to(y.dtype)[:, None, None])
        return x + F.linear(made.movedim(1, -1), self.point.weight.flatten(1), self.point.bias).movedim(-1, 1)


class Pictures(nn.Module):
    def __init__(self, second: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 12, 2, 2), nn.Linear(12, 5)
        self.layer = nn.ModuleList([Separable(**ways), Separable(**{**ways, **(second or {})}), Separable(**ways)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.layer:
            x = block(x)
        return self.head(x.mean((2, 3)))


def separable(**second: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Pictures()), Pictures(second, sums=True)
    other.load_state_dict(model.state_dict())
    return model, other, numbers(2, 3, 14, 14), dict(MEAN)


family("filters as sums", "of moved pictures", separable, {
    "taps turned round": ({"mirrored": True}, SECOND, ""), "the edge repeated": ({"edge": "replicate"}, SECOND, ""),
    "taps two apart": ({"step": 2}, SECOND, ""), "the taps of a neighbour": ({"mixed": True}, SECOND, ""),
})  # fmt: skip
