"""Diffusion, flows, autoencoders and quantisers."""

from __future__ import annotations

from typing import Any

import torch
from fieldcase import Calls, Made, case, square


@case("vector-quantize-pytorch")
def vector_quantize() -> Made:
    from vector_quantize_pytorch import VectorQuantize

    return Made(
        VectorQuantize(dim=16, codebook_size=32, decay=0.8, commitment_weight=1.0),
        (torch.randn(2, 64, 16),),
        lambda out: square(out[0]) + out[2].sum(),
    )


@case("vector-quantize-pytorch")
def vector_quantize_residual() -> Made:
    from vector_quantize_pytorch import ResidualVQ

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), ResidualVQ(dim=16, num_quantizers=4, codebook_size=32))
    return Made(model, (torch.randn(2, 64, 16),), lambda out: square(out[0]) + out[2].sum())


@case("vector-quantize-pytorch")
def vector_quantize_rotation() -> Made:
    from vector_quantize_pytorch import ResidualVQ

    quantiser = ResidualVQ(dim=16, num_quantizers=4, codebook_size=32, rotation_trick=True, stochastic_sample_codes=True)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), quantiser)
    return Made(model, (torch.randn(2, 64, 16),), lambda out: square(out[0]) + out[2].sum())


@case("vector-quantize-pytorch")
def vector_quantize_fsq() -> Made:
    from vector_quantize_pytorch import FSQ

    model = torch.nn.Sequential(torch.nn.Linear(16, 4), FSQ(levels=[8, 5, 5, 5]))
    return Made(model, (torch.randn(2, 64, 16),), lambda out: square(out[0]))


@case("vector-quantize-pytorch")
def vector_quantize_lfq() -> Made:
    from vector_quantize_pytorch import LFQ

    model = torch.nn.Sequential(torch.nn.Linear(16, 8), LFQ(codebook_size=256, dim=8, entropy_loss_weight=0.1, diversity_gamma=1.0))
    return Made(model, (torch.randn(2, 64, 16),), lambda out: square(out[0]) + out[2])


@case("denoising-diffusion-pytorch")
def denoising_diffusion() -> Made:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    model = GaussianDiffusion(Unet(dim=16, dim_mults=(1, 2), flash_attn=False), image_size=16, timesteps=1000)
    return Made(model, (torch.rand(2, 3, 16, 16),), lambda loss: loss)


@case("denoising-diffusion-pytorch")
def denoising_diffusion_elucidated() -> Made:
    from denoising_diffusion_pytorch import ElucidatedDiffusion, Unet

    model = ElucidatedDiffusion(Unet(dim=16, dim_mults=(1, 2), flash_attn=False, learned_sinusoidal_cond=True), image_size=16, channels=3)
    return Made(model, (torch.rand(2, 3, 16, 16),), lambda loss: loss)


@case("rectified-flow-pytorch")
def rectified_flow() -> Made:
    from rectified_flow_pytorch import RectifiedFlow, Unet

    return Made(RectifiedFlow(Unet(dim=16, dim_mults=(1, 2))), (torch.rand(2, 3, 16, 16),), lambda loss: loss)


@case("diffusers")
def diffusers_unet() -> Made:
    from diffusers import DDPMScheduler, UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    unet = UNet2DModel(sample_size=16, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, attention_head_dim=8, **blocks)
    scheduler = DDPMScheduler(num_train_timesteps=1000)

    def step(model: Any, clean: torch.Tensor, noise: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return (model(scheduler.add_noise(clean, noise, at), at).sample - noise).float().square().mean()

    inputs = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16), torch.tensor([731, 12])
    return Made(Calls(step, unet), inputs, lambda loss: loss)


@case("diffusers")
def diffusers_vae() -> Made:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4,
        norm_num_groups=8, sample_size=16,
    )  # fmt: skip

    def step(vae: Any, image: torch.Tensor) -> torch.Tensor:
        posterior = vae.encode(image).latent_dist
        return (vae.decode(posterior.mode()).sample - image).float().square().mean() + 1e-4 * posterior.kl().mean()

    return Made(Calls(step, model), (torch.randn(2, 3, 16, 16),), lambda loss: loss)


