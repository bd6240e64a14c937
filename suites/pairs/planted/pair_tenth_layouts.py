"""A tenth batch, third part: weights in shards, in stacks and in one vector, Muon, norms that are folded, rows of other lengths, bags of words.

Faults as such rewrites have them: a bias that each shard adds, a layer twice, a weight read by columns, padding that is counted.
Two were mended after they were tried, since what was said of them is true. The sharded model also kept the whole weights, unused. Under autocast the
norm of a batch was in a low format, where torch's norm by groups is in float32.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_tenth_parts import numbers, pair
from torch import nn

W, HEADS, SIZE, LENGTH = 24, 3, 8, 7


class Block(nn.Module):
    """A block with attention of torch and a gated branch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(W), nn.LayerNorm(W)
        self.qkv, self.out, self.up, self.down = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in self.qkv(self.one(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.two(x))))


class Blocks(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList([Block() for _ in range(count)]), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Stacked(nn.Module):
    """The blocks' weights, one tensor for all layers of each. `order`: which layer comes when."""

    def __init__(self, theirs: Blocks, order: Iterable[int] = (0, 1, 2)) -> None:
        super().__init__()
        self.order, self.norm, held = tuple(order), nn.LayerNorm(W), [dict(block.named_parameters()) for block in theirs.blocks]
        self.norm.load_state_dict(theirs.norm.state_dict())
        self.layers = nn.ParameterDict({
            name.replace(".", "_"): nn.Parameter(torch.stack([each[name].detach() for each in held])) for name in held[0]})  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in self.order:
            w = {name: value[number] for name, value in self.layers.items()}
            normed = F.layer_norm(x, (W,), w["one_weight"], w["one_bias"])
            q, k, v = F.linear(normed, w["qkv_weight"], w["qkv_bias"]).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
            scores = (q @ k.mT).float() / math.sqrt(SIZE) + torch.full((x.shape[1],) * 2, -math.inf).triu(1)
            made = (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)
            x = x + F.linear(made, w["out_weight"], w["out_bias"])
            normed = F.layer_norm(x, (W,), w["two_weight"], w["two_bias"])
            x = x + F.linear(F.silu(F.linear(normed, w["up_weight"], w["up_bias"])), w["down_weight"], w["down_bias"])
        return self.norm(x)


class Flat(nn.Module):
    """All weights in one vector, as sharded training holds them. `turned`: a square weight that is read by columns."""

    def __init__(self, theirs: Blocks, turned: str = "") -> None:
        super().__init__()
        self.turned, self.forms = turned, {name: value.shape for name, value in theirs.named_parameters()}
        self.flat = nn.Parameter(torch.cat([value.detach().flatten() for value in theirs.parameters()]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.flat.split([form.numel() for form in self.forms.values()])
        w = {name: part.view(form) for part, (name, form) in zip(parts, self.forms.items(), strict=True)}
        if self.turned:
            w[self.turned] = w[self.turned].T
        for number in range(3):
            at = f"blocks.{number}."
            normed = F.layer_norm(x, (W,), w[at + "one.weight"], w[at + "one.bias"])
            q, k, v = (
                each.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for each in F.linear(normed, w[at + "qkv.weight"], w[at + "qkv.bias"]).split(W, -1)
            )
            made = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + F.linear(made, w[at + "out.weight"], w[at + "out.bias"])
            normed = F.layer_norm(x, (W,), w[at + "two.weight"], w[at + "two.bias"])
            x = x + F.linear(F.silu(F.linear(normed, w[at + "up.weight"], w[at + "up.bias"])), w[at + "down.weight"], w[at + "down.bias"])
        return F.layer_norm(x, (W,), w["norm.weight"], w["norm.bias"])


class Shard(nn.Module):
    """A part of a block's second half: rows of its first weight, columns of its second."""

    def __init__(self, theirs: Block, rank: int, ranks: int, biased: bool) -> None:
        super().__init__()
        size = 2 * W // ranks
        part = slice(rank * size, rank * size + size)
        self.up, self.down = nn.Linear(W, size), nn.Linear(size, W, bias=biased)
        with torch.no_grad():
            self.up.weight.copy_(theirs.up.weight[part]), self.up.bias.copy_(theirs.up.bias[part])
            self.down.weight.copy_(theirs.down.weight[:, part])
            if biased:
                self.down.bias.copy_(theirs.down.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(x)))


class Sharded(nn.Module):
    """Blocks whose second half is in shards that are added up. `twice`: a layer where each of two shards adds the bias."""

    def __init__(self, theirs: Blocks, ranks: int = 3, twice: int = -1, lost: int = -1) -> None:
        super().__init__()
        self.theirs, self.norm, self.lost, self.shards = copy.deepcopy(theirs.blocks), copy.deepcopy(theirs.norm), lost, nn.ModuleList()
        for block in self.theirs:
            del block.up, block.down
        for number, block in enumerate(theirs.blocks):
            self.shards.append(nn.ModuleList([Shard(block, rank, ranks, rank == 0 or (rank == 1 and number == twice)) for rank in range(ranks)]))  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, (block, shards) in enumerate(zip(self.theirs, self.shards, strict=True)):
            normed = block.one(x)  # type: ignore[operator]
            q, k, v = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in block.qkv(normed).chunk(3, -1))  # type: ignore[operator]
            x = x + block.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))  # type: ignore[operator]
            normed = block.two(x)  # type: ignore[operator]
            parts = [shard(normed) for shard in shards]  # type: ignore[union-attr]
            x = x + sum(parts[:-1] if number == self.lost else parts)
        return self.norm(x)


