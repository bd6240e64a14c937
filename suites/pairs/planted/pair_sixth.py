"""A sixth batch, committed before the judge has seen any of it: slopes under left padding, modulated blocks, squeezed channels.

Faults as ports have them: slopes given to heads from the other end, a bias that is scaled with the scores, shift and scale swapped,
one batch norm with another library's eps.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, language_loss, spread
from torch import nn

W, HEADS, SIZE, WORDS = 24, 3, 8, 17


class FusedAttention(nn.Module):
    """Bloom's: queries, keys and values of a head lie side by side in one product; slopes times the keys' positions."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value, self.dense = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = self.query_key_value(x).unflatten(-1, (HEADS, 3, SIZE)).permute(3, 0, 2, 1, 4)
        scores = (q @ k.mT).float() / math.sqrt(SIZE) + bias
        return self.dense((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


class FusedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attention, self.post_layernorm = nn.LayerNorm(W), FusedAttention(), nn.LayerNorm(W)
        self.up, self.down = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attention(self.input_layernorm(x), bias)
        return x + self.down(F.gelu(self.up(self.post_layernorm(x)), approximate="tanh"))


def slopes_of(seen: torch.Tensor, *, counted: bool, turned: bool = False) -> torch.Tensor:
    """A bias for each head and key, and -inf where a key is padding or comes later. Positions may count padding: a softmax does not see it."""
    length = seen.shape[1]
    slopes = torch.tensor([0.5, 0.25, 0.125])
    slopes = slopes.flip(0) if turned else slopes
    places = torch.arange(length).expand_as(seen) if counted else (seen.long().cumsum(1) - 1) * seen
    hidden = ~(torch.ones(length, length).tril().bool() & seen[:, None, None].bool() | torch.eye(length).bool())
    return (slopes[:, None, None] * places[:, None, None]).masked_fill(hidden, -math.inf)


class Bloom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.words_norm, self.ln_f = nn.Embedding(WORDS, W), nn.LayerNorm(W), nn.LayerNorm(W)
        self.h = nn.ModuleList(FusedBlock() for _ in range(3))

    def forward(self, tokens: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x, bias = self.words_norm(self.words(tokens)), slopes_of(seen, counted=False)
        for block in self.h:
            x = block(x, bias)
        return F.linear(self.ln_f(x), self.words.weight) * seen[..., None]


class SplitAttention(nn.Module):
    def __init__(self, source: FusedAttention, **ways: Any) -> None:
        super().__init__()
        self.ways, self.out = ways, nn.Linear(W, W)
        self.out.load_state_dict(source.dense.state_dict())
        for number, name in enumerate(("q", "k", "v")):
            layer = nn.Linear(W, W)
            with torch.no_grad():
                layer.weight.copy_(source.query_key_value.weight.view(HEADS, 3, SIZE, W)[:, number].flatten(0, 1))
                layer.bias.copy_(source.query_key_value.bias.view(HEADS, 3, SIZE)[:, number].flatten())
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.ways.get("scaled"):
            bias = bias / math.sqrt(SIZE)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)).transpose(1, 2).flatten(2))


class SplitBlock(nn.Module):
    def __init__(self, source: FusedBlock, **ways: Any) -> None:
        super().__init__()
        self.ways, self.norm1, self.norm2 = ways, nn.LayerNorm(W), nn.LayerNorm(W)
        self.attention, self.feed = (
            SplitAttention(source.self_attention, **ways),
            nn.Sequential(nn.Linear(W, 2 * W), nn.GELU("tanh"), nn.Linear(2 * W, W)),
        )
        pairs = (self.norm1, source.input_layernorm), (self.norm2, source.post_layernorm), (self.feed[0], source.up), (self.feed[2], source.down)
        for ours, theirs in pairs:
            ours.load_state_dict(theirs.state_dict())

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(x)
        x = (normed if self.ways.get("after") else x) + self.attention(normed, bias)
        return x + self.feed(self.norm2(x))


