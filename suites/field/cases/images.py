"""Networks and losses for images."""

from __future__ import annotations

from typing import Any

import torch
from fieldcase import Calls, Made, case, square


@case("vit-pytorch")
def vit() -> Made:
    from vit_pytorch import ViT

    model = ViT(image_size=32, patch_size=8, num_classes=10, dim=32, depth=2, heads=2, mlp_dim=64, dim_head=16)
    return Made(model, (torch.randn(2, 3, 32, 32),), square)


@case("vit-pytorch")
def vit_simple_positions() -> Made:
    from vit_pytorch import SimpleViT

    model = SimpleViT(image_size=32, patch_size=8, num_classes=10, dim=32, depth=2, heads=2, mlp_dim=64, dim_head=16)
    return Made(model, (torch.randn(2, 3, 32, 32),), square)


@case("timm")
def timm_resnet() -> Made:
    import timm

    return Made(timm.create_model("resnet10t", num_classes=10), (torch.randn(2, 3, 64, 64),), square)


@case("timm")
def timm_convnext() -> Made:
    import timm

    return Made(timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(16, 32, 48, 64), num_classes=10), (torch.randn(2, 3, 64, 64),), square)


@case("timm")
def timm_swin() -> Made:
    import timm

    sizes = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4)}
    return Made(timm.models.SwinTransformer(num_classes=10, **sizes), (torch.randn(2, 3, 32, 32),), square)


@case("timm")
def timm_xcit() -> Made:
    import timm

    model = timm.models.Xcit(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=10, eta=1.0, tokens_norm=True)
    return Made(model, (torch.randn(2, 3, 32, 32),), square)


@case("segmentation-models-pytorch")
def segmentation_unet() -> Made:
    import segmentation_models_pytorch as smp

    model = smp.Unet("timm-mobilenetv3_small_minimal_100", encoder_weights=None, classes=3, decoder_channels=(32, 16, 16, 8, 8))
    dice = smp.losses.DiceLoss(mode="multiclass")
    target = torch.randint(0, 3, (2, 64, 64))
    return Made(model, (torch.randn(2, 3, 64, 64),), lambda out: dice(out, target))


@case("segmentation-models-pytorch")
def segmentation_losses() -> Made:
    import segmentation_models_pytorch as smp

    kinds = smp.losses.FocalLoss("multiclass"), smp.losses.TverskyLoss("multiclass")
    target = torch.randint(0, 3, (2, 64, 64))
    model = torch.nn.Conv2d(3, 3, 3, padding=1)
    return Made(model, (torch.randn(2, 3, 64, 64),), lambda out: sum(kind(out, target) for kind in kinds))  # type: ignore[arg-type, return-value]


@case("efficientnet-pytorch")
def efficientnet() -> Made:
    from efficientnet_pytorch import EfficientNet

    return Made(EfficientNet.from_name("efficientnet-b0"), (torch.randn(2, 3, 64, 64),), square)


@case("monai")
def monai_unet() -> Made:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    model = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1)
    loss, target = DiceCELoss(to_onehot_y=True, softmax=True), torch.randint(0, 2, (1, 1, 16, 16, 16))
    return Made(model, (torch.randn(1, 1, 16, 16, 16),), lambda out: loss(out, target))


@case("monai")
def monai_unetr() -> Made:
    from monai.networks.nets import UNETR

    model = UNETR(in_channels=1, out_channels=2, img_size=(32, 32, 32), feature_size=4, hidden_size=32, mlp_dim=64, num_heads=2)
    return Made(model, (torch.randn(1, 1, 32, 32, 32),), square)


