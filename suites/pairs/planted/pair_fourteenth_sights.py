"""A fourteenth batch, third part: sight as transformers has it, beside hand-written models.

Faults as such ports have them: places resized by another rule, a response that is normed over places, branches that are not scaled.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_tenth import Only
from torch import nn

W, HEADS, SIZE = 24, 3, 8


def pixels(side: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(7))


def renamed(state: dict[str, torch.Tensor], *pairs: tuple[str, str]) -> dict[str, torch.Tensor]:
    found = {}
    for name, value in state.items():
        for old, new in pairs:
            name = name.replace(old, new)
        found[name] = value
    return found


def joined(state: dict[str, torch.Tensor], *parts: str, into: str) -> dict[str, torch.Tensor]:
    """The same, where tensors of several names become one."""
    for name in [name for name in state if f".{parts[0]}." in name]:
        state[name.replace(f".{parts[0]}.", f".{into}.")] = torch.cat([state.pop(name.replace(f".{parts[0]}.", f".{each}.")) for each in parts])
    return state


class Looking(nn.Module):
    """A block of a vision transformer as timm has it."""

    def __init__(self, scaled: bool = True, act: str = "none", by_heads: bool = False, scale: float = SIZE**-0.5, eps: float = 1e-6,
        flash: bool = True,
                 swapped: bool = False, inner: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.scaled, self.act, self.by_heads, self.scale, self.flash, self.swapped, self.inner = scaled, act, by_heads, scale, flash, swapped, inner
        self.norm1, self.norm2 = nn.LayerNorm(W, eps), nn.LayerNorm(W, 1e-6)
        self.qkv, self.proj, self.fc1, self.fc2 = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.ls1, self.ls2 = nn.Parameter(torch.ones(W)), nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.qkv(self.norm1(x))
        if self.by_heads:
            q, k, v = made.unflatten(-1, (HEADS, 3, SIZE)).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = made.unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        if self.flash:
            made = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            made = ((q * self.scale) @ k.mT).float().softmax(-1).to(v.dtype) @ v
        one, two = (self.ls2, self.ls1) if self.swapped else (self.ls1, self.ls2)
        made = self.proj(made.transpose(1, 2).flatten(2))
        x = x + made * one
        made = self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate=self.act))
        if self.inner:
            return (x + made) * two
        return x + (made * two if self.scaled else made)


class Sight(nn.Module):
    """`resize`: how places are resized. `last`: whether the class token comes last. `product`: patches by a linear layer."""

    def __init__(self, side: int, resize: str = "bicubic", corners: bool = False, last: bool = False, product: bool = False, turned: bool = False,
                 whole: bool = False, mean: bool = False, bad: Any = None, flash: bool = True) -> None:  # fmt: skip
        super().__init__()
        self.side, self.resize, self.corners, self.last, self.product, self.turned, self.whole, self.mean = (
            side // 4, resize, corners, last, product, turned, whole, mean)  # fmt: skip
        self.patch = nn.Linear(48, W) if product else nn.Conv2d(3, W, 4, 4)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, W)), nn.Parameter(torch.zeros(1, 17, W))
        self.blocks, self.norm = nn.ModuleList([Looking(flash=flash), Looking(flash=flash, **(bad or {}))]), nn.LayerNorm(W, 1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.product:
            x = self.patch(x.unflatten(2, (-1, 4)).unflatten(4, (-1, 4)).permute(0, 2, 4, 1, 3, 5).flatten(3)).flatten(1, 2)
        else:
            x = self.patch(x).flatten(2).mT
        places = self.places[:, 1:]
        if self.side != 4 or self.whole:
            grid = places.unflatten(1, (4, 4)).permute(0, 3, 1, 2).float()
            grid = F.interpolate(grid, size=(self.side, self.side), mode=self.resize, align_corners=self.corners)
            places = (grid.mT if self.turned else grid).flatten(2).mT.to(x.dtype)
        x = x + places
        token = (self.token + self.places[:, :1]).expand(len(x), -1, -1)
        x = torch.cat([x, token] if self.last else [token, x], 1)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return x.mean(1) if self.mean else x[:, -1 if self.last else 0]


def sighted(side: int = 24, channels_last: bool = False, exported: bool = False, **ways: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    model = spread(transformers.Dinov2Model(transformers.Dinov2Config(
        hidden_size=W, num_hidden_layers=2, num_attention_heads=HEADS, mlp_ratio=2, image_size=16, patch_size=4))).eval()  # fmt: skip
    other: nn.Module = Sight(side, **ways).eval()
    state = renamed(
        dict(model.state_dict()), ("embeddings.patch_embeddings.projection", "patch"), ("embeddings.cls_token", "token"),
        ("embeddings.position_embeddings", "places"), ("encoder.layer", "blocks"), ("layernorm", "norm"), ("attention.attention.", ""),
        ("attention.", ""),
        ("output.dense", "proj"), ("o_proj", "proj"), ("mlp.", ""), ("layer_scale1.lambda1", "ls1"), ("layer_scale2.lambda1", "ls2"),
    )  # fmt: skip
    state = {name: value for name, value in state.items() if "mask_token" not in name}
    first = next(name.split(".")[2] for name in state if name.startswith("blocks.0.q"))
    state = joined(state, first, first.replace("q", "k").replace("kuery", "key"), first.replace("q", "v").replace("vuery", "value"), into="qkv")
    if ways.get("product"):
        state["patch.weight"] = state["patch.weight"].flatten(1)
    other.load_state_dict(state)
    x = pixels(side)
    if exported:
        return Only(model, "pooler_output"), torch.export.export(other, (x,)), x, dict(MEAN)
    return Only(model, "pooler_output"), other.to(memory_format=torch.channels_last) if channels_last else other, x, dict(MEAN)


class Responding(nn.Module):
    """A block of ConvNeXt with responses normed. `first`: channels first."""

    def __init__(self, width: int, first: bool = False, axis: int = 0, eps: float = 1e-6, plus: bool = True, spread: bool = False,
        padding: str = "zeros",
                 act: str = "none", normed: int = 0) -> None:  # fmt: skip
        super().__init__()
        self.first, self.axis, self.eps, self.plus, self.spread, self.act, self.normed = first, axis, eps, plus, spread, act, normed
        self.dw, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width, padding_mode=padding), nn.LayerNorm(width, 1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gain, self.shift = nn.Parameter(torch.zeros(4 * width)), nn.Parameter(torch.zeros(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dw(x)
        y = F.gelu(self.up(self.norm(y.permute(0, 2, 3, 1))), approximate=self.act)
        if self.first:
            y = y.permute(0, 3, 1, 2)
            sizes = y.float().flatten(2).square().sum(-1).sqrt()
            shares = (sizes / (sizes.mean(1, keepdim=True) + self.eps)).to(y.dtype)[..., None, None]
            y = (y * (self.gain[:, None, None] * shares + 1) + self.shift[:, None, None]).permute(0, 2, 3, 1)
        else:
            sizes = y.float().norm(dim=(1, 2) if self.axis == 0 else -1, keepdim=True)
            even = sizes.amax(-1, keepdim=True) if self.spread else sizes.mean((1, 2) if self.axis else -1, keepdim=True)
            made = self.gain * (y * (sizes / (even + self.eps)).to(y.dtype)) + self.shift
            y = made + y if self.plus else made
        return x + self.down(y).permute(0, 3, 1, 2)


class Convolved(nn.Module):
    def __init__(self, bad: Any = None, first: bool = False, small: int = 0, pooled: str = "mean", saved: bool = True) -> None:
        super().__init__()
        self.pooled, self.stem, self.begin = pooled, nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8, 1e-6)
        self.small, self.between = nn.Conv2d(8, 12, 2, 2), nn.LayerNorm(8, 1e-6)
        self.blocks = nn.ModuleList([Responding(8, first), Responding(12, first, **(bad or {}))])
        self.norm, self.saved, self.order = nn.LayerNorm(12, 1e-12), saved, small

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def normed(norm: Any, x: torch.Tensor) -> torch.Tensor:
            return norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

        x = normed(self.begin, self.stem(x))
        x = self.blocks[0](x)
        x = self.blocks[1](self.small(x if self.order else normed(self.between, x)))
        pooled = x.mean((-2, -1)) if self.pooled == "mean" else x.amax((-2, -1)) if self.pooled == "max" else self.norm(x.permute(0, 2, 3,
            1)).mean((1, 2))
        return pooled if self.pooled == "late" else self.norm(pooled)


def convolved(channels_last: bool = False, compiled: bool = False, **ways: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    model = spread(transformers.ConvNextV2Model(transformers.ConvNextV2Config(
        hidden_sizes=[8, 12], depths=[1, 1], num_stages=2, patch_size=2, image_size=16))).eval()  # fmt: skip
    other: nn.Module = Convolved(**ways).eval()
    state = renamed(
        dict(model.state_dict()), ("embeddings.patch_embeddings", "stem"), ("embeddings.layernorm",
            "begin"), ("encoder.stages.1.downsampling_layer.0", "between"),
        ("encoder.stages.1.downsampling_layer.1", "small"), ("encoder.stages.0.layers.0", "blocks.0"), ("encoder.stages.1.layers.0", "blocks.1"),
        ("layernorm", "norm"), ("dwconv", "dw"), ("pwconv1", "up"), ("pwconv2", "down"), ("grn.weight", "gain"), ("grn.bias", "shift"),
    )  # fmt: skip
    other.load_state_dict({name: value.flatten() if "gain" in name or "shift" in name else value for name, value in state.items()})
    other = other.to(memory_format=torch.channels_last) if channels_last else other
    return Only(model, "pooler_output"), torch.compile(other) if compiled else other, pixels(16), dict(MEAN)


for way, given in {"resized": {}, "as large": {"side": 16}, "as large, resized all the same": {"side": 16, "whole": True},
    "patches by a product": {"product": True},
                   "by formulas": {"flash": False}, "channels last": {"channels_last": True}, "exported": {"exported": True, "side": 16},
                   "class token last": {"last": True}}.items():  # fmt: skip
    healthy("dino", way, lambda given=given: sighted(**given))  # type: ignore[misc]
for fault, modules, bad in (
    ("resized in straight lines", ("",), {"resize": "bilinear"}), ("corners on corners", ("",), {"corners": True}),
    ("rows for columns", ("",), {"turned": True}),
    ("a mean for the class token", ("",), {"mean": True}), ("no scale of a branch", ("blocks.1",), {"bad": {"scaled": False}}),
    ("two scales swapped", ("blocks.1",), {"bad": {"swapped": True}}), ("the sum scaled", ("blocks.1",), {"bad": {"inner": True}}),
    ("weights by heads", ("blocks.1",), {"bad": {"by_heads": True}}), ("another scale of scores", ("blocks.1",), {"bad": {"scale": W**-0.5}}),
    ("gelu by tanh", ("blocks.1",), {"bad": {"act": "tanh"}}), ("an eps of 1e-2", ("blocks.1.norm1",), {"bad": {"eps": 1e-2}}),
):  # fmt: skip
    broken("dino", fault, lambda bad=bad: sighted(**bad), *modules)  # type: ignore[misc]
for way, given in {"channels last": {}, "channels first": {"first": True}, "another order in memory": {"channels_last": True},
    "compiled": {"compiled": True}}.items():
    healthy("convnext", way, lambda given=given: convolved(**given))  # type: ignore[misc]
for fault, modules, bad in (
    ("responses of channels", ("blocks.1",), {"bad": {"axis": 1}}), ("not added", ("blocks.1",), {"bad": {"plus": False}}),
    ("by the largest", ("blocks.1",), {"bad": {"spread": True}}),
    ("an eps of 1e-1", ("blocks.1",), {"bad": {"eps": 1e-1}}), ("gelu by tanh", ("blocks.1",), {"bad": {"act": "tanh"}}),
    ("mirrored at the border", ("blocks.1.dw",), {"bad": {"padding": "reflect"}}), ("the largest for the mean", ("",), {"pooled": "max"}),
    ("normed before the mean", ("", "norm"), {"pooled": "late"}), ("no norm between stages", ("",), {"small": 1}),
):  # fmt: skip
    broken("convnext", fault, lambda bad=bad: convolved(**bad), *modules)  # type: ignore[misc]
