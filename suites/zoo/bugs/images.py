"""Centres of clusters, rows, windows, tokens and splats in half: sums and powers that do not fit, and numbers that are too small."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def centroids(dtype: torch.dtype) -> torch.Tensor:
    """Two rounds of k-means over vectors in half, for an index of them."""
    data = (60 + 8 * normal(6000, 8) + 40 * torch.arange(4.0).repeat(1500)[:, None]).to(HALF)
    centres = data[:4].float()
    for _ in range(2):
        nearest = torch.cdist(data.float(), centres.nan_to_num(0.0, 0.0, 0.0)).argmin(1)
        sums = torch.zeros(4, 8, dtype=dtype)
        for chunk in range(0, 6000, 1000):
            sums.index_add_(0, nearest[chunk : chunk + 1000], data[chunk : chunk + 1000].to(dtype))  # culprit: centroid-sums
        counts = torch.bincount(nearest, minlength=4).clamp_min(1)
        centres = (sums / counts[:, None]).float()
    return centres


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Layer norm as a kernel does it: warps of 32 add up, and then the block does."""
    size, values = x.shape[-1], x.to(dtype)
    mean = values.view(len(x), -1, 32).sum(-1).sum(-1, keepdim=True) / size
    centred = values - mean
    squares = (centred * centred).view(len(x), -1, 32).sum(-1)
    variance = squares.sum(-1, keepdim=True) / size  # culprit: warp-sums
    return (centred * torch.rsqrt(variance + 1e-5)).to(x.dtype) * weight + bias


def normalised(dtype: torch.dtype) -> torch.Tensor:
    x, weight = (18 * normal(6, 512)).to(HALF), (1 + 0.1 * normal(512, seed=1)).to(HALF)
    return layer_norm(x, weight, torch.zeros(512, dtype=HALF), dtype).float()


class PartialConv2d(nn.Conv2d):
    """A convolution that looks at pixels which are there alone, and says which there are now."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__(channels, channels, 3, padding=1, bias=False)
        self.eps = eps
        with torch.no_grad():
            self.weight.copy_(normal(channels, channels, 3, 3) / 6)
        self.register_buffer("updater", torch.ones(1, 1, 3, 3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            update = functional.conv2d(mask, self.updater, padding=1)
            ratio = 9 / (update + self.eps)  # culprit: window-of-holes
            update = torch.clamp(update, 0, 1)
            ratio = torch.mul(ratio, update)
        return super().forward(x * mask) * ratio, update


def inpainted(eps: float) -> torch.Tensor:
    mask = torch.ones(1, 1, 12, 12)
    mask[..., 3:9, 4:10] = 0
    x, mask, layers = normal(1, 4, 12, 12).half(), mask.half(), nn.ModuleList(PartialConv2d(4, eps) for _ in range(2)).half()
    with torch.no_grad():
        for layer in layers:
            x, mask = layer(x, mask)
    return x.float()


class FocusedLinearAttention(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.factor = wide, 3
        self.scale = nn.Parameter(torch.zeros(1, 1, 16))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        given = q.dtype
        if self.wide:
            q, k, v = q.float(), k.float(), v.float()
        q, k = torch.relu(q) + 1e-6, torch.relu(k) + 1e-6
        scale = functional.softplus(self.scale.to(q.dtype))
        q, k = q / scale, k / scale
        q_norm, k_norm = q.norm(dim=-1, keepdim=True), k.norm(dim=-1, keepdim=True)
        q, k = q**self.factor, k**self.factor  # culprit: focused-powers
        q = (q / q.norm(dim=-1, keepdim=True)) * q_norm
        k = (k / k.norm(dim=-1, keepdim=True)) * k_norm
        z = 1 / (q @ k.mean(dim=-2, keepdim=True).transpose(-2, -1) + 1e-6)
        kv = (k.transpose(-2, -1) * k.shape[1] ** -0.5) @ (v * k.shape[1] ** -0.5)
        return (q @ kv * z).to(given)


def focused(wide: bool) -> torch.Tensor:
    q, k, v = (14 * normal(2, 64, 16)).half(), (14 * normal(2, 64, 16, seed=1)).half(), normal(2, 64, 16, seed=2).half()
    with torch.no_grad():
        return FocusedLinearAttention(wide).half()(q, k, v).float()


def splats(dtype: torch.dtype) -> torch.Tensor:
    """How far splats of a small object reach on the screen, whose covariances the graphics card holds in half."""
    turn = functional.normalize(normal(40, 4), dim=1)
    w, x, y, z = turn.unbind(1)
    rotation = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z),
                            2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1).view(-1, 3, 3)  # fmt: skip
    size = 1e-4 * (0.4 + uniform(40, 3))
    spread = rotation * size[:, None]
    covariance = spread @ spread.transpose(1, 2)
    upper = covariance[:, [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]].to(dtype)  # culprit: small-splats
    texture = upper.float()
    held = texture[:, [0, 1, 2, 1, 3, 4, 2, 4, 5]].view(-1, 3, 3)
    depth, focal = 0.02, 900.0
    jacobian = torch.tensor([[focal / depth, 0, 0], [0, focal / depth, 0]])
    screen = jacobian @ held @ jacobian.T + 0.3 * torch.eye(2)
    half_trace = 0.5 * (screen[:, 0, 0] + screen[:, 1, 1])
    determinant = screen[:, 0, 0] * screen[:, 1, 1] - screen[:, 0, 1] ** 2
    return 3 * (half_trace + (half_trace**2 - determinant).clamp_min(0.1).sqrt()).sqrt()


BUGS = (
    Bug("centroid-sums", "lance-format/lance#8608", ("overflow",), "aten.index_add_.default", lambda: centroids(HALF), lambda: centroids(WIDE)),
    Bug("warp-sums", "xlite-dev/LeetCUDA#335", ("overflow",), "aten.sum.dim_IntList", lambda: normalised(HALF), lambda: normalised(WIDE)),
    Bug("window-of-holes", "jingyuanli001/RFR-Inpainting#8", ("vanished-constant", "overflow", "nan"), "aten.add.Tensor",
        lambda: inpainted(1e-8), lambda: inpainted(1e-3), module="PartialConv2d"),
    Bug("focused-powers", "LeapLabTHU/FLatten-Transformer#15", ("overflow",), "aten.pow.Tensor_Scalar", lambda: focused(False),
        lambda: focused(True), module="FocusedLinearAttention"),
    Bug("small-splats", "mkkellogg/GaussianSplats3D#173", ("underflow",), "aten._to_copy.default", lambda: splats(HALF), lambda: splats(WIDE)),
)  # fmt: skip
