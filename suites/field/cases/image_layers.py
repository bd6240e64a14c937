"""Layers, losses and metrics of images, where `images` has networks."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("slot-attention")
def slots() -> Made:
    from slot_attention import SlotAttention

    return Made(SlotAttention(num_slots=4, dim=16, iters=3), (torch.randn(2, 32, 16),), square)


@case("glom-pytorch")
def glom() -> Made:
    from glom_pytorch import Glom

    return Made(Glom(dim=32, levels=3, image_size=32, patch_size=8), (torch.randn(2, 3, 32, 32),), square)


@case("halonet-pytorch")
def halo_attention() -> Made:
    from halonet_pytorch import HaloAttention

    return Made(HaloAttention(dim=32, block_size=4, halo_size=2, dim_head=8, heads=2), (torch.randn(1, 32, 8, 8),), square)


@case("uformer-pytorch")
def uformer() -> Made:
    from uformer_pytorch import Uformer

    model = Uformer(dim=16, stages=2, num_blocks=1, window_size=4, dim_head=8, heads=2, ff_mult=2)
    return Made(model, (torch.randn(1, 3, 32, 32),), square)


def _restored(loss: object) -> torch.nn.Module:
    return Calls(lambda layer, x, y: loss(layer(x).float(), y.float()), torch.nn.Conv2d(3, 3, 3, padding=1))  # type: ignore[operator]


@case("focal-frequency-loss")
def focal_frequency() -> Made:
    from focal_frequency_loss import FocalFrequencyLoss

    return Made(_restored(FocalFrequencyLoss(loss_weight=1.0, alpha=1.0)), (torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)), lambda loss: loss)


@case("ptwt")
def wavelet_shrinkage() -> Made:
    import ptwt
    import pywt

    def shrunk(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        wavelet = pywt.Wavelet("db2")
        coarse, *details = ptwt.wavedec2(layer(x).float(), wavelet, level=2, mode="reflect")
        small = [type(detail)(*(torch.nn.functional.softshrink(part, 0.05) for part in detail)) for detail in details]
        return ptwt.waverec2((coarse, *small), wavelet)

    return Made(Calls(shrunk, torch.nn.Conv2d(1, 2, 3, padding=1)), (torch.randn(2, 1, 16, 16),), square)


@case("antialiased-cnns")
def antialiased() -> Made:
    from antialiased_cnns import BlurPool

    def block(into: int, out: int) -> list[torch.nn.Module]:
        return [torch.nn.Conv2d(into, out, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2, 1), BlurPool(out, stride=2)]

    return Made(torch.nn.Sequential(*block(3, 16), *block(16, 32)), (torch.randn(2, 3, 32, 32),), square)


@case("balanced-loss")
def balanced_focal() -> Made:
    from balanced_loss import Loss

    loss = Loss(loss_type="focal_loss", samples_per_class=[300, 50, 20, 5], beta=0.999, fl_gamma=2, class_balanced=True)
    return Made(
        Calls(lambda layer, x, y: loss(layer(x), y), torch.nn.Linear(16, 4)), (torch.randn(32, 16), torch.randint(0, 4, (32,))), lambda out: out
    )


@case("unified-focal-loss-pytorch")
def unified_focal() -> Made:
    from unified_focal_loss import AsymmetricUnifiedFocalLoss

    loss = AsymmetricUnifiedFocalLoss(weight=0.5, delta=0.6, gamma=0.5)
    masks = torch.randint(0, 3, (2, 16, 16))
    return Made(
        Calls(lambda layer, x, y: loss(layer(x).softmax(1), y), torch.nn.Conv2d(3, 3, 3, padding=1)),
        (torch.randn(2, 3, 16, 16), masks),
        lambda out: out,
    )


@case("pytorch-ignite")
def ignite_metrics() -> Made:
    from ignite.metrics import PSNR, SSIM

    def scored(layer: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        out = layer(x).sigmoid()
        scores = []
        for metric in (SSIM(data_range=1.0), PSNR(data_range=1.0)):
            metric.update((out.detach(), y.to(out.dtype)))
            scores.append(torch.as_tensor(metric.compute()))
        return square(out - y), *scores

    return Made(Calls(scored, torch.nn.Conv2d(3, 3, 3, padding=1)), (torch.rand(2, 3, 24, 24), torch.rand(2, 3, 24, 24)), lambda out: out[0])


@case("torcheval")
def torcheval_metrics() -> Made:
    from torcheval.metrics import functional as metrics

    def scored(layer: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = layer(x).squeeze(-1)
        seen, right = out.detach(), y.to(out.dtype)
        scores = metrics.r2_score(seen, right), metrics.mean_squared_error(seen, right), metrics.binary_auroc(seen.sigmoid(), (y > 0).to(out.dtype))
        return square(out - y), *scores

    return Made(Calls(scored, torch.nn.Linear(16, 1)), (torch.randn(64, 16), torch.randn(64)), lambda out: out[0])


@case("logavgexp-pytorch")
def softened_maximum() -> Made:
    from logavgexp_pytorch import LogAvgExp2D

    layers = torch.nn.Conv2d(3, 8, 3, padding=1), LogAvgExp2D((2, 2), stride=2, learned_temp=True)
    return Made(torch.nn.Sequential(*layers), (torch.randn(2, 3, 16, 16),), square)
