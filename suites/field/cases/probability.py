"""Bayesian layers, acquisition functions, losses for unknown classes, sorting, and survival."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case


def _network(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(inputs, 32), torch.nn.ReLU(), torch.nn.Linear(32, outputs))


@case("botorch")
def log_expected_improvement() -> Made:
    from botorch.acquisition.analytic import _log_ei_helper

    step = Calls(lambda net, x: _log_ei_helper(net(x).float() * 3), _network(4, 1))  # float32 is asked for: others are refused
    return Made(step, (torch.randn(64, 4),), lambda out: -out.mean())


@case("bayesian-torch")
def flipout() -> Made:
    from bayesian_torch.layers import LinearFlipout

    def fitted(one: torch.nn.Module, two: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden, first = one(x)
        out, second = two(hidden.relu())
        return out.float().square().mean() + (first + second) * 1e-3

    return Made(Calls(fitted, LinearFlipout(16, 32), LinearFlipout(32, 4)), (torch.randn(16, 16),), lambda loss: loss)


@case("blitz-bayesian-pytorch")
def bayes_by_backprop() -> Made:
    from blitz.modules import BayesianLinear
    from blitz.utils import variational_estimator

    @variational_estimator  # type: ignore[untyped-decorator]
    class Regressor(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(BayesianLinear(16, 32), torch.nn.ReLU(), BayesianLinear(32, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    def sampled(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return net.sample_elbo(inputs=x, labels=y, criterion=torch.nn.MSELoss(), sample_nbr=3, complexity_cost_weight=1 / 16)  # type: ignore[operator]

    return Made(Calls(sampled, Regressor()), (torch.randn(16, 16), torch.randn(16, 4)), lambda loss: loss)


@case("pytorch-ood")
def ood_energy() -> Made:
    from pytorch_ood.loss import EnergyRegularizedLoss

    loss, known = EnergyRegularizedLoss(), torch.randint(0, 5, (32,))
    known[20:] = -1
    return Made(_network(8, 5), (torch.randn(32, 8),), lambda out: loss(out, known))


@case("pytorch-ood")
def ood_class_anchors() -> Made:
    from pytorch_ood.loss import CACLoss

    known, loss = torch.randint(0, 5, (32,)), CACLoss(5, magnitude=10.0)
    step = Calls(lambda net, anchors, x: anchors(anchors.distance(net(x)), known), _network(8, 5), loss)
    return Made(step, (torch.randn(32, 8),), lambda loss: loss)


@case("diffsort")
def sorting_network() -> Made:
    from diffsort import DiffSortNet

    sorter, ordered = DiffSortNet("bitonic", 8, steepness=10), torch.eye(8).expand(4, 8, 8)

    def sorted_by(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return sorter(net(x)[..., 0])[1]

    def loss(found: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy(found.float().clamp(1e-6, 1 - 1e-6), ordered)

    return Made(Calls(sorted_by, _network(4, 1)), (torch.randn(4, 8, 4),), loss)


@case("pycox")
def cox_hazards() -> Made:
    from pycox.models.loss import CoxPHLoss

    loss, times, events = CoxPHLoss(), torch.rand(64) * 100, (torch.rand(64) > 0.3).float()
    return Made(_network(8, 1), (torch.randn(64, 8),), lambda out: loss(out, times, events))


@case("pycox")
def deep_hit() -> Made:
    from pycox.models.data import pair_rank_mat
    from pycox.models.loss import DeepHitSingleLoss

    loss, times, events = DeepHitSingleLoss(0.2, 0.1), torch.randint(0, 10, (64,)), (torch.rand(64) > 0.3).float()
    ranks = torch.from_numpy(pair_rank_mat(times.numpy(), events.numpy()))
    return Made(_network(8, 10), (torch.randn(64, 8),), lambda out: loss(out, times, events, ranks))


def _survival() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(64) > 0.5, torch.randint(1, 100, (64,)).float()


@case("torchsurv")
def torchsurv_cox() -> Made:
    from torchsurv.loss.cox import neg_partial_log_likelihood

    events, times = _survival()
    return Made(_network(16, 1), (torch.randn(64, 16),), lambda out: neg_partial_log_likelihood(out, events, times))


@case("torchsurv")
def torchsurv_weibull() -> Made:
    from torchsurv.loss.weibull import neg_log_likelihood_weibull

    events, times = _survival()
    return Made(_network(16, 2), (torch.randn(64, 16),), lambda out: neg_log_likelihood_weibull(out, events, times))


@case("power-spherical")
def spherical_latent() -> Made:
    from power_spherical import HypersphericalUniform, PowerSpherical

    def encoded(where: torch.nn.Module, spread: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        center = torch.nn.functional.normalize(where(x).float(), dim=-1)
        found = PowerSpherical(center, torch.nn.functional.softplus(spread(x).float()).squeeze(-1) + 1)
        uniform = HypersphericalUniform(5)
        return found.rsample(), torch.distributions.kl_divergence(found, uniform)

    parts = torch.nn.Linear(16, 5), torch.nn.Linear(16, 1)
    return Made(Calls(encoded, *parts), (torch.randn(16, 16),), lambda out: out[0].sum(-1).square().mean() + out[1].mean())


@case("torchbnn")
def bayesian_layers() -> Made:
    import torchbnn

    def layer(width: int, out: int) -> torch.nn.Module:
        return torchbnn.BayesLinear(prior_mu=0, prior_sigma=0.1, in_features=width, out_features=out)

    net, labels = torch.nn.Sequential(layer(4, 32), torch.nn.ReLU(), layer(32, 3)), torch.randint(0, 3, (32,))
    divergence = torchbnn.BKLLoss(reduction="mean", last_layer_only=False)
    return Made(net, (torch.randn(32, 4),), lambda out: torch.nn.functional.cross_entropy(out, labels) + 0.01 * divergence(net).sum())


@case("pomegranate")
def mixture_of_normals() -> Made:
    from pomegranate.distributions import Normal
    from pomegranate.gmm import GeneralMixtureModel

    parts = [Normal(torch.randn(4), torch.rand(4) + 0.5, covariance_type="diag") for _ in range(3)]
    unlikely = Calls(lambda net, x: -GeneralMixtureModel(parts).log_probability(net(x)), torch.nn.Linear(8, 4))
    return Made(unlikely, (torch.randn(32, 8),), lambda out: out.mean())


@case("lampe")
def posterior_estimator() -> Made:
    from lampe.inference import NPE, NPELoss

    loss = NPELoss(NPE(3, 5, transforms=2, hidden_features=(32, 32)))
    return Made(loss, (torch.rand(32, 3) * 2 - 1, torch.randn(32, 5)), lambda out: out)


@case("hl-gauss-pytorch")
def binned_regression() -> Made:
    from hl_gauss_pytorch import HLGaussLayer

    setting = {"min_value": 0.0, "max_value": 5.0, "num_bins": 32, "sigma": 0.5}
    return Made(HLGaussLayer(dim=16, hl_gauss_loss=setting), (torch.randn(16, 16), torch.rand(16) * 5), lambda loss: loss)


@case("torchdr")
def neighbour_affinity() -> Made:
    from torchdr import SymmetricEntropicAffinity

    points = torch.randn(40, 10)
    near = SymmetricEntropicAffinity(perplexity=8, max_iter=20, lr=1e-1, zero_diag=False)(points, log=True)

    def spread(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        away = torch.cdist(net(x).float(), net(x).float()).square().log1p().neg()
        return (near.exp() * (near - (away - away.flatten().logsumexp(0)))).sum()

    return Made(Calls(spread, torch.nn.Linear(10, 2)), (points,), lambda loss: loss)
