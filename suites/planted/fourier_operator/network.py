"""A Fourier neural operator in one dimension: complex weights multiply the lowest waves of a field; errors are judged in a Sobolev norm."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 1
PRECISIONS = ("bf16-mixed", "16-mixed")  # complex weights have no bfloat16


class SpectralConv1d(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        scale = 1 / (in_channels * out_channels) ** 0.5
        self.weight = nn.Parameter(scale * torch.randn(in_channels, out_channels, modes, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x_ft = torch.fft.rfft(x.float(), norm="ortho")
            out_ft = torch.zeros(x.shape[0], self.weight.shape[1], x_ft.shape[-1], dtype=x_ft.dtype, device=x.device)
            out_ft[..., : self.modes] = torch.einsum("bix,iox->box", x_ft[..., : self.modes], self.weight.to(x_ft.dtype))
            return torch.fft.irfft(out_ft, n=x.shape[-1], norm="ortho")


class FNO1d(nn.Module):
    def __init__(self, width: int = 24, modes: int = 12, depth: int = 3) -> None:
        super().__init__()
        self.lift, self.project = nn.Conv1d(2, width, 1), nn.Sequential(nn.Conv1d(width, 48, 1), nn.GELU(), nn.Conv1d(48, 1, 1))
        self.spectral = nn.ModuleList(SpectralConv1d(width, width, modes) for _ in range(depth))
        self.pointwise = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.InstanceNorm1d(width) for _ in range(depth))

    def forward(self, field: Tensor, after: Tensor) -> dict[str, Any]:
        grid = torch.linspace(0, 1, field.shape[-1], device=field.device).expand(len(field), 1, -1)
        x = self.lift(torch.cat([field[:, None], grid], 1))
        for spectral, pointwise, norm in zip(self.spectral, self.pointwise, self.norms, strict=True):
            x = F.gelu(norm(spectral(x)) + pointwise(x))
        out = self.project(x)[:, 0].float() + field
        return {"loss": sobolev(out, after), "out": out}


def sobolev(out: Tensor, target: Tensor) -> Tensor:
    """Relative error in H1: differences of waves count more the faster they are."""
    n = out.shape[-1]
    k = torch.fft.rfftfreq(n, d=1 / n, device=out.device)
    weight = torch.sqrt(1 + (0.1 * k) ** 2)
    apart = torch.fft.rfft(out - target, norm="ortho") * weight
    size = torch.fft.rfft(target, norm="ortho") * weight
    return (apart.abs().square().sum(-1).sqrt() / size.abs().square().sum(-1).sqrt()).mean()


def make() -> nn.Module:
    torch.manual_seed(0)
    return FNO1d()


def batch() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(6)
    n = 64
    waves = torch.randn(4, 8, generator=g) / torch.arange(1, 9)
    x = torch.arange(n) / n
    table = torch.sin(2 * torch.pi * torch.arange(1, 9)[:, None] * x)
    fade = torch.exp(-0.02 * torch.arange(1, 9) ** 2)
    return {"field": waves @ table, "after": (waves * fade) @ table}


def loss(output: dict[str, Any]) -> Tensor:
    return output["loss"]


optimizer = None
