"""Networks of images: a vision transformer, a residual network with batch norm, a U-net with group norm, an autoencoder."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn

W, H = 32, 4


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.cls = nn.Conv2d(3, W, 4, 4), nn.Parameter(torch.zeros(1, 1, W))
        self.place, self.norm1, self.norm2 = nn.Parameter(torch.zeros(1, 5, W)), nn.LayerNorm(W, 1e-6), nn.LayerNorm(W, 1e-6)
        self.qkv, self.proj, self.fc1, self.fc2 = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.gamma, self.norm, self.head = nn.Parameter(torch.ones(W)), nn.LayerNorm(W, 1e-6), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.place
        q, k, v = self.qkv(self.norm1(x)).reshape(len(x), -1, 3, H, W // H).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.gamma * self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return self.head(self.norm(x)[:, 0])


class Patches(nn.Module):
    """The convolution as a product."""

    def __init__(self, source: nn.Conv2d, **ways: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.ways = nn.Parameter(source.weight.detach().flatten(1)), nn.Parameter(source.bias.detach().clone()), ways  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.unfold(2, 4, 4).unfold(3, 4, 4)  # batch, channels, rows, columns, 4, 4
        order = (0, 2, 3, 4, 5, 1) if self.ways.get("channels_last") else (0, 3, 2, 1, 4, 5) if self.ways.get("columns") else (0, 2, 3, 1, 4, 5)
        return parts.permute(order).flatten(3).flatten(1, 2) @ self.weight.t() + self.bias


class OtherViT(nn.Module):
    def __init__(self, source: ViT, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.patches = Patches(source.patch, **ways)
        for name in ("norm1", "norm2", "qkv", "proj", "fc1", "fc2", "norm", "head"):
            setattr(self, name, getattr(source, name))
        for name in ("cls", "place", "gamma"):
            self.register_parameter(name, getattr(source, name))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        x = self.patches(x)
        first = self.cls.expand(len(x), 1, W)  # type: ignore[operator]
        x = torch.cat([x, first] if ways.get("cls_last") else [first, x], 1)
        x = x + (self.place.flip(1) if ways.get("flipped") else self.place)  # type: ignore[operator]
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, H, -1)).unbind(2)  # type: ignore[operator]
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * (W // H) ** -0.5).softmax(-1)
        mixed = self.proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))  # type: ignore[operator]
        x = x + (mixed if ways.get("unscaled") else mixed * self.gamma)
        x = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))  # type: ignore[operator]
        if ways.get("mean"):
            return self.head(self.norm(x).mean(1))  # type: ignore[operator, no-any-return]
        return self.head(self.norm(x[:, 0]))  # type: ignore[operator, no-any-return]


def vit(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(ViT())
    assert isinstance(model, ViT)
    return model, OtherViT(model, **ways), torch.randn(2, 3, 8, 8), MEAN


class Residual(nn.Module):
    def __init__(self, wide: int = 8, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.conv1 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide, eps=ways.get("eps", 1e-5), momentum=ways.get("momentum", 0.1))
        self.conv2, self.bn2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ways.get("relu_first"):
            y = self.bn1(F.relu(self.conv1(x)))
        else:
            y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y) + x if self.ways.get("relu_inside") else F.relu(y + x)


class ResNet(nn.Module):
    def __init__(self, bad: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.stem, self.blocks = nn.Conv2d(3, 8, 3, 1, 1), nn.ModuleList(Residual(**((bad or {}) if n else {})) for n in range(2))
        self.fc = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        if ways.get("normalise"):
            x = x / 255
        x = self.stem(x.contiguous(memory_format=torch.channels_last) if ways.get("last") else x)
        x = F.avg_pool2d(x, 3, 2, 1, count_include_pad=False) if ways.get("counted") else F.avg_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        x = x.amax((2, 3)) if ways.get("peak") else F.adaptive_avg_pool2d(x, 1).flatten(1) if ways.get("pool") else x.mean((2, 3))
        return self.fc(x)


class Folded(nn.Module):
    """In eval: batch norms folded into the convolutions before them. `eps` is what is added before the root."""

    def __init__(self, source: ResNet, eps: float = 1e-5) -> None:
        super().__init__()
        self.stem, self.fc, self.convs = source.stem, source.fc, nn.ModuleList()
        for block in source.blocks:
            for conv, norm in ((block.conv1, block.bn1), (block.conv2, block.bn2)):
                scale = (norm.weight / (norm.running_var + eps).sqrt()).detach()
                folded = nn.Conv2d(8, 8, 3, 1, 1)
                folded.weight.data.copy_(conv.weight.detach() * scale[:, None, None, None])
                folded.bias.data.copy_(norm.bias.detach() - norm.running_mean * scale)  # type: ignore[union-attr]
                self.convs.append(folded)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.avg_pool2d(self.stem(x), 3, 2, 1)
        for first, second in zip(self.convs[::2], self.convs[1::2], strict=True):
            x = F.relu(second(F.relu(first(x))) + x)
        return self.fc(x.mean((2, 3)))


def resnet(training: bool = True, **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(ResNet())
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand_like(buffer) + 0.5 if "var" in name else torch.randn_like(buffer) * 0.2)
    model.train(training)
    other = ResNet(**ways).train(training if not ways.get("evaluated") else False)
    other.load_state_dict(model.state_dict())
    if ways.get("stale"):
        other.blocks[1].bn2.running_var.fill_(1.0)
    return model, other, torch.randn(4, 3, 8, 8), MEAN


def folded(**ways: Any) -> Made:
    model, _, inputs, _ = resnet(training=False)
    return model, Folded(model, **ways).eval(), inputs, {}


healthy("vit", "patches as a product, attention by einsum", vit)
broken("vit", "channels last in the patches", lambda: vit(channels_last=True), "patches")
broken("vit", "rows and columns of patches swapped", lambda: vit(columns=True), "patches")
broken("vit", "class token last", lambda: vit(cls_last=True), "")
broken("vit", "positions the other way round", lambda: vit(flipped=True), "")
broken("vit", "layer scale left out", lambda: vit(unscaled=True), "")
broken("vit", "mean for the class token", lambda: vit(mean=True), "")
healthy("resnet", "channels last", lambda: resnet(last=True))
healthy("resnet", "another pooling op", lambda: resnet(pool=True))
healthy("resnet", "batch norms folded into convolutions", folded)
broken("resnet", "folded with another eps", lambda: folded(eps=1e-3), "convs.0")
broken("resnet", "relu inside of the sum", lambda: resnet(bad={"relu_inside": True}), "blocks.1")
broken("resnet", "relu before the norm", lambda: resnet(bad={"relu_first": True}), "blocks.1")
broken("resnet", "eps of one norm", lambda: resnet(bad={"eps": 1e-3}), "blocks.1.bn1", said="eps is 0.001")
broken("resnet", "momentum of one norm", lambda: resnet(bad={"momentum": 0.01}), "blocks.1.bn1", said="momentum")
broken("resnet", "norms in eval", lambda: resnet(evaluated=True), "blocks.0.bn1")
broken("resnet", "stale statistics", lambda: resnet(training=False, stale=True), "blocks.1.bn2", said="running_var")
broken("resnet", "the border counted otherwise", lambda: resnet(counted=True), "")
broken("resnet", "maximum for mean", lambda: resnet(peak=True), "")
broken("resnet", "inputs normalised twice", lambda: resnet(normalise=True), "", said="0.00392157 times")
