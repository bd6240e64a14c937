"""A fourth batch, committed before the judge has seen any of it: whole decoders and encoders, ported to other parts.

Faults as people have shipped them: rows of a fused projection in another order, rotary positions not scaled, documents that see one another,
a residual's factor on the wrong branch, layers that no longer share their weights, windows shifted the other way.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, language_loss, spread
from pair_third_losses import ADAM
from torch import nn

W, H, D, T, WORDS = 24, 4, 6, 12, 17


def documents(tokens: torch.Tensor) -> torch.Tensor:
    """Which tokens may see which: those before them of the same document; the token 0 begins one."""
    number = (tokens == 0).cumsum(1)
    return (number[:, None, :, None] == number[:, None, None, :]) & torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()


def turned(x: torch.Tensor, positions: torch.Tensor, factor: float) -> torch.Tensor:
    angles = positions[:, None, :, None].float() / factor * 100.0 ** (-torch.arange(0, D, 2) / D)
    first, second = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class Fused(nn.Module):
    """Rows of one projection by head, as GPT-NeoX has them; rows of gate and up in turn, as GPT-OSS has them; residuals as DeepNorm's."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6)
        self.gate_up, self.down = nn.Linear(W, 4 * W), nn.Linear(2 * W, W)
        self.first, self.second = nn.LayerNorm(W), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (H, 3, D)).permute(3, 0, 2, 1, 4)
        q, k = turned(self.q_norm(q), positions, 4.0), turned(self.k_norm(k), positions, 4.0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(D)
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        x = self.first(1.5 * x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        gate, up = self.gate_up(x).unflatten(-1, (-1, 2)).unbind(-1)
        return self.second(1.5 * x + self.down(F.silu(gate) * up))


class Apart(nn.Module):
    """The same with a projection for each, and torch's attention."""

    def __init__(self, source: Fused, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.q, self.k, self.v, self.gate, self.up = (nn.Linear(W, width) for width in (W, W, W, 2 * W, 2 * W))
        self.o, self.down = copy.deepcopy(source.out), copy.deepcopy(source.down)
        self.norms = nn.ModuleList(copy.deepcopy(each) for each in (source.q_norm, source.k_norm, source.first, source.second))
        with torch.no_grad():
            for name in ("weight", "bias"):
                whole = getattr(source.qkv, name).unflatten(0, (3, H, D) if ways.get("halves") else (H, 3, D))
                for number, each in enumerate((self.q, self.k, self.v)):
                    getattr(each, name).copy_((whole[number] if ways.get("halves") else whole[:, number]).flatten(0, 1))
                whole = getattr(source.gate_up, name)
                rows = whole.chunk(2) if ways.get("chunks") else (whole[::2], whole[1::2])
                for each, some in zip((self.gate, self.up), rows, strict=True):
                    getattr(each, name).copy_(some)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        q, k, v = (each(x).unflatten(-1, (H, D)).transpose(1, 2) for each in (self.q, self.k, self.v))
        factor = 1.0 if ways.get("unscaled") else 4.0
        if ways.get("table"):
            positions = positions.clamp(max=7)
        if ways.get("late"):
            q, k = self.norms[0](turned(q, positions, factor)), self.norms[1](turned(k, positions, factor))
        else:
            q, k = turned(self.norms[0](q), positions, factor), turned(self.norms[1](k), positions, factor)
        seen = torch.ones_like(seen).tril() if ways.get("packed") else seen
        y = self.o(F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).reshape(x.shape))
        x = self.norms[2](x + 1.5 * y if ways.get("branch") else 1.5 * x + y)
        return self.norms[3](1.5 * x + self.down(F.silu(self.gate(x)) * self.up(x)))


class Documents(nn.Module):
    """A decoder of packed documents. `restart`: positions begin anew with each."""

    def __init__(self, blocks: Any, restart: bool = True) -> None:
        super().__init__()
        self.restart, self.words, self.blocks, self.head = restart, nn.Embedding(WORDS, W), nn.ModuleList(blocks), nn.Linear(W, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        if self.restart:
            places = places - torch.where(tokens == 0, places, 0).cummax(1).values
        x, seen = self.words(tokens), documents(tokens)
        for block in self.blocks:
            x = block(x, seen, places)
        return self.head(x)


def packed(restart: bool = True, **bad: Any) -> Made:
    torch.manual_seed(0)
    model = Documents([Fused(), Fused()])
    spread(model)
    sources = [each for each in model.blocks if isinstance(each, Fused)]
    other = Documents([Apart(sources[0]), Apart(sources[1], **bad)], restart)
    other.words.load_state_dict(model.words.state_dict())
    other.head.load_state_dict(model.head.state_dict())
    tokens = torch.randint(1, WORDS, (3, T))
    tokens[:, 0], tokens[0, 5], tokens[1, 9], tokens[2, 3] = 0, 0, 0, 0
    return model, other, tokens, {"loss": language_loss(tokens)}


class Layer(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.mixing, self.norm, self.full = nn.MultiheadAttention(W, H, batch_first=True), nn.LayerNorm(W, eps=1e-12), nn.LayerNorm(W, eps=1e-12)
        self.ffn, self.ffn_output = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def attended(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        if self.ways.get("form") != "other":
            mixed: torch.Tensor = self.mixing(x, x, x, key_padding_mask=padding, need_weights=False)[0]
            return mixed
        assert self.mixing.in_proj_weight is not None
        q, k, v = (
            each.unflatten(-1, (H, D)).transpose(1, 2) for each in F.linear(x, self.mixing.in_proj_weight, self.mixing.in_proj_bias).chunk(3, -1)
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", q * D**-0.5, k)
        weights = scores.masked_fill(padding[:, None, None], -math.inf).float().softmax(-1).to(v.dtype)
        return self.mixing.out_proj(torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2))

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.attended(x, padding))
        y = self.ffn(x)
        y = y * torch.sigmoid(1.702 * y) if self.ways.get("quick") else F.gelu(y)
        return self.full(x + self.ffn_output(y))


class Shared(nn.Module):
    """One layer three times, as ALBERT; embeddings of the usual small size, whose norm has an eps that counts."""

    def __init__(self, eps: float = 1e-12, untied: bool = False, **ways: Any) -> None:
        super().__init__()
        layer, self.ways = Layer(**ways), ways
        self.words, self.places, self.norm = nn.Embedding(WORDS, 8), nn.Embedding(T, 8), nn.LayerNorm(8, eps=eps)
        self.wider, self.classes = nn.Linear(8, W), nn.Linear(W, 3)
        self.layers = nn.ModuleList([copy.deepcopy(layer) if untied and number else layer for number in range(3)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 1
        x = self.wider(self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]]))
        for layer in self.layers:
            x = layer(x, padding)
        seen = torch.ones_like(padding) if self.ways.get("all") else ~padding
        return self.classes((x * seen[..., None]).sum(1) / seen.sum(1, keepdim=True))


def shared(optimizer: dict[str, Any] | None = None, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Shared()), Shared(**{"form": "other", **ways})
    with torch.no_grad():
        model.words.weight.normal_(std=0.02)  # type: ignore[union-attr, operator]
        model.places.weight.normal_(std=0.02)  # type: ignore[union-attr, operator]
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(2, WORDS, (3, T))
    tokens[0, 8:], tokens[2, 5:] = 1, 1
    return model, other, tokens, {"loss": lambda out: F.cross_entropy(out.float(), torch.tensor([0, 2, 1])), **(optimizer or {})}


class Windows(nn.Module):
    """Attention in windows of 4 by 4, shifted by 2 in every second block, with a bias by distance, as Swin has it."""

    def __init__(self, shift: int, **ways: Any) -> None:
        super().__init__()
        self.shift, self.ways = shift, ways
        self.norm, self.qkv, self.out, self.bias = nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Parameter(torch.randn(49, H))
        rows, columns = torch.arange(16) // 4, torch.arange(16) % 4
        down, right = rows[:, None] - rows, columns[:, None] - columns
        self.register_buffer("index", ((down + 3) * 7 + right + 3).t() if ways.get("transposed") else (down + 3) * 7 + right + 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, shift, height, width = self.ways, self.shift, x.shape[1], x.shape[2]
        y = self.norm(x)
        back = -shift if ways.get("backwards") else shift
        if ways.get("form") == "other":
            order = torch.arange(height * width).view(height, width).roll((-back, -back), (0, 1)).view(height // 4, 4, width // 4, 4)
            order = order.transpose(1, 2).reshape(-1, 16)
            y = y.flatten(1, 2)[:, order]
        else:
            y = y.roll((-back, -back), (1, 2)).unflatten(2, (-1, 4)).unflatten(1, (-1, 4)).transpose(2, 3).reshape(len(x), -1, 16, W)
        q, k, v = self.qkv(y).unflatten(-1, (3, H, D)).permute(3, 0, 1, 4, 2, 5)
        self.index: torch.Tensor
        bias = (F.one_hot(self.index, 49).to(self.bias.dtype) @ self.bias if ways.get("form") == "other" else self.bias[self.index]).permute(2, 0, 1)
        parts = torch.arange(2).repeat_interleave(torch.tensor([height - shift, shift]))
        region = (parts[:, None] * 2 + torch.arange(2).repeat_interleave(torch.tensor([width - shift, shift]))).view(height // 4, 4, width // 4, 4)
        region = region.transpose(1, 2).reshape(-1, 16)
        seen = (region[:, :, None] == region[:, None, :])[None, :, None]
        if ways.get("open"):
            seen = torch.ones_like(seen)
        scores = q @ k.transpose(-1, -2) / math.sqrt(D) + bias
        y = self.out((scores.masked_fill(~seen, -math.inf).softmax(-1) @ v).transpose(2, 3).flatten(3))
        if ways.get("form") == "other":
            return x + torch.zeros_like(y.flatten(1, 2)).index_copy(1, order.flatten(), y.flatten(1, 2)).view(x.shape)
        y = y.view(len(x), height // 4, width // 4, 4, 4, W).transpose(2, 3).reshape(x.shape)
        return x + y.roll((shift, shift), (1, 2))


class Pyramid(nn.Module):
    """Two blocks of windows, then patches of four merged into one."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, bad = ways, {name: ways[name] for name in ways if name != "merged"}
        self.first = nn.Conv2d(3, W, 2, 2)
        self.blocks = nn.ModuleList([Windows(0, form=ways.get("form")), Windows(2, **bad)])
        self.norm, self.merge, self.head = nn.LayerNorm(4 * W), nn.Linear(4 * W, W), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        if self.ways.get("form") == "other":
            order = (0, 1, 2, 3) if self.ways.get("merged") else (0, 2, 1, 3)
            x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 2, 4, 5).flatten(3, 4)[..., order, :].flatten(3)
        else:
            x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.head(self.merge(self.norm(x)).mean((1, 2)))


def pyramid(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Pyramid()), Pyramid(**{"form": "other", **ways})
    other.load_state_dict({name: each for name, each in model.state_dict().items() if not name.endswith("index")}, strict=False)
    return model, other, torch.randn(2, 3, 16, 32), MEAN


LAYERS = tuple(f"layers.{number}{part}" for number in range(3) for part in ("", ".mixing", ".norm", ".full", ".ffn", ".ffn_output"))
healthy("documents", "a projection for each, torch's attention", packed)
healthy("documents", "positions that count on, where distances alone matter", lambda: packed(restart=False))
broken("documents", "rows by head read as three blocks", lambda: packed(halves=True), "blocks.1.q", "blocks.1.k", "blocks.1.v", "blocks.1")
broken("documents", "rows in turn read as two halves", lambda: packed(chunks=True), "blocks.1.gate", "blocks.1.up", "blocks.1")
broken("documents", "angles not scaled", lambda: packed(unscaled=True), "blocks.1")
broken("documents", "a table of eight positions", lambda: packed(restart=False, table=True), "blocks.1")
broken("documents", "norms after the turn", lambda: packed(late=True), "blocks.1", "blocks.1.norms.0", "blocks.1.norms.1")
broken("documents", "documents see one another", lambda: packed(packed=True), "blocks.1")
broken("documents", "the branch scaled, not the stream", lambda: packed(branch=True), "blocks.1")
healthy("shared", "attention by hand, softmax in float32", shared)
healthy("shared", "the same, three steps of AdamW", lambda: shared(optimizer=ADAM))
broken("shared", "layers that no longer share", lambda: shared(untied=True), "", "layers", *LAYERS)
broken("shared", "quick gelu", lambda: shared(quick=True), "layers.0", "layers.1", "layers.2")
broken("shared", "eps of the embedding's norm", lambda: shared(eps=1e-5), "norm", said="eps is 1e-05")
broken("shared", "a mean over padding", lambda: shared(all=True), "")
healthy("pyramid", "windows by index, bias by a product", pyramid)
broken("pyramid", "shifted the other way", lambda: pyramid(backwards=True), "blocks.1")
broken("pyramid", "bias of the distance back", lambda: pyramid(transposed=True), "blocks.1")
broken("pyramid", "the border not hidden", lambda: pyramid(open=True), "blocks.1")
broken("pyramid", "patches merged row by row", lambda: pyramid(merged=True), "")
