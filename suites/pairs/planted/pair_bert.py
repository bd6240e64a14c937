"""An encoder as BERT's is: norms after the sum, padding hidden, segments, dropout; beside torch's own encoder layer and a functional form."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, spread
from torch import nn

W, H, V, T = 32, 4, 30, 9


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.word, self.segment, self.place = nn.Embedding(V, W, padding_idx=0), nn.Embedding(2, W), nn.Embedding(T, W)
        self.norm, self.drop = nn.LayerNorm(W, eps=1e-12), nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(W, H, 2 * W, dropout, activation="gelu", batch_first=True, layer_norm_eps=1e-12) for _ in range(2)
        )
        self.pooler, self.classifier = nn.Linear(W, W), nn.Linear(W, 3)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.word(tokens) + self.segment(segments) + self.place.weight[: tokens.shape[1]]))
        hidden = tokens == 0
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class SelfAttention(nn.Module):
    def __init__(self, source: nn.MultiheadAttention, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.query, self.key, self.value, self.dense = (nn.Linear(W, W) for _ in range(4))
        weights, offsets = source.in_proj_weight.detach().chunk(3), source.in_proj_bias.detach().chunk(3)
        for part, weight, offset in zip((self.query, self.key, self.value), weights, offsets, strict=True):
            part.weight.data.copy_(weight)
            part.bias.data.copy_(offset)
        self.dense.load_state_dict(source.out_proj.state_dict())
        if ways.get("no_key_bias"):
            self.key.bias = None

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).view(*x.shape[:2], H, -1).permute(0, 2, 1, 3) for part in (self.query, self.key, self.value))
        added = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, self.ways.get("penalty", -1e4))[:, None, None]
        weights = (q @ k.mT * (W // H) ** -0.5 + added).softmax(-2 if self.ways.get("axis") else -1)
        return self.dense((weights @ v).permute(0, 2, 1, 3).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, source: nn.TransformerEncoderLayer, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.attention = SelfAttention(source.self_attn, **ways)
        self.wide, self.narrow, self.one, self.two = nn.Linear(W, 2 * W), nn.Linear(2 * W, W), nn.LayerNorm(W, 1e-12), nn.LayerNorm(W, 1e-12)
        norms = (source.norm2, source.norm1) if ways.get("norms") else (source.norm1, source.norm2)
        for ours, theirs in ((self.wide, source.linear1), (self.narrow, source.linear2), (self.one, norms[0]), (self.two, norms[1])):
            ours.load_state_dict(theirs.state_dict())

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        if self.ways.get("before"):
            x = x + self.attention(self.one(x), hidden)
            return x + self.narrow(F.gelu(self.wide(self.two(x))))
        x = self.one(x + self.attention(x, hidden))
        return self.two(x + self.narrow(F.gelu(self.wide(x), approximate=self.ways.get("gelu", "none"))))


class Port(nn.Module):
    def __init__(self, source: Encoder, bad: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.words, self.kinds, self.places = (nn.Embedding.from_pretrained(each.weight.detach().clone(), freeze=False)
                                               for each in (source.word, source.segment, source.place))  # fmt: skip
        self.words.padding_idx = 0 if not ways.get("padded") else None
        self.start = nn.LayerNorm(W, eps=1e-12)
        self.start.load_state_dict(source.norm.state_dict())
        self.encoder = nn.ModuleList(Layer(each, **{**ways, **((bad or {}) if n else {})}) for n, each in enumerate(source.layers))  # type: ignore[arg-type]
        self.pool, self.out = nn.Linear(W, W), nn.Linear(W, 3)
        self.pool.load_state_dict(source.pooler.state_dict())
        self.out.load_state_dict(source.classifier.state_dict())

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1])[None])
        x = self.start(x if ways.get("no_segments") else x + self.kinds(1 - segments if ways.get("flipped") else segments))
        x = F.dropout(x, 0.1) if ways.get("dropping") else x
        hidden = tokens == ways.get("padding", 0)
        for layer in self.encoder:
            x = layer(x, hidden)
        pooled = x.mean(1) if ways.get("mean") else x[:, -1] if ways.get("last") else x[:, 0]
        pooled = self.pool(pooled)
        return self.out(pooled if ways.get("linear") else pooled.tanh())


def pair(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Encoder(ways.pop("dropout", 0.0)))
    assert isinstance(model, Encoder)
    if not ways.pop("training", True):
        model.eval()
    tokens, segments = torch.randint(1, V, (3, T)), torch.randint(0, 2, (3, T))
    tokens[1, 6:], tokens[2, 8:] = 0, 0
    labels = torch.tensor([0, 2, 1])
    other = Port(model, **ways)
    return model, other, (tokens, segments), {"loss": lambda out: F.cross_entropy(out.float(), labels)}


healthy("bert", "torch's layer, and projections of their own", pair)
healthy("bert", "torch's layer in eval, its fast path", lambda: pair(training=False))
healthy("bert", "no bias of keys, which is zero on paper", lambda: pair(no_key_bias=True))
healthy("bert", "the padding's embedding might learn, and gets no gradient", lambda: pair(padded=True))
broken("bert", "norm before the sum", lambda: pair(bad={"before": True}), "encoder.1", "encoder.1.one", "encoder.1.attention")
broken("bert", "softmax over queries", lambda: pair(bad={"axis": True}), "encoder.1.attention", said="")
broken("bert", "norms swapped", lambda: pair(bad={"norms": True}), "encoder.1.one", "encoder.1")
broken("bert", "gelu by tanh", lambda: pair(bad={"gelu": "tanh"}), "encoder.1")
broken("bert", "no segments", lambda: pair(no_segments=True), "")
broken("bert", "segments the other way round", lambda: pair(flipped=True), "", "kinds")
broken("bert", "padding by another token", lambda: pair(padding=V), "encoder.0.attention", "")
broken("bert", "a penalty that hides nothing", lambda: pair(bad={"penalty": -1.0}), "encoder.1.attention")
broken("bert", "mean for the first token", lambda: pair(mean=True), "")
broken("bert", "last token for the first", lambda: pair(last=True), "")
broken("bert", "no tanh in the pooler", lambda: pair(linear=True), "")
broken("bert", "dropout in eval", lambda: pair(training=False, dropping=True), "")