class BloomPort(nn.Module):
    def __init__(self, source: Bloom, at: int = 1, **ways: Any) -> None:
        super().__init__()
        self.ways, self.table, self.begin, self.end = ways, nn.Embedding(WORDS, W), nn.LayerNorm(W), nn.LayerNorm(W)
        for ours, theirs in ((self.table, source.words), (self.begin, source.words_norm), (self.end, source.ln_f)):
            ours.load_state_dict(theirs.state_dict())
        self.layers = nn.ModuleList(SplitBlock(each, **(ways if number == at else {})) for number, each in enumerate(source.h))  # type: ignore[arg-type]

    def forward(self, tokens: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        x = x if self.ways.get("unnormed") else self.begin(x)
        bias = slopes_of(seen, counted=bool(self.ways.get("counted")), turned=bool(self.ways.get("turned")))
        for layer in self.layers:
            x = layer(x, bias)
        return (self.end(x) @ self.table.weight.mT) * seen[..., None]


def bloom(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = Bloom()
    spread(model)
    tokens, seen = torch.randint(0, WORDS, (3, 9)), (torch.arange(9) >= torch.tensor([[0], [4], [2]])).long()
    return model, BloomPort(model, **ways), (tokens, seen), {"loss": language_loss(tokens)}


class Modulated(nn.Module):
    """A block of a diffusion transformer: a condition makes shift, scale and gate of both branches."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.modulation = ways, nn.Linear(W, 6 * W)
        self.norm1, self.norm2 = nn.LayerNorm(W, elementwise_affine=False, eps=1e-6), nn.LayerNorm(W, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj, self.fc1, self.fc2 = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        parts = [each[:, None] for each in self.modulation(F.silu(c)).chunk(6, -1)]
        if ways.get("swapped"):
            parts[0], parts[1] = parts[1], parts[0]
        if ways.get("gates"):
            parts[5] = parts[2]
        by_hand = ways.get("form") == "other"
        y = torch.addcmul(parts[0], self.norm1(x), 1 + parts[1]) if by_hand else self.norm1(x) * (1 + parts[1]) + parts[0]
        q, k, v = self.qkv(y).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        if by_hand:
            y = ((q @ k.mT).float() / math.sqrt(SIZE)).softmax(-1).to(v.dtype) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        x = x + parts[2] * self.proj(y.transpose(1, 2).flatten(2))
        y = torch.addcmul(parts[3], self.norm2(x), 1 + parts[4]) if by_hand else self.norm2(x) * (1 + parts[4]) + parts[3]
        return x + parts[5] * self.fc2(F.gelu(self.fc1(y), approximate="tanh"))


class Times(nn.Module):
    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.turned, self.first, self.second = turned, nn.Linear(16, W), nn.Linear(W, W)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        angles = t[:, None] * torch.exp(-math.log(100) * torch.arange(8) / 8)
        parts = (angles.sin(), angles.cos()) if self.turned else (angles.cos(), angles.sin())
        return self.second(F.silu(self.first(torch.cat(parts, -1).to(self.first.weight.dtype))))


class Diffusion(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.patch, self.time = ways, nn.Conv2d(3, W, 2, 2), Times(bool(ways.get("times")))
        form = {"form": ways.get("form")}
        self.blocks, self.last = nn.ModuleList([Modulated(**form), Modulated(**ways), Modulated(**form)]), nn.Linear(W, 2 * 2 * 3)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        if self.ways.get("form") == "other":
            y = F.unfold(x, 2, stride=2).mT @ self.patch.weight.flatten(1).mT + self.patch.bias
        else:
            y = self.patch(x).flatten(2).mT
        c = self.time(t)
        for block in self.blocks:
            y = block(y, c)
        y = self.last(y).unflatten(1, (4, 3)).unflatten(-1, (2, 2, 3))
        return torch.einsum("nhwpqc->nchqwp" if self.ways.get("sides") else "nhwpqc->nchpwq", y).flatten(4).flatten(2, 3)


def diffusion(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Diffusion(), 0.2), Diffusion(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, (torch.randn(2, 3, 8, 6), torch.tensor([3.0, 71.0])), MEAN


class Squeeze(nn.Module):
    def __init__(self, width: int, **ways: Any) -> None:
        super().__init__()
        self.ways, self.reduce, self.expand = ways, nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.amax((2, 3), keepdim=True) if self.ways.get("largest") else x.mean((2, 3), keepdim=True)
        if self.ways.get("form") == "other":
            y = F.silu(F.linear(mean.flatten(1), self.reduce.weight.flatten(1), self.reduce.bias))
            y = F.linear(y, self.expand.weight.flatten(1), self.expand.bias)[..., None, None]
        else:
            y = self.expand(F.silu(self.reduce(mean)))
        return x * (F.hardsigmoid(y) if self.ways.get("hard") else torch.sigmoid(y))


class Inverted(nn.Module):
    """EfficientNet's: expanded, each channel filtered, squeezed, projected."""

    def __init__(self, stride: int, **ways: Any) -> None:
        super().__init__()
        self.ways, self.stride = ways, stride
        self.expand, self.norm1 = nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.depth, self.norm2 = nn.Conv2d(16, 16, 3, stride, 1, groups=16, bias=False), nn.BatchNorm2d(16, eps=1e-2 if ways.get("eps") else 1e-5)
        self.squeeze, self.project, self.norm3 = Squeeze(16, **ways), nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm1(self.expand(x)))
        if self.ways.get("form") == "other":
            padded = F.pad(y, (0, 1, 0, 1) if self.ways.get("padded") else (1, 1, 1, 1))
            windows = padded.unfold(2, 3, self.stride).unfold(3, 3, self.stride)
            y = torch.einsum("bchwij,cij->bchw", windows, self.depth.weight[:, 0])
        else:
            y = self.depth(y)
        y = self.norm3(self.project(self.squeeze(F.silu(self.norm2(y)))))
        return y if self.stride == 2 or self.ways.get("alone") else x + y


class Efficient(nn.Module):
    def __init__(self, at: int = 1, **ways: Any) -> None:
        super().__init__()
        form = {"form": ways.get("form")}
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.Sequential(*(Inverted(stride, **(ways if number == at else form)) for number, stride in enumerate((1, 2, 1))))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def efficient(training: bool = True, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Efficient(), 0.4), Efficient(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model.train(training), other.train(training), torch.randn(4, 3, 8, 8), MEAN


healthy("bloom", "projections apart, torch's attention", bloom)
healthy("bloom", "positions that count padding", lambda: bloom(counted=True))
broken("bloom", "slopes from the other end", lambda: bloom(turned=True), "", "layers.0", "layers.0.attention")
broken("bloom", "slopes scaled with the scores", lambda: bloom(scaled=True), "layers.1", "layers.1.attention")
broken("bloom", "the residual taken after the norm", lambda: bloom(after=True, at=2), "layers.2")
broken("bloom", "no norm of the embedding", lambda: bloom(unnormed=True), "")
healthy("diffusion", "windows for patches, modulated in one op", diffusion)
broken("diffusion", "shift and scale swapped", lambda: diffusion(swapped=True), "blocks.1")
broken("diffusion", "one gate for both branches", lambda: diffusion(gates=True), "blocks.1")
broken("diffusion", "sines before cosines", lambda: diffusion(times=True), "time")
broken("diffusion", "sides of a patch swapped", lambda: diffusion(sides=True), "")
healthy("efficient", "windows, linear layers", efficient)
healthy("efficient", "the same in eval", lambda: efficient(training=False))
broken("efficient", "eps of one norm", lambda: efficient(eps=True), "stages.1.norm2")
broken("efficient", "a maximum squeezed", lambda: efficient(largest=True, at=0), "stages.0.squeeze")
broken("efficient", "a hard sigmoid", lambda: efficient(hard=True, at=2), "stages.2.squeeze")
broken("efficient", "padded at one end", lambda: efficient(padded=True), "stages.1", "stages.1.depth")
broken("efficient", "no residual", lambda: efficient(alone=True, at=2), "stages.2")