class Written(torch.optim.Optimizer):
    """Muon as its author wrote it, for weights stored (in, out). `even`: whether steps of tall weights are as long as of wide ones."""

    def __init__(self, held: Iterable[nn.Parameter], even: bool = False, turns: int = 5) -> None:
        super().__init__(held, {})
        self.even, self.turns = even, turns

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"]:
            kept = self.state[each].setdefault("kept", torch.zeros_like(each))
            kept.mul_(0.95).add_(each.grad, alpha=0.05)
            x = (each.grad * 0.05 + kept * 0.95).bfloat16()
            tall = len(x) > x.shape[1]
            x = x.mT if tall else x
            x = x / (x.norm() + 1e-7)
            for _ in range(self.turns):
                square = x @ x.mT
                x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
            ratio = 1 if self.even else max(1, each.shape[1] / each.shape[0]) ** 0.5
            each.mul_(1 - 0.02 * 0.1).add_(x.mT if tall else x, alpha=-0.02 * ratio)


class Plain(nn.Module):
    """A network without biases. `across`: whether weights are stored (in, out)."""

    def __init__(self, across: bool = False) -> None:
        super().__init__()
        forms = ((10, W), (W, W), (W, 6))
        self.across = across
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(form if across else form[::-1])) for form in forms])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = F.gelu(x @ (weight if self.across else weight.T))
        return x


class Rows(nn.Module):
    """Rows of other lengths, each seen alone. `jagged`: as one nested tensor, without padding. `counted`: whether means count padding."""

    def __init__(self, jagged: bool = False, counted: bool = False) -> None:
        super().__init__()
        self.jagged, self.counted, self.qkv, self.out, self.norm = jagged, counted, nn.Linear(W, 3 * W), nn.Linear(W, W), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(x.shape[1]) < lengths[:, None]
        if self.jagged:
            rows = torch.nested.as_nested_tensor([row[:length] for row, length in zip(x, lengths.tolist(), strict=True)], layout=torch.jagged)
            q, k, v = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in self.qkv(rows).chunk(3, -1))
            parts = zip(q.unbind(), k.unbind(), v.unbind(), strict=True)
            made = [F.scaled_dot_product_attention(*each).transpose(0, 1).flatten(1) for each in parts]
            made = self.out(torch.nested.as_nested_tensor(made, layout=torch.jagged))
            return torch.stack([self.norm(row + each).mean(0) for row, each in zip(rows.unbind(), made.unbind(), strict=True)])
        q, k, v = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None]).transpose(1, 2).flatten(2)
        x = self.norm(x + self.out(made)) * seen[..., None]
        return x.sum(1) / (x.shape[1] if self.counted else lengths[:, None])


class Bags(nn.Module):
    """Means of words. `kind`: torch's own, or counts of words times the table. `padded`: whether the padding is a word."""

    def __init__(self, kind: str = "bag", padded: bool = False) -> None:
        super().__init__()
        self.kind, self.padded, self.words, self.head = kind, padded, nn.EmbeddingBag(19, W, mode="mean", padding_idx=0), nn.Linear(W, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.kind == "bag":
            return self.head(self.words(ids))
        counts = F.one_hot(ids, 19).sum(1).to(self.words.weight.dtype)
        counts = counts if self.padded else counts * (torch.arange(19) > 0)
        return self.head(counts @ self.words.weight / counts.sum(-1, keepdim=True))


class Standard(nn.Module):
    """Filters whose weights are standardised, before a norm by groups. `kind`: written out, or torch's norm of a batch for both."""

    def __init__(self, kind: str = "written", uncentred: bool = False) -> None:
        super().__init__()
        self.kind, self.uncentred, self.inside, self.filter, self.norm = (
            kind, uncentred, nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3, bias=False), nn.GroupNorm(2, 8, eps=1e-5))  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, w = F.relu(self.inside(x)), self.filter.weight
        if self.kind == "written":
            mean = 0 if self.uncentred else w.mean((1, 2, 3), keepdim=True)
            w = (w - mean) * torch.rsqrt(w.var((1, 2, 3), keepdim=True, unbiased=False) + 1e-6)
            return self.norm(F.conv2d(x, w))
        w = F.batch_norm(w.flatten(1)[None], None, None, training=True, eps=1e-6).view_as(w)
        x = F.conv2d(x, w).float()
        made = F.batch_norm(x.reshape(1, len(x) * 2, -1), None, None, training=True, eps=1e-5).view_as(x)
        return torch.addcmul(self.norm.bias[:, None, None], made, self.norm.weight[:, None, None])


