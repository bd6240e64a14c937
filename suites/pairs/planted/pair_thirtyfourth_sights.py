"""The part of the thirty-fourth batch with pictures: MobileNetV2 of transformers, as TensorFlow pads, beside a port with channels last.

Filters are einsum over pieces of the picture, and norms are its own.
Issues: padding on one side with a step of two, another padding with an even size (https://github.com/microsoft/MMdnn/issues/153,
https://github.com/VainF/DeepLabV3Plus-Pytorch/issues/40), relu for relu6 (https://github.com/tonylins/pytorch-mobilenet-v2/pull/10,
https://github.com/shicai/MobileNet-Caffe/issues/51), slopes behind the last filter of a block, where there are none
(https://github.com/dmlc/gluon-cv/pull/773), an eps of 1e-3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, spread
from pair_fourteenth_scans import numbers
from pair_thirtieth import TOP, State, beside, family
from pair_thirtysecond import of_kind
from torch import nn


class Channels(nn.Module):
    """The statistics of a batch norm in inference, channels last."""

    def __init__(self, count: int, eps: float = 1e-3, wrong: str = "") -> None:
        super().__init__()
        self.eps, self.wrong, self.gamma, self.beta = eps, wrong, nn.Parameter(torch.ones(count)), nn.Parameter(torch.zeros(count))
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("variance", torch.ones(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        below = self.variance.sqrt() + self.eps if self.wrong == "behind" else (self.variance + self.eps).sqrt()
        return (x - self.mean) / below * self.gamma + self.beta


class Filter(nn.Module):
    """A filter with weights (rows, columns, in, out), or (rows, columns, channels) if each channel is apart, then norm and slope."""

    def __init__(self, wide: int, out: int, size: int, step: int, wrong: str = "", slope: bool = True, apart: bool = False) -> None:
        super().__init__()
        self.wrong, self.size, self.step, self.slope, self.apart = wrong, size, step, slope, apart
        self.taps = nn.Parameter(torch.zeros(size, size, out) if apart else torch.zeros(size, size, wide, out))
        self.bn = Channels(out, 1e-5 if wrong == "eps" else 1e-3, wrong)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = self.size
        if size > 1:
            whole = max(size - self.step, 0) if x.shape[1] % self.step == 0 else max(size - x.shape[1] % self.step, 0)
            first = whole - whole // 2 if self.wrong == "side" else whole // 2
            first, last = (1, 1) if self.wrong == "both" else (first, whole - first)
            x = F.pad(x, (0, 0, first, last, first, last), mode="constant", value=1.0 if self.wrong == "ones" else 0.0)
        pieces = x.unfold(1, size, self.step).unfold(2, size, self.step)
        x = torch.einsum("bhwcij,ijc->bhwc" if self.apart else "bhwcij,ijco->bhwo", pieces, self.taps)
        if self.wrong == "early":
            return self.bn(x.clamp(0, 6))
        x = self.bn(x)
        return x if not self.slope else F.relu(x) if self.wrong == "relu" else x.clamp(0.0, 6.0)


class Turned(nn.Module):
    def __init__(self, wide: int, out: int, step: int, wrong: str = "", deep: str = "") -> None:
        super().__init__()
        self.wrong, self.same = wrong, step == 1 and wide == out
        self.expand, self.deep = Filter(wide, 6 * wide, 1, 1), Filter(6 * wide, 6 * wide, 3, step, deep, apart=True)
        self.reduce = Filter(6 * wide, out, 1, 1, slope=wrong == "slope")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.reduce(self.deep(self.expand(x)))
        return x + made if self.same and self.wrong != "no sum" else made


class Mobile(nn.Module):
    def __init__(self, wrong: str = "", deep: str = "", top: str = "", at: int = 1) -> None:
        super().__init__()
        self.top, widths, steps = top, (8, 8, 8, 8, 16, 16), (2, 1, 2, 2, 1)
        self.first, self.stem = Filter(3, 8, 3, 2), nn.ModuleList([Filter(8, 8, 3, 1, apart=True), Filter(8, 8, 1, 1, slope=False)])
        self.blocks = nn.ModuleList(Turned(a, b, step, *((wrong, deep) if n == at else ()))
                                    for n, (a, b, step) in enumerate(zip(widths, widths[1:], steps, strict=False)))  # fmt: skip
        self.last, self.head = Filter(16, 24, 1, 1), nn.Linear(24, 5)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.first(pixels.permute(0, 3, 2, 1) if self.top == "axes" else pixels.permute(0, 2, 3, 1))
        for part in (*self.stem, *self.blocks, self.last):
            x = part(x)
        return self.head(x.amax((1, 2)) if self.top == "largest" else x.mean((1, 2)))


class Logits(nn.Module):
    """Five of the sixteen blocks, and the head."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        net.mobilenet_v2.layer = net.mobilenet_v2.layer[:5]
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).logits