@case("monai")
def monai_losses() -> Made:
    from monai.losses import GlobalMutualInformationLoss, LocalNormalizedCrossCorrelationLoss, SSIMLoss

    kinds = GlobalMutualInformationLoss(), LocalNormalizedCrossCorrelationLoss(spatial_dims=2), SSIMLoss(spatial_dims=2)

    def compared(layer: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        moved = layer(x).sigmoid()
        return sum(kind(moved, y) for kind in kinds)  # type: ignore[return-value]

    return Made(Calls(compared, torch.nn.Conv2d(1, 1, 3, padding=1)), (torch.rand(2, 1, 32, 32), torch.rand(2, 1, 32, 32)), lambda loss: loss)


@case("siren-pytorch")
def siren() -> Made:
    from siren_pytorch import SirenNet

    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij"), -1).reshape(-1, 2)
    return Made(SirenNet(dim_in=2, dim_hidden=32, dim_out=3, num_layers=3, w0_initial=30.0), (grid,), square)


@case("mlp-mixer-pytorch")
def mlp_mixer() -> Made:
    from mlp_mixer_pytorch import MLPMixer

    return Made(MLPMixer(image_size=32, channels=3, patch_size=8, dim=32, depth=2, num_classes=10), (torch.randn(2, 3, 32, 32),), square)


@case("pytorch-msssim")
def msssim() -> Made:
    from pytorch_msssim import SSIM

    return Made(_compared(SSIM(data_range=1, channel=3)), _images(), lambda out: 1 - out)


@case("pytorch-msssim")
def msssim_scales() -> Made:
    from pytorch_msssim import MS_SSIM

    return Made(_compared(MS_SSIM(data_range=1, channel=3)), _images(176), lambda out: 1 - out)


def _piq(name: str, kind: str, size: int = 48) -> None:
    """A case called `name`: a loss of piq."""

    def make() -> Made:
        import piq

        loss = getattr(piq, kind)(data_range=1.0)
        return Made(_compared(loss), _images(size), lambda loss: loss)

    make.__name__ = name
    case("piq")(make)


_piq("piq_ssim", "SSIMLoss")
_piq("piq_gmsd", "GMSDLoss")
_piq("piq_vif", "VIFLoss", size=64)
_piq("piq_haarpsi", "HaarPSILoss")
_piq("piq_fsim", "FSIMLoss")


def _images(size: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    """A smooth picture and the same with noise."""
    steps = torch.linspace(0, 3, size)
    clean = (torch.sin(steps)[:, None] * torch.cos(2 * steps)[None] * 0.4 + 0.5).expand(2, 3, size, size).clone()
    return (clean + 0.1 * torch.randn_like(clean)).clamp(0, 1), clean


def _compared(loss: Any) -> torch.nn.Module:
    """A restoring layer that begins as the identity, as residual networks do."""
    layer = torch.nn.Conv2d(3, 3, 3, padding=1)
    torch.nn.init.dirac_(layer.weight)
    torch.nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return Calls(lambda conv, x, y: loss(conv(x).clamp(0, 1), y.to(x.dtype)), layer)


@case("kornia")
def kornia_losses() -> Made:
    import kornia

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = kornia.losses.ssim_loss(x, y, 7) + kornia.losses.charbonnier_loss(x, y, reduction="mean")
        return total + kornia.losses.total_variation(x).mean() * 1e-3

    return Made(_compared(loss), _images(), lambda loss: loss)


@case("kornia")
def kornia_homography() -> Made:
    import kornia

    corners = torch.tensor([[[0.0, 0], [31, 0], [31, 31], [0, 31]]])

    def warped(layer: torch.nn.Module, image: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        moved = corners.to(image) + layer(seen).view(1, 4, 2)
        matrix = kornia.geometry.get_perspective_transform(corners.to(moved), moved)
        return kornia.geometry.warp_perspective(image, matrix.to(image.dtype), (32, 32))

    return Made(Calls(warped, torch.nn.Linear(4, 8)), (torch.rand(1, 3, 32, 32), torch.randn(1, 4)), square)


@case("kornia")
def kornia_color() -> Made:
    import kornia

    return Made(_compared(lambda x, y: (kornia.color.rgb_to_lab(x) - kornia.color.rgb_to_lab(y)).abs().mean()), _images(), lambda loss: loss)


@case("open-clip-torch")
def open_clip() -> Made:
    from open_clip.loss import ClipLoss
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(layers=2, width=32, head_width=16, patch_size=8, image_size=32)
    model = CLIP(16, vision, CLIPTextCfg(context_length=12, vocab_size=64, width=32, heads=2, layers=2))
    loss = ClipLoss()
    tokens = torch.randint(1, 60, (4, 12))
    tokens[:, -1] = 63
    return Made(model, (torch.randn(4, 3, 32, 32), tokens), lambda out: loss(out[0], out[1], out[2]))


@case("x-clip")
def x_clip() -> Made:
    from x_clip import CLIP

    model = CLIP(
        dim_text=32, dim_image=32, dim_latent=16, num_text_tokens=64, text_enc_depth=1, text_seq_len=12, text_heads=2, visual_enc_depth=1,
        visual_image_size=32, visual_patch_size=8, visual_heads=2, visual_patch_dropout=0.0, use_all_token_embeds=True,
    )  # fmt: skip
    step = Calls(lambda clip, text, image: clip(text, image, return_loss=True), model)
    return Made(step, (torch.randint(1, 64, (3, 12)), torch.randn(3, 3, 32, 32)), lambda loss: loss)


@case("lightly")
def lightly_losses() -> Made:
    from lightly.loss import BarlowTwinsLoss, NTXentLoss, VICRegLoss

    kinds = NTXentLoss(temperature=0.1), BarlowTwinsLoss(), VICRegLoss()

    def views(layer: torch.nn.Module, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return sum(kind(layer(one), layer(other)) for kind in kinds)  # type: ignore[return-value]

    seen = torch.randn(32, 16)
    return Made(Calls(views, torch.nn.Linear(16, 8)), (seen + 0.1 * torch.randn(32, 16), seen), lambda loss: loss)


@case("lpips")
def lpips_distance() -> Made:
    import lpips

    model = lpips.LPIPS(net="squeeze", pretrained=False, pnet_rand=True, verbose=False)
    return Made(model, (torch.rand(2, 3, 64, 64) * 2 - 1, torch.rand(2, 3, 64, 64) * 2 - 1), lambda out: out.mean())


@case("facenet-pytorch")
def inception_block() -> Made:
    from facenet_pytorch.models.inception_resnet_v1 import Block35

    ends = torch.nn.Conv2d(3, 256, 3), torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(256, 32))
    return Made(
        torch.nn.Sequential(ends[0], Block35(0.17), ends[1]), (torch.randn(4, 3, 17, 17),), lambda out: torch.nn.functional.normalize(out).std()
    )


@case("ultralytics")
def yolo() -> Made:
    from types import SimpleNamespace

    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel("yolov8n.yaml", nc=4, verbose=False)
    model.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)
    boxes = torch.tensor([[0.5, 0.5, 0.3, 0.4], [0.2, 0.3, 0.2, 0.2], [0.6, 0.4, 0.5, 0.5]])  # stays float32, as its trainer leaves it
    wanted = {"batch_idx": torch.tensor([0.0, 0, 1]), "cls": torch.tensor([[0.0], [1], [2]]), "bboxes": boxes}
    return Made(Calls(lambda net, x: net.loss(wanted | {"img": x})[0].sum(), model), (torch.rand(2, 3, 96, 96),), lambda loss: loss)
