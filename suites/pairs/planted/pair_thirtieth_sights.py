"""The thirtieth batch, fourth part: Swin beside its first code, EfficientNet beside a port with padding by formula.

Issues: the mask of shifted windows (ResShift 81), the table of distances (torchvision 5491), merged patches and their norm (mmdetection
5748); padding as in TensorFlow (zsef123/EfficientNets-PyTorch 2, narumiruna/efficientnet-pytorch 21, lukemelas/EfficientNet-PyTorch 262), a
path that is left out and no residual (qubvel/efficientnet 3, lukemelas 7), a norm's eps and momentum (lukemelas 3 and 229, MegDiffusion 5,
aimet 1957).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made
from pair_fourteenth_scans import numbers
from pair_thirtieth import TOP, State, beside, family, heads, of_library
from torch import nn

PICTURE = numbers(2, 3, 16, 16)
SIDE = 4


def in_windows(x: torch.Tensor) -> torch.Tensor:
    """(rows, lines, columns, channels) as (windows, places, channels)."""
    return x.unflatten(1, (-1, SIDE)).unflatten(3, (-1, SIDE)).transpose(2, 3).flatten(3, 4).flatten(0, 2)


def out_of_windows(x: torch.Tensor, side: int) -> torch.Tensor:
    count = side // SIDE
    return x.unflatten(1, (SIDE, SIDE)).unflatten(0, (-1, count, count)).transpose(2, 3).flatten(3, 4).flatten(1, 2)


class Within(nn.Module):
    def __init__(self, wide: int, count: int, wrong: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.count, self.wrong, self.kernel = count, wrong, kernel
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * SIDE - 1) ** 2, count))
        self.qkv, self.proj = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        lines, columns = torch.arange(SIDE).repeat_interleave(SIDE), torch.arange(SIDE).repeat(SIDE)
        if wrong == "columns":
            lines, columns = columns, lines
        down, along = lines[:, None] - lines, columns[:, None] - columns
        if wrong == "turned":
            down, along = -down, -along
        self.register_buffer("index", (down + SIDE - 1) * (2 * SIDE - 1) + along + SIDE - 1, persistent=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        size = x.shape[-1] // self.count
        q, k, v = (heads(each, size) for each in self.qkv(x).chunk(3, -1))
        bias = self.relative_position_bias_table[self.index].permute(2, 0, 1)[None]
        if mask is not None:
            bias = bias + mask.repeat(len(x) // len(mask), 1, 1)[:, None]
        if self.kernel:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(x), -1, -1, -1).to(q.dtype))
        else:
            y = (q @ k.mT * (1 if self.wrong == "scale" else size**-0.5) + bias).softmax(-1).to(v.dtype) @ v
        return self.proj(y.transpose(1, 2).flatten(2))


class Shifts(nn.Module):
    def __init__(self, wide: int, count: int, side: int, shift: int, wrong: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.side, self.shift, self.wrong = side, shift, wrong
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(wide), Within(wide, count, wrong, kernel), nn.LayerNorm(wide)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(wide, 2 * wide), "fc2": nn.Linear(2 * wide, wide)})
        regions = torch.zeros(1, side, side, 1)
        step = 0 if wrong == "regions" else shift
        cuts = (slice(0, -SIDE), slice(-SIDE, -step or None), slice(-step, None))
        for number, (lines, columns) in enumerate((a, b) for a in cuts for b in cuts):
            regions[:, lines, columns] = number
        flat = in_windows(regions).squeeze(-1)
        self.register_buffer("mask", (flat[:, None] != flat[:, :, None]).float() * -100, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong, shift = self.wrong, self.shift
        y = self.norm1(x).unflatten(1, (self.side, self.side))
        y = y.roll((shift, shift) if wrong == "other way" else (-shift, -shift), (1, 2))
        y = out_of_windows(self.attn(in_windows(y), self.mask.to(y.dtype) if shift and wrong != "no mask" else None), self.side)
        y = y if wrong == "stays" else y.roll((-shift, -shift) if wrong == "other way" else (shift, shift), (1, 2))
        x = x + y.flatten(1, 2)
        fc1, fc2 = self.mlp["fc1"], self.mlp["fc2"]
        return x + fc2(F.gelu(fc1(self.norm2(x)), approximate="tanh" if wrong == "tanh" else "none"))


class Merges(nn.Module):
    def __init__(self, wide: int, wrong: str = "", strided: bool = False) -> None:
        super().__init__()
        self.wrong, self.strided, self.reduction, self.norm = wrong, strided, nn.Linear(4 * wide, 2 * wide, bias=False), nn.LayerNorm(4 * wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = int(x.shape[1] ** 0.5)
        y = x.unflatten(1, (side, side))
        if self.strided:
            y = y.unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
        else:
            order = ((0, 0), (0, 1), (1, 0), (1, 1)) if self.wrong == "order" else ((0, 0), (1, 0), (0, 1), (1, 1))
            y = torch.cat([y[:, line::2, column::2] for line, column in order], -1)
        return self.reduction(y.flatten(1, 2) if self.wrong == "no norm" else self.norm(y.flatten(1, 2)))


class Windows(nn.Module):
    def __init__(self, wrong: str = "", merges: str = "", top: str = "", kernel: bool = False, strided: bool = False) -> None:
        super().__init__()
        self.top, self.patches, self.first = top, nn.Conv2d(3, 16, 2, 2), nn.LayerNorm(16)
        self.one = nn.ModuleList(Shifts(16, 2, 8, 2 * (n % 2), wrong if n == 1 else "", kernel) for n in range(4))
        self.merge = Merges(16, merges, strided)
        self.two = nn.ModuleList(Shifts(32, 4, 4, 0, "", kernel) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        x = self.patches(x)
        x = self.first((x.mT if self.top == "columns" else x).flatten(2).mT)
        for block in self.one:
            x = block(x)
        x = self.merge(x)
        for block in self.two:
            x = block(x)
        return (self.head(self.norm(x.mean(1)) if self.top == "mean" else self.norm(x).mean(1)),)


def picture_loss(out: Any) -> torch.Tensor:
    return (out.logits if hasattr(out, "logits") else out[0]).float().square().mean()


def swin(**ways: Any) -> Made:
    model = of_library("SwinForImageClassification", image_size=16, patch_size=2, embed_dim=16, depths=[4, 2], num_heads=[2, 4], window_size=SIDE,
                       mlp_ratio=2.0, drop_path_rate=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5)  # fmt: skip
    state: State = {}
    for name, value in model.state_dict().items():
        for before, now in {
            "swin.embeddings.patch_embeddings.projection": "patches", "swin.embeddings.norm": "first", "swin.layernorm": "norm", "classifier": "head",
            "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.": "attn.", "o_proj": "proj",
            "relative_position_bias.relative": "relative",
        }.items():  # fmt: skip
            name = name.replace(before, now)
        for before, now in ((".0.blocks", "one"), (".1.blocks", "two"), (".0.downsample", "merge")):
            if before in name:
                name = now + name.partition(before)[2]
        state[name] = value
    for name in [name for name in state if "q_proj" in name]:
        state[name.replace("q_proj", "qkv")] = torch.cat([state.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"])
    return beside(model, Windows(**ways), state, picture_loss, PICTURE)


ONE, WITHIN, MERGE = ("one.1",), ("one.1.attn",), ("merge",)
family("swin by its first code", "by products", swin, {
    "no mask": ({"wrong": "no mask"}, ONE, ""), "regions without the shift": ({"wrong": "regions"}, ONE, ""),
    "shifted the other way": ({"wrong": "other way"}, ONE, ""), "a shift that stays": ({"wrong": "stays"}, ONE, ""),
    "lines and columns of the table": ({"wrong": "columns"}, WITHIN, ""), "distances turned round": ({"wrong": "turned"}, WITHIN, ""),
    "no scale": ({"wrong": "scale"}, WITHIN, ""), "gelu by tanh": ({"wrong": "tanh"}, ONE, ""),
    "merged in the other order": ({"merges": "order"}, MERGE, ""), "merged without a norm": ({"merges": "no norm"}, MERGE, ""),
    "patches by columns": ({"top": "columns"}, TOP, ""), "a mean before the norm": ({"top": "mean"}, TOP, ""),
}, by_the_kernel={"kernel": True}, merged_by_axes={"strided": True})  # fmt: skip


class Padded(nn.Conv2d):
    """A filter whose padding follows from the size of the picture, as TensorFlow's does."""

    wrong = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, step = self.kernel_size[0], self.stride[0]
        sums = [max((-(-side // step) - 1) * step + size - side, 0) for side in x.shape[-2:]]
        sides = [(more - more // 2, more // 2) if self.wrong == "front" else (more // 2, more - more // 2) for more in sums]
        if self.wrong == "both":
            sides = [(size // 2, size // 2)] * 2
        return F.conv2d(F.pad(x, [*sides[1], *sides[0]]), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Narrow(nn.Module):
    """Wider, filtered channel by channel, weighed by channel, narrower."""

    def __init__(self, wide: int, out: int, step: int, size: int, more: int, again: bool, wrong: str = "", late: bool = False) -> None:
        super().__init__()
        inner = wide * more
        self.again, self.wrong, self.late, self.more = again, wrong, late, more
        if more > 1:
            self.expand, self.bn0 = nn.Conv2d(wide, inner, 1, bias=False), nn.BatchNorm2d(inner, 1e-3)
        self.depthwise = Padded(inner, inner, size, step, groups=inner, bias=False)
        self.depthwise.wrong = wrong
        self.bn1 = nn.BatchNorm2d(inner, 1e-1 if wrong == "eps" else 1e-3)
        squeezed = max(1, wide // 4)
        self.se_reduce, self.se_expand = nn.Conv2d(inner, squeezed, 1), nn.Conv2d(squeezed, inner, 1)
        self.project, self.bn2 = nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out, 1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong, y = self.wrong, x
        if self.more > 1:
            y = self.bn0(self.expand(y))
            y = F.hardswish(y) if wrong == "hard" else F.silu(y)
        y = F.silu(self.bn1(self.depthwise(y)))
        mean = y.amax((2, 3), keepdim=True) if wrong == "largest" else y.mean((2, 3), keepdim=True)
        reduced = self.se_reduce(mean)
        share = self.se_expand(F.relu(reduced) if wrong == "relu" else F.silu(reduced))
        y = self.bn2(self.project(y * (F.hardsigmoid(share) if wrong == "straight" else share.sigmoid())))
        y = F.silu(y) if wrong == "bent" else y
        return x + y if self.again and wrong != "alone" else y


class Efficient(nn.Module):
    def __init__(self, wrong: str = "", stem: str = "", at: int = 2) -> None:
        super().__init__()
        self.stem, self.bn = Padded(3, 8, 3, 2, bias=False), nn.BatchNorm2d(8, 1e-3)
        self.stem.wrong = stem
        plan = ((8, 8, 1, 3, 1, False), (8, 8, 2, 3, 6, False), (8, 8, 1, 3, 6, True), (8, 16, 2, 5, 6, False), (16, 16, 1, 5, 6, True))
        self.blocks = nn.ModuleList(Narrow(*each, wrong=wrong if n == at else "") for n, each in enumerate(plan))
        self.top, self.last = nn.Conv2d(16, 320, 1, bias=False), nn.BatchNorm2d(320, 1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.bn(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return F.silu(self.last(self.top(x))).mean((2, 3))


class Pooled(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).pooler_output.flatten(1)


def efficient(lost: str = "", last: bool = False, traced: bool = False, trains: bool = False, **ways: Any) -> Made:
    model = of_library("EfficientNetModel", num_channels=3, image_size=16, width_coefficient=0.25, depth_coefficient=1.0, kernel_sizes=[3, 3, 5],
                       in_channels=[32, 16, 24], out_channels=[16, 24, 64], strides=[1, 2, 2], num_block_repeats=[1, 2, 2], expand_ratios=[1, 6, 6],
                       hidden_dim=320, dropout_rate=0.0, drop_connect_rate=0.0, depthwise_padding=[])  # fmt: skip
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    for each in norms:
        each.momentum = None
    model.train()(PICTURE)
    for each in norms:
        each.momentum = 0.01
    model.eval()
    names = {"embeddings.convolution": "stem", "embeddings.batchnorm": "bn", "encoder.blocks": "blocks", "encoder.top_conv": "top",
        "encoder.top_bn": "last",
             "expansion.expand_conv": "expand", "expansion.expand_bn": "bn0", "depthwise_conv.depthwise_conv": "depthwise",
             "depthwise_conv.depthwise_norm": "bn1", "squeeze_excite.reduce": "se_reduce", "squeeze_excite.expand": "se_expand",
             "projection.project_conv": "project", "projection.project_bn": "bn2"}  # fmt: skip
    state: State = {}
    for name, value in model.state_dict().items():
        for before, now in names.items():
            name = name.replace(before, now)
        state[name] = value
    if lost == "turned":
        state["blocks.2.depthwise.weight"] = state["blocks.2.depthwise.weight"].mT.contiguous()
    if lost == "variance":
        state["blocks.2.bn2.running_var"] = torch.ones(8)
    if lost == "statistics":
        for kind in ("mean", "var"):
            state[f"blocks.2.bn0.running_{kind}"] = state[f"blocks.2.bn1.running_{kind}"]
    made = beside(model, Efficient(**ways), state, MEAN["loss"], PICTURE)
    other = made[1]
    if trains:
        other.blocks[2].bn1.train()
    if last:
        other = other.to(memory_format=torch.channels_last)
    if traced:
        other = torch.jit.trace(other, PICTURE)
    return Pooled(made[0]), other, *made[2:]


BLOCK, LATE = ("blocks.2",), ("blocks.3.depthwise",)
family("efficientnet by formula", "padded", efficient, {
    "padding on both sides": ({"stem": "both"}, ("stem",), ""), "padding in front": ({"wrong": "front", "at": 3}, LATE, ""),
    "padding of half a filter": ({"wrong": "both", "at": 1}, ("blocks.1.depthwise",), ""), "another eps": ({"wrong": "eps"}, ("blocks.2.bn1",), ""),
    "no residual": ({"wrong": "alone"}, BLOCK, ""), "relu in the squeeze": ({"wrong": "relu"}, BLOCK, ""),
    "the largest for the mean": ({"wrong": "largest"}, BLOCK, ""), "a straight sigmoid": ({"wrong": "straight"}, BLOCK, ""),
    "a straight slope": ({"wrong": "hard"}, BLOCK, ""), "a slope behind the last": ({"wrong": "bent"}, BLOCK, ""),
    "rows and columns of taps": ({"lost": "turned"}, ("blocks.2.depthwise",), ""), "a variance of one": ({"lost": "variance"}, ("blocks.2.bn2",), ""),
    "statistics of another norm": ({"lost": "statistics"}, ("blocks.2.bn0",), ""), "a norm in training": ({"trains": True}, ("blocks.2.bn1",), ""),
}, channels_last={"last": True}, traced={"traced": True}, channels_last_traced={"traced": True, "last": True})  # fmt: skip