def mobile(lost: str = "", **ways: Any) -> Made:
    import transformers.models.mobilenet_v2.modeling_mobilenet_v2 as library

    torch.manual_seed(0)
    net: Any = of_kind("MobileNetV2", "ForImageClassification", image_size=32, depth_multiplier=0.25, num_labels=5, classifier_dropout_prob=0.0)
    kind = library.MobileNetV2InvertedResidual
    for n, (wide, out, step) in enumerate(((8, 8, 2), (8, 8, 1), (8, 8, 2), (8, 16, 2), (16, 16, 1))):
        net.mobilenet_v2.layer[n] = kind(net.config, wide, out, step)
    net.mobilenet_v2.conv_1x1 = library.MobileNetV2ConvLayer(net.config, 16, 24, 1)
    net.classifier = nn.Linear(24, 5)
    model = spread(Logits(net), 0.4)
    picture = numbers(2, 3, 32, 32)
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    for each in norms:
        each.momentum = None
        nn.init.uniform_(each.weight, 0.5, 1.5)
    model.train()(picture)
    for each in norms:
        each.running_var.mul_(0.05)
        each.momentum = 0.003
    made = beside(model.eval(), Mobile(**ways), converted(dict(model.state_dict())), MEAN["loss"], picture)
    if lost == "taps":
        made[1].blocks[1].deep.taps.data = made[1].blocks[1].deep.taps.data.transpose(0, 1).contiguous()
    if lost == "statistics":
        made[1].blocks[1].deep.bn.mean.zero_()
    return made


def converted(before: State) -> State:
    names = {"conv_stem.first_conv": "first", "conv_stem.conv_3x3": "stem.0", "conv_stem.reduce_1x1": "stem.1", "conv_1x1": "last", "layer": "blocks",
             "expand_1x1": "expand", "conv_3x3": "deep", "reduce_1x1": "reduce", "convolution.weight": "taps", "normalization.weight": "bn.gamma",
             "normalization.bias": "bn.beta", "normalization.running_mean": "bn.mean", "normalization.running_var": "bn.variance"}  # fmt: skip
    state: State = {}
    for name, value in before.items():
        name = name.removeprefix("net.").removeprefix("mobilenet_v2.").replace("classifier", "head")
        for there, here in names.items():
            name = name.replace(there, here)
        if name.endswith("taps"):
            apart = value.shape[1] == 1 and value.shape[2] == 3
            value = value[:, 0].permute(1, 2, 0) if apart else value.permute(2, 3, 1, 0)
        if not name.endswith("num_batches_tracked"):
            state[name] = value
    return state


BLOCK, DEEP, STEP = ("blocks.1",), ("blocks.1.deep",), {"at": 2}
family("mobilenet with channels last", "by pieces", mobile, {
    "padded on the other side": ({"deep": "side", **STEP}, ("blocks.2.deep",), "pad|order|shift|element"),
    "padded on both sides": ({"deep": "both", **STEP}, ("blocks.2.deep",), "pad|shift|element"),
    "padded by ones": ({"deep": "ones"}, DEEP, "pad"), "relu for relu6": ({"deep": "relu"}, DEEP, "relu|clamp|hardtanh"),
    "the slope before the norm": ({"deep": "early"}, DEEP, ""), "the eps of torch": ({"deep": "eps"}, ("blocks.1.deep.bn",), "eps|add"),
    "the eps behind the root": ({"deep": "behind"}, ("blocks.1.deep.bn",), "sqrt|add|eps"), "a slope behind the last": ({"wrong": "slope"}, (
        "blocks.1.reduce",), "clamp|slope"), "a block without its sum": ({"wrong": "no sum"}, BLOCK, "add"),
    "rows and columns of taps": ({"lost": "taps"}, DEEP, "order|transposed|axes"), "a mean of zero": ({"lost": "statistics"}, (
        "blocks.1.deep.bn",), "mean"), "the largest for the mean": ({"top": "largest"}, TOP, "mean|amax|max"),
    "rows and columns of the picture": ({"top": "axes"}, TOP, "order|strides"),
})  # fmt: skip
