"""Image quality, restoration, detection losses, splines and splatting."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


def _pair() -> tuple[torch.Tensor, torch.Tensor]:
    """A smooth image and a noisy copy, in [0, 1]."""
    steps = torch.linspace(0, 3, 48)
    clean = (torch.sin(steps)[:, None] * torch.cos(2 * steps) * 0.4 + 0.5).expand(2, 3, 48, 48).contiguous()
    return (clean + 0.05 * torch.randn_like(clean)).clamp(0, 1), clean


def _restored(loss: torch.nn.Module) -> Made:
    """A small network that restores an image, and a loss between images."""
    layer = torch.nn.Conv2d(3, 3, 3, padding=1)

    def judged(layer: torch.nn.Module, loss: torch.nn.Module, noisy: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
        return loss((noisy + 0.1 * layer(noisy)).clamp(0, 1).to(clean.dtype), clean)

    return Made(Calls(judged, layer, loss), _pair(), lambda out: out)


@case("piqa")
def piqa_vsi() -> Made:
    from piqa import VSI

    return _restored(VSI())


@case("torchsr")
def super_resolution() -> Made:
    from torchsr.models.ninasr import NinaSR

    return Made(NinaSR(2, 16, 2), (torch.rand(1, 3, 24, 24),), square)


@case("pytorch-toolbelt")
def bi_tempered() -> Made:
    from pytorch_toolbelt.losses import BiTemperedLogisticLoss

    loss = BiTemperedLogisticLoss(t1=0.8, t2=1.2)
    return Made(torch.nn.Linear(16, 5), (torch.randn(32, 16),), lambda out: loss(out, torch.arange(32) % 5))


@case("resize-right")
def resized() -> Made:
    from resize_right import interp_methods, resize

    def scaled(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return resize(layer(x), scale_factors=0.6, interp_method=interp_methods.lanczos3, pad_mode="reflect")

    return Made(Calls(scaled, torch.nn.Conv2d(3, 3, 3, padding=1)), (torch.rand(2, 3, 40, 40),), square)


@case("pytorchcv")
def covariance_pooling() -> Made:
    from pytorchcv.models.isqrtcovresnet import iSQRTCOVPool

    layers = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), iSQRTCOVPool()
    return Made(torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(136, 10)), (torch.randn(4, 3, 16, 16),), square)


@case("effdet")
def detection_losses() -> Made:
    from effdet.loss import new_focal_loss, smooth_l1_loss

    targets = (torch.arange(64 * 8) % 37 == 0).float().view(64, 8)

    def judged(classes: torch.nn.Module, boxes: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        found = new_focal_loss(classes(x), targets.to(x.dtype), 0.25, 1.5, normalizer=14.0)
        return found.sum() + smooth_l1_loss(boxes(x), x[:, :4], beta=0.1).sum()

    return Made(Calls(judged, torch.nn.Linear(16, 8), torch.nn.Linear(16, 4)), (torch.randn(64, 16),), lambda out: out)


@case("spandrel")
def swin_restoration() -> Made:
    from spandrel.architectures.SwinIR import SwinIR

    model = SwinIR(img_size=16, depths=[2], embed_dim=16, num_heads=[2], window_size=4, mlp_ratio=2, upscale=2, upsampler="pixelshuffle")
    return Made(model, (torch.rand(1, 3, 16, 16),), square)


@case("deepinv")
def total_variation() -> Made:
    import deepinv

    physics = deepinv.physics.Blur(filter=deepinv.physics.blur.gaussian_blur(sigma=1.0), padding="circular")
    prior, (noisy, _) = deepinv.optim.TVPrior(n_it_max=20), _pair()

    def cost(layer: torch.nn.Module, physics: torch.nn.Module, y: torch.Tensor) -> torch.Tensor:
        x = y + layer(y)
        return (physics.A(x) - y).square().mean() + 0.01 * prior.fn(x).mean()  # type: ignore[operator]

    return Made(Calls(cost, torch.nn.Conv2d(3, 3, 3, padding=1), physics), (noisy[:, :, :24, :24],), lambda out: out)


@case("torch-tps")
def thin_plate() -> Made:
    from torch_tps import ThinPlateSpline

    def warped(layer: torch.nn.Module, places: torch.Tensor) -> torch.Tensor:
        spline = ThinPlateSpline(alpha=0.1)
        spline.fit(places, places + 0.1 * layer(places).to(places.dtype))
        return spline.transform(places + 0.05)

    return Made(Calls(warped, torch.nn.Linear(2, 2)), (torch.rand(25, 2),), square)


@case("unfoldnd")
def unfolded() -> Made:
    import unfoldNd

    layer = torch.nn.Conv1d(4, 8, 3, padding=1)
    return Made(torch.nn.Sequential(layer, unfoldNd.UnfoldNd(3), torch.nn.Linear(30, 8)), (torch.randn(4, 4, 32),), square)


@case("gsplat")
def gaussian_projection() -> Made:
    from gsplat.cuda._torch_impl import _fully_fused_projection, _quat_scale_to_covar_preci

    view, camera = torch.eye(4)[None].clone(), torch.tensor([[[60.0, 0, 32], [0, 60, 32], [0, 0, 1]]])
    view[:, 2, 3] = 4.0

    def projected(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = layer(x)
        means, turned, scales = out[:, :3], torch.nn.functional.normalize(out[:, 3:7], dim=-1), out[:, 7:10].exp() * 0.1
        covariances, _ = _quat_scale_to_covar_preci(turned, scales, compute_preci=False)
        _, places, _, conics, _ = _fully_fused_projection(means, covariances, view.to(means), camera.to(means), 64, 64)
        return torch.cat([places / 64, conics], dim=-1)

    return Made(Calls(projected, torch.nn.Linear(8, 10)), (torch.randn(64, 8),), square)


@case("gsplat")
def spherical_colours() -> Made:
    from gsplat.cuda._torch_impl import _spherical_harmonics

    def coloured(layer: torch.nn.Module, x: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        return _spherical_harmonics(3, directions, layer(x).view(-1, 16, 3))

    return Made(Calls(coloured, torch.nn.Linear(8, 48)), (torch.randn(64, 8), torch.randn(64, 3)), square)