@case("diffusers")
def diffusers_dit() -> Made:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=8, patch_size=2, norm_num_groups=8
    )
    inputs = torch.randn(2, 4, 8, 8), torch.tensor([900, 3]), torch.tensor([1, 7])

    def step(dit: Any, latent: torch.Tensor, at: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return dit(latent, timestep=at, class_labels=label).sample

    return Made(Calls(step, model), inputs, square)


@case("nflows")
def nflows() -> Made:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
    from nflows.transforms.base import CompositeTransform
    from nflows.transforms.permutations import ReversePermutation

    layers = [
        layer for _ in range(3) for layer in (ReversePermutation(features=4), MaskedAffineAutoregressiveTransform(features=4, hidden_features=16))
    ]
    return Made(_likelihood(Flow(CompositeTransform(layers), StandardNormal(shape=[4]))), (torch.randn(32, 4),), lambda out: -out.mean())


@case("nflows")
def nflows_spline() -> Made:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedPiecewiseRationalQuadraticAutoregressiveTransform

    layer = MaskedPiecewiseRationalQuadraticAutoregressiveTransform(features=4, hidden_features=16, num_bins=8, tails="linear", tail_bound=3.0)
    return Made(_likelihood(Flow(layer, StandardNormal(shape=[4]))), (torch.randn(32, 4),), lambda out: -out.mean())


def _likelihood(flow: torch.nn.Module) -> torch.nn.Module:
    return Calls(lambda model, x: model.log_prob(x), flow)


@case("normflows")
def normflows() -> Made:
    import normflows

    layers: list[Any] = []
    for _ in range(3):
        layers += [normflows.flows.AffineCouplingBlock(normflows.nets.MLP([2, 16, 16, 4], init_zeros=False)), normflows.flows.Permute(4, mode="swap")]
    flow = normflows.NormalizingFlow(normflows.distributions.base.DiagGaussian(4), layers)
    return Made(_likelihood(flow), (torch.randn(32, 4),), lambda out: -out.mean())


@case("zuko")
def zuko_spline() -> Made:
    import zuko

    flow = zuko.flows.NSF(features=3, context=2, transforms=2, hidden_features=(16, 16))
    return Made(Calls(lambda model, x, c: model(c).log_prob(x), flow), (torch.randn(32, 3), torch.randn(32, 2)), lambda out: -out.mean())


@case("zuko")
def zuko_masked() -> Made:
    import zuko

    flow = zuko.flows.MAF(features=3, context=2, transforms=2, hidden_features=(16, 16))
    return Made(Calls(lambda model, x, c: model(c).log_prob(x), flow), (torch.randn(32, 3), torch.randn(32, 2)), lambda out: -out.mean())


@case("byol-pytorch")
def byol() -> Made:
    from byol_pytorch import BYOL

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(32, 16)
    )
    return Made(
        BYOL(net, image_size=16, hidden_layer=-1, projection_size=16, projection_hidden_size=32), (torch.rand(4, 3, 16, 16),), lambda loss: loss
    )


def _coded(model: torch.nn.Module) -> Made:
    """An image codec with the loss of its package."""
    from compressai.losses import RateDistortionLoss

    rate = RateDistortionLoss(lmbda=0.01)
    return Made(Calls(lambda codec, x: rate(codec(x), x)["loss"], model), (torch.rand(1, 3, 64, 64),), lambda loss: loss)


@case("compressai")
def compressai_hyperprior() -> Made:
    from compressai.models import ScaleHyperprior

    return _coded(ScaleHyperprior(16, 24))


@case("compressai")
def compressai_mean_scale() -> Made:
    from compressai.models import MeanScaleHyperprior

    return _coded(MeanScaleHyperprior(16, 24))


@case("torchcfm")
def flow_matching() -> Made:
    from torchcfm.conditional_flow_matching import ExactOptimalTransportConditionalFlowMatcher
    from torchcfm.models.models import MLP

    matcher = ExactOptimalTransportConditionalFlowMatcher(sigma=0.1)

    def matched(net: torch.nn.Module, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        times, between, speed = matcher.sample_location_and_conditional_flow(start, end)
        return (net(torch.cat([between, times[:, None]], dim=-1)) - speed).square().mean()

    return Made(Calls(matched, MLP(dim=2, time_varying=True, w=32)), (torch.randn(64, 2), torch.randn(64, 2) + 2), lambda loss: loss)


@case("torchcfm")
def flow_matching_unet() -> Made:
    from torchcfm.models.unet import UNetModel

    speed = torch.randn(2, 1, 32, 32)
    model = UNetModel(dim=(1, 32, 32), num_channels=32, num_res_blocks=1)
    return Made(model, (torch.rand(2), torch.randn(2, 1, 32, 32)), lambda out: (out - speed).square().mean())


@case("freia")
def invertible_blocks() -> Made:
    from FrEIA.framework import SequenceINN
    from FrEIA.modules import AllInOneBlock

    def subnet(into: int, out: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(into, 32), torch.nn.ReLU(), torch.nn.Linear(32, out))

    network = SequenceINN(4)
    for _ in range(4):
        network.append(AllInOneBlock, subnet_constructor=subnet, permute_soft=True)
    return Made(network, (torch.randn(32, 4),), lambda out: (0.5 * out[0].square().sum(1) - out[1]).mean() / 4)


@case("flow-matching")
def straight_paths() -> Made:
    from flow_matching.path import CondOTProbPath

    path, net = CondOTProbPath(), torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.SiLU(), torch.nn.Linear(64, 2))

    def velocity(field: torch.nn.Module, start: torch.Tensor, end: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        sample = path.sample(t=time, x_0=start, x_1=end)
        return field(torch.cat([sample.x_t, sample.t[:, None]], 1)) - sample.dx_t

    return Made(Calls(velocity, net), (torch.randn(64, 2), torch.randn(64, 2) * 0.3 + 1, torch.rand(64)), square)
