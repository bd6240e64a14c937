"""Losses, densities, mixtures, ordinal and ranking models, and Bayesian layers."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("acb-mse")
def balanced_pixels() -> Made:
    from acb_mse import ACBLoss

    loss, target = ACBLoss(1, 1), (torch.rand(4, 1, 16, 16) > 0.9).float()
    return Made(torch.nn.Conv2d(1, 1, 3, padding=1), (target + 0.1 * torch.randn_like(target),), lambda out: loss(out, target.to(out)))


@case("torch-bspline")
def spline_basis() -> Made:
    from torch_bspline import BSpline

    basis = BSpline(lims=(0.0, 1.0), n_segments=24, degree=3)

    def valued(net: torch.nn.Module, basis: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net(basis(x)) + 1e-2 * net(basis.derivative(x))

    return Made(Calls(valued, torch.nn.Linear(27, 2), basis), (torch.rand(64),), square)


@case("torch-efficient-distloss")
def ray_distortion() -> Made:
    from torch_efficient_distloss import eff_distloss_native

    middles = torch.linspace(2, 6, 65)[:-1] + 1 / 32

    def distorted(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        weights = net(x).softmax(-1)
        return eff_distloss_native(weights, middles.to(weights).expand_as(weights), 1 / 16)

    return Made(Calls(distorted, torch.nn.Linear(8, 64)), (torch.randn(16, 8),), lambda out: out)


@case("torch-kde")
def kernel_density() -> Made:
    from torchkde import KernelDensity

    def scored(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        density = KernelDensity(bandwidth=0.3, kernel="gaussian")
        density.fit(net(x))
        return -density.score_samples(x[:, :2]).mean()

    return Made(Calls(scored, torch.nn.Linear(4, 2)), (torch.randn(48, 4),), lambda out: out)


@case("stable-trunc-gaussian")
def truncated_normal() -> Made:
    from stable_trunc_gaussian import TruncatedGaussian

    seen = torch.rand(32)

    def likelihood(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        place, scale = net(x).unbind(-1)
        ends = torch.zeros_like(place), torch.ones_like(place)
        return -TruncatedGaussian(place, scale.exp(), *ends).log_prob(seen.to(place)).mean()

    return Made(Calls(likelihood, torch.nn.Linear(8, 2)), (torch.randn(32, 8),), lambda out: out)


@case("torchnmf")
def positive_factors() -> Made:
    from torchnmf.nmf import NMF
    from torchnmf.trainer import BetaMu

    net, data = NMF((24, 32), rank=4), torch.rand(24, 4) @ torch.rand(4, 32)
    assert BetaMu is not None
    return Made(Calls(lambda net: net(), net), (), lambda out: (out - data.to(out)).square().mean())


@case("spacecutter")
def cumulative_link() -> Made:
    from spacecutter.losses import CumulativeLinkLoss
    from spacecutter.models import OrdinalLogisticModel

    loss, truth = CumulativeLinkLoss(), torch.randint(0, 5, (32, 1))
    return Made(OrdinalLogisticModel(torch.nn.Linear(8, 1), 5), (torch.randn(32, 8),), lambda out: loss(out, truth))


@case("deepordinal")
def ordinal_thresholds() -> Made:
    from deepordinal.torch import OrdinalOutput

    truth = torch.randint(0, 5, (32,))
    return Made(OrdinalOutput(8, 5), (torch.randn(32, 8),), lambda out: torch.nn.functional.nll_loss(out.clamp_min(1e-6).log(), truth))


@case("label-relaxation")
def relaxed_labels() -> Made:
    from label_relaxation import LabelRelaxationLoss

    loss, truth = LabelRelaxationLoss(alpha=0.1), torch.randint(0, 6, (32,))
    return Made(torch.nn.Linear(8, 6), (4 * torch.randn(32, 8),), lambda out: loss(out, truth))


@case("sngp")
def random_features() -> Made:
    from sngp.sngp import SNGP

    backbone = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
    return Made(SNGP(3, backbone, 16, num_inducing=64), (torch.randn(16, 8),), lambda out: square(out[0] if isinstance(out, tuple) else out))


@case("posteriors")
def variational_tree() -> Made:
    from posteriors.vi.diag import nelbo

    net, truth = torch.nn.Linear(8, 1), torch.randn(32, 1)
    spread = torch.nn.ParameterDict({name.replace(".", "_"): torch.full_like(value, -3.0) for name, value in net.named_parameters()})

    def bound(net: torch.nn.Module, spread: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        means, spreads = dict(net.named_parameters()), dict(spread.items())

        def posterior(given: dict[str, torch.Tensor], batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen = torch.func.functional_call(net, given, (batch,))
            prior = sum(value.float().square().sum() for value in given.values())
            return -(seen.float() - truth).square().sum() - 0.5 * prior, seen

        return nelbo(means, spreads, x, posterior, temperature=1.0, n_samples=2)[0]

    return Made(Calls(bound, net, spread), (torch.randn(32, 8),), lambda out: out)


@case("torchgfn")
def flow_network() -> Made:
    from gfn.utils.modules import MLP

    net = MLP(input_dim=8, output_dim=4, hidden_dim=32, n_hidden_layers=2)
    return Made(net, (torch.randn(16, 8),), lambda out: -out.log_softmax(-1)[:, 0].mean())


@case("pythae")
def tempered_autoencoder() -> Made:
    from pythae.models import BetaTCVAE, BetaTCVAEConfig

    net = BetaTCVAE(BetaTCVAEConfig(input_dim=(1, 8, 8), latent_dim=4, dataset_size=64, beta=4.0))
    return Made(Calls(lambda net, x: net({"data": x}, dataset_size=64).loss, net), (torch.rand(16, 1, 8, 8),), lambda out: out)


@case("pythae")
def inverse_autoregressive() -> Made:
    from pythae.models import VAE_IAF, VAE_IAF_Config

    net = VAE_IAF(VAE_IAF_Config(input_dim=(1, 8, 8), latent_dim=4))
    return Made(Calls(lambda net, x: net({"data": x}).loss, net), (torch.rand(16, 1, 8, 8),), lambda out: out)


@case("ctgan")
def tabular_autoencoder() -> Made:
    from ctgan.synthesizers.tvae import Decoder, Encoder, _loss_function
    from rdt.transformers import ClusterBasedNormalizer  # noqa: F401

    def bound(encoder: torch.nn.Module, decoder: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        from ctgan.data_transformer import SpanInfo

        mean, spread, logarithm = encoder(x)
        made, sigmas = decoder(mean + torch.randn_like(spread) * spread)
        spans = [[SpanInfo(1, "tanh"), SpanInfo(3, "softmax")], [SpanInfo(4, "softmax")]]
        return sum(_loss_function(made, x, sigmas, mean, logarithm, spans, 2))

    hot = torch.nn.functional.one_hot
    row = torch.cat([torch.rand(32, 1) * 2 - 1, hot(torch.randint(0, 3, (32,)), 3), hot(torch.randint(0, 4, (32,)), 4)], 1)
    return Made(Calls(bound, Encoder(8, [32], 4), Decoder(4, [32], 8)), (row,), lambda out: out)


@case("pfrl")
def bounded_policy() -> Made:
    import pfrl

    size = torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2), pfrl.policies.GaussianHeadWithStateIndependentCovariance(2)

    def surprised(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        chosen = net(x)
        return -chosen.log_prob(chosen.mean.detach() + 0.3).mean() - 0.01 * chosen.entropy().mean()

    return Made(Calls(surprised, torch.nn.Sequential(*size)), (torch.randn(32, 6),), lambda out: out)


@case("pfrl")
def noisy_network() -> Made:
    import pfrl

    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    pfrl.nn.to_factorized_noisy(net)
    return Made(net, (torch.randn(16, 6),), square)
