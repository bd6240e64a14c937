"""Accelerated MRI: radial and Cartesian samples of eight coils, an unrolled network with conjugate gradients between its denoisers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 1
COILS, SIZE, UNROLLS, CG_STEPS, SPOKES, READS = 4, 24, 2, 4, 6, 32
ECHOES = (0.010, 0.0102)  # seconds


def half_type(x: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def fft2c(image: torch.Tensor) -> torch.Tensor:
    return torch.fft.fftshift(torch.fft.fft2(torch.fft.ifftshift(image, (-2, -1))), (-2, -1))


def ifft2c(kspace: torch.Tensor) -> torch.Tensor:
    return torch.fft.fftshift(torch.fft.ifft2(torch.fft.ifftshift(kspace, (-2, -1))), (-2, -1))


def sampled(image: torch.Tensor, maps: torch.Tensor, mask: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What the coils measure of an image, and nought elsewhere, as real and imaginary parts. image: [B, H, W], maps: [B, C, H, W]."""
    kspace = fft2c(image.unsqueeze(1) * maps) * mask
    return torch.view_as_real(kspace)


def combined(kspace: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    """The adjoint of `sampled`."""
    return (ifft2c(torch.view_as_complex(kspace)) * maps.conj()).sum(1)


def root_sum_of_squares(coils: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The magnitude of all coils together. coils: complex, [B, C, H, W]."""
    return coils.abs().square().sum(1).sqrt()


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.conj() * b).real.sum((-2, -1), keepdim=True)


def misfit(predicted: torch.Tensor, kspace: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What the image leaves unexplained of what was measured."""
    return predicted - kspace


def consistent(
    x: torch.Tensor, measured: torch.Tensor, maps: torch.Tensor, mask: torch.Tensor, weight: torch.Tensor, low: torch.dtype
) -> torch.Tensor:
    """Conjugate gradients: the image that is near x and explains what was measured."""

    def normal(image: torch.Tensor) -> torch.Tensor:
        return combined(sampled(image, maps, mask, low), maps) + weight * image

    target = measured + weight * x
    r = target - normal(x)
    p, rr = r, dot(r, r)
    for _ in range(CG_STEPS):
        ap = normal(p)
        alpha = rr / (dot(p, ap) + 1e-12)
        x, r = x + alpha * p, r - alpha * ap
        new = dot(r, r)
        p, rr = r + new / (rr + 1e-12) * p, new
    return x


def spoke_phases(angles: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The phase of each pixel of a row at each read of each spoke. angles: [S]. Returns [S, READS, SIZE]."""
    radius = 40.0 * torch.linspace(-math.pi, math.pi, READS)
    x = torch.arange(SIZE, dtype=torch.float32) - SIZE / 2
    return angles.float().cos()[:, None, None] * radius[:, None] * x


def along_spokes(image: torch.Tensor, angles: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Samples of the sum over columns along the spokes."""
    phase = spoke_phases(angles, low)
    row = image.abs().float().mean(-2)
    return torch.stack([(phase.cos() * row[:, None, None]).mean(-1), (phase.sin() * row[:, None, None]).mean(-1)], -1)


def decay_rates(first: torch.Tensor, second: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """1 / T2 of each pixel, of two echoes that are a fifth of a millisecond apart."""
    return (first.float().log() - second.float().log()) / (ECHOES[1] - ECHOES[0])


def ssim(a: torch.Tensor, b: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How alike two pictures are, window by window."""
    a, b = a.float().unsqueeze(1), b.float().unsqueeze(1)
    wa, wb = (F.unfold(each, 5).transpose(1, 2) for each in (a, b))
    ma, mb = wa.mean(-1), wb.mean(-1)
    va, vb = (wa - ma[..., None]).square().mean(-1), (wb - mb[..., None]).square().mean(-1)
    both = ((wa - ma[..., None]) * (wb - mb[..., None])).mean(-1)
    c1, c2 = 0.01**2, 0.03**2
    return (2 * ma * mb + c1) * (2 * both + c2) / ((ma.square() + mb.square() + c1) * (va + vb + c2))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax((-2, -1), keepdim=True)
        parts = torch.view_as_real(x / scale).permute(0, 3, 1, 2)
        out = self.body(parts.to(self.body[0].weight.dtype)).float() + parts
        return torch.view_as_complex(out.permute(0, 2, 3, 1).contiguous()) * scale


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.denoisers = nn.ModuleList(Denoiser() for _ in range(UNROLLS))
        self.log_weight = nn.Parameter(torch.tensor(-5.0))

    def forward(
        self, truth: torch.Tensor, map_parts: torch.Tensor, mask: torch.Tensor, angles: torch.Tensor, echoes: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        low = half_type(self.denoisers[0].body[0].weight)
        with torch.autocast("cpu", enabled=False):
            maps = torch.view_as_complex(map_parts.float())
            kspace = sampled(truth.float() + 0j, maps, mask, low).float()
            measured = combined(kspace, maps)
            reference = root_sum_of_squares(1e-6 * truth.float().unsqueeze(1) * maps, low).float() * 1e6
            weight = self.log_weight.float().exp()
        x = measured
        for denoiser in self.denoisers:
            x = denoiser(x)
            with torch.autocast("cpu", enabled=False):
                x = consistent(x, measured, maps, mask, weight, low)
        with torch.autocast("cpu", enabled=False):
            alike = ssim(x.abs() / 900, reference / 900, low)
            spokes = along_spokes(x, angles, low)
            rest = misfit(sampled(x, maps, mask, low).float(), kspace, low)
            rates = decay_rates(echoes[:, 0], echoes[:, 1], low)
            loss = 1 - alike.mean() + spokes.square().mean() / 1e4 + rest.abs().mean() / 1e3
        return {"image": torch.view_as_real(x), "loss": loss, "rates": rates, "reference": reference}


PRECISIONS = ("bf16-mixed", "16-mixed")  # echoes are inputs that hardly differ, which a conversion of everything would round


def make() -> nn.Module:
    torch.manual_seed(0)
    return Unrolled()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    grid = torch.linspace(-1, 1, SIZE)
    body = (grid[:, None].square() + grid.square() < 0.8).float()
    truth = 900 * body * (0.9 + 0.02 * torch.randn(2, SIZE, SIZE, generator=generator))
    centres = torch.randn(2, COILS, 2, generator=generator)
    away = (grid[:, None] - centres[..., :1, None]).square() + (grid - centres[..., 1:, None]).square()
    turn = 2 * torch.randn(2, COILS, 1, 1, generator=generator)
    maps = torch.polar((-away / 4).exp() / 2, turn + away)
    mask = (torch.rand(SIZE, generator=generator) < 0.5).float()
    mask[SIZE // 2 - 3 : SIZE // 2 + 3] = 1
    first = 200 + 50 * torch.rand(2, SIZE, generator=generator)
    rate = 10 + 30 * torch.rand(2, SIZE, generator=generator)
    return {
        "truth": truth,
        "map_parts": torch.view_as_real(maps),
        "mask": mask,
        "angles": torch.rand(SPOKES, generator=generator) * math.pi,
        "echoes": torch.stack([first, first * (-rate * (ECHOES[1] - ECHOES[0])).exp()], 1),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