def rows(**ways: Any) -> Made:
    model, other, x, given = pair(Rows(), Rows(**ways), 3, LENGTH, W)
    return model, other, (x, torch.tensor([7, 4, 2])), given


def bags(**ways: Any) -> Made:
    model, other, _, given = pair(Bags(), Bags("counts", **ways), 1)
    ids = torch.randint(1, 19, (4, 6), generator=torch.Generator().manual_seed(1))
    ids[1, 4:], ids[3, 2:] = 0, 0
    return model, other, ids, given


def blocks(kind: Any, **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Blocks())
    return model, kind(model, **ways), numbers(2, LENGTH, W), MEAN


def stepped(**ways: Any) -> Made:
    """Two steps of Muon, torch's and as its author wrote it. Shapes of weights tell the two models apart."""
    torch.manual_seed(0)
    model, other = spread(Plain()), Plain(True)
    other.load_state_dict({name: value.T for name, value in model.state_dict().items()})

    def optimizer(held: list[nn.Parameter]) -> torch.optim.Optimizer:
        return Written(held, **ways) if held[0].shape == (10, W) else torch.optim.Muon(held, lr=0.02, weight_decay=0.1)

    return model, other, numbers(12, 10), {**MEAN, "optimizer": optimizer, "steps": 2}


def normed(folded: bool = True) -> Made:
    """Weights that are divided by their largest singular value, beside plain weights. `folded`: whether these were divided."""
    torch.manual_seed(0)
    plain = spread(nn.Sequential(nn.Conv2d(3, 6, 3), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(54, 8), nn.LeakyReLU(0.1), nn.Linear(8, 2)))
    model, forms = nn.Sequential(*(nn.Sequential() for _ in plain)), {0: plain[0], 3: plain[3], 5: plain[5]}
    for number, part in enumerate(plain):
        model[number] = part
    other = nn.Sequential(nn.Conv2d(3, 6, 3), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(54, 8), nn.LeakyReLU(0.1), nn.Linear(8, 2))
    other.load_state_dict(plain.state_dict())
    for number in forms:
        nn.utils.parametrizations.spectral_norm(model[number], n_power_iterations=30)
    model.eval()
    with torch.no_grad():
        for number in forms:
            if folded or number != 3:
                other[number].weight.copy_(model[number].weight)
    return model, other.eval(), numbers(4, 3, 5, 5), {}


healthy("layout", "weights of layers in one stack", lambda: blocks(Stacked))
broken("layout", "the second layer twice", lambda: blocks(Stacked, order=(0, 1, 1)), "", "norm")
healthy("layout", "all weights in one vector", lambda: blocks(Flat))
broken("layout", "a weight read by columns", lambda: blocks(Flat, turned="blocks.1.out.weight"), "")
healthy("layout", "branches in three shards", lambda: blocks(Sharded))
broken("layout", "a bias that two shards add", lambda: blocks(Sharded, twice=1), "shards.1.1", "shards.1.1.down", "theirs.2.one", "")
broken("layout", "a shard that is not added", lambda: blocks(Sharded, lost=2), "", "norm")
healthy("steps of Muon", "as its author wrote it", stepped)
broken("steps of Muon", "steps as long for tall weights", lambda: stepped(even=True), "", "weights")
broken("steps of Muon", "three turns for five", lambda: stepped(turns=3), "", "weights")
healthy("norms by singular values", "folded", normed)
broken("norms by singular values", "a weight that was not divided", lambda: normed(folded=False), "3")
healthy("rows", "as one nested tensor", lambda: rows(jagged=True))
broken("rows", "means that count padding", lambda: rows(counted=True), "")
healthy("bags", "counts of words", bags)
broken("bags", "padding as a word", lambda: bags(padded=True), "", "head", "words")
healthy("standard", "torch's norm of a batch", lambda: pair(Standard(), Standard("batch"), 3, 3, 8, 8))
broken("standard", "weights that keep their mean", lambda: pair(Standard(), Standard(uncentred=True), 3, 3, 8, 8), "", "norm")
