"""Inference, ranking, scores of forecasts, decisions, quantised training, knowledge graphs."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


def _posterior(kind: str) -> Made:
    from sbi.neural_nets import posterior_nn

    thetas, seen = torch.randn(64, 2), torch.randn(64, 3)
    model = posterior_nn(kind, hidden_features=16, num_transforms=2)(thetas, seen)
    return Made(Calls(lambda net, theta, x: net.loss(theta, x), model), (thetas, seen), lambda out: out.mean())


@case("sbi")
def spline_posterior() -> Made:
    return _posterior("nsf")


@case("sbi")
def mixture_posterior() -> Made:
    return _posterior("mdn")


@case("POT")
def entropic_transport() -> Made:
    import ot

    share = torch.full((24,), 1 / 24)

    def cost(layer: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        moved = layer(x)
        masses = share.to(moved.dtype)
        return ot.sinkhorn2(masses, masses, ot.dist(moved, y.to(moved.dtype)), reg=0.5, numItermax=50)

    return Made(Calls(cost, torch.nn.Linear(3, 3)), (torch.randn(24, 3), torch.randn(24, 3)), lambda out: out.sum())


@case("POT")
def sliced_transport() -> Made:
    import ot

    def cost(layer: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        moved = layer(x)
        return ot.sliced_wasserstein_distance(moved, y.to(moved.dtype), n_projections=20, seed=0)

    return Made(Calls(cost, torch.nn.Linear(3, 3)), (torch.randn(64, 3), torch.randn(64, 3)), lambda out: out.sum())


@case("scoringrules")
def normal_score() -> Made:
    import scoringrules

    def score(layer: torch.nn.Module, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        out = layer(x)
        return scoringrules.crps_normal(seen, out[:, 0], torch.nn.functional.softplus(out[:, 1]), backend="torch")

    return Made(Calls(score, torch.nn.Linear(8, 2)), (torch.randn(64, 8), torch.randn(64)), lambda out: out.mean())


@case("scoringrules")
def ensemble_score() -> Made:
    import scoringrules

    def score(layer: torch.nn.Module, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return scoringrules.crps_ensemble(seen, layer(x), backend="torch")

    return Made(Calls(score, torch.nn.Linear(8, 16)), (torch.randn(64, 8), torch.randn(64)), lambda out: out.mean())


@case("torch-uncertainty")
def packed_ensemble() -> Made:
    from torch_uncertainty.layers import PackedLinear

    layers = PackedLinear(16, 32, alpha=2, num_estimators=4, first=True), torch.nn.ReLU(), PackedLinear(32, 4, alpha=2, num_estimators=4, last=True)
    return Made(torch.nn.Sequential(*layers), (torch.randn(16, 16),), square)


@case("torch-uncertainty")
def evidential_regression() -> Made:
    from torch_uncertainty.layers.distributions import NormalInverseGammaLinear
    from torch_uncertainty.losses import DERLoss
    from torch_uncertainty.utils.distributions import get_dist_class

    head, loss, targets = NormalInverseGammaLinear(torch.nn.Linear, event_dim=1, in_features=16), DERLoss(reg_weight=1e-2), torch.randn(32, 1)
    return Made(head, (torch.randn(32, 16),), lambda out: loss(get_dist_class("nig")(**out), targets.to(out["loc"].dtype)))


@case("sb3-contrib")
def truncated_critics() -> Made:
    from sb3_contrib.common.utils import quantile_huber_loss

    critics = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 50))
    targets = torch.randn(16, 40).sort().values
    return Made(
        Calls(lambda net, x: net(x).view(16, 2, 25), critics),
        (torch.randn(16, 8),),
        lambda out: quantile_huber_loss(out, targets[:, None], sum_over_quantiles=False),
    )


@case("skrl")
def running_scaler() -> Made:
    from skrl.resources.preprocessors.torch import RunningStandardScaler

    scaler = RunningStandardScaler(size=8)
    return Made(Calls(lambda scaler, layer, x: layer(scaler(x, train=True)), scaler, torch.nn.Linear(8, 4)), (torch.randn(64, 8) * 0.5 + 4,), square)


@case("rsl-rl-lib")
def empirical_normalization() -> Made:
    from rsl_rl.modules import MLP
    from rsl_rl.modules.normalization import EmpiricalNormalization

    def acted(scaler: torch.nn.Module, policy: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        scaler.update(x)  # type: ignore[operator]
        return policy(scaler(x))

    return Made(Calls(acted, EmpiricalNormalization(8), MLP(8, 4, [32, 32])), (torch.randn(64, 8) * 0.5 + 4,), square)


@case("libauc")
def area_margin() -> Made:
    from libauc.losses import AUCMLoss

    loss, truth = AUCMLoss(), (torch.arange(32) % 4 == 0).float()[:, None]
    return Made(Calls(lambda layer, loss, x: loss(layer(x).sigmoid(), truth), torch.nn.Linear(8, 1), loss), (torch.randn(32, 8),), lambda out: out)


@case("laplace-torch")
def laplace_marginal() -> Made:
    from laplace import Laplace

    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    given = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))

    def marginal(deviation: torch.nn.Module) -> torch.Tensor:
        posterior = Laplace(net, "regression", subset_of_weights="last_layer", hessian_structure="full")
        posterior.fit(torch.utils.data.DataLoader(given, batch_size=32))
        return posterior.log_marginal_likelihood(deviation.weight.exp().view(()))  # type: ignore[operator, union-attr]

    return Made(Calls(marginal, torch.nn.Linear(1, 1, bias=False)), (), lambda out: -out)


@case("backpack-for-pytorch")
def extended_gradients() -> Made:
    from backpack import extend

    return Made(extend(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Sigmoid(), torch.nn.Linear(32, 4))), (torch.randn(16, 16),), square)


@case("tslearn")
def soft_time_warping() -> Made:
    from tslearn.metrics import SoftDTWLossPyTorch

    loss, other = SoftDTWLossPyTorch(gamma=0.1), torch.randn(2, 16, 2)
    return Made(Calls(lambda layer, x: layer(x), torch.nn.Linear(4, 2)), (torch.randn(2, 16, 4),), lambda out: loss(out.float(), other).mean())


def _graph(model: torch.nn.Module) -> Made:
    heads, tails, wrong = (torch.randint(0, 40, (32,)) for _ in range(3))
    inputs = heads, tails, torch.randint(0, 4, (32,)), heads, wrong
    return Made(model, inputs, lambda out: torch.nn.functional.softplus(out[1] - out[0]).mean())


@case("torchkge")
def complex_embeddings() -> Made:
    from torchkge.models import ComplExModel

    return _graph(ComplExModel(16, 40, 4))


@case("torchkge")
def translated_embeddings() -> Made:
    from torchkge.models import TransEModel

    return _graph(TransEModel(16, 40, 4, dissimilarity_type="L2"))


@case("pykeen")
def rotated_embeddings() -> Made:
    from pykeen.nn.modules import RotatEInteraction

    entities, relations = torch.nn.Embedding(40, 32), torch.nn.Embedding(4, 32)

    def scores(entities: torch.nn.Module, relations: torch.nn.Module, heads: torch.Tensor, kinds: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
        one, kind, other = (torch.view_as_complex(each.float().view(32, 16, 2)) for each in (entities(heads), relations(kinds), entities(tails)))
        return RotatEInteraction()(one, kind / kind.abs(), other)

    places = torch.randint(0, 40, (32,)), torch.randint(0, 4, (32,)), torch.randint(0, 40, (32,))
    return Made(Calls(scores, entities, relations), places, lambda out: torch.nn.functional.softplus(-out).mean())


@case("brevitas")
def quantised_layers() -> Made:
    from brevitas.nn import QuantIdentity, QuantLinear, QuantReLU

    layers = (
        QuantIdentity(bit_width=8),
        QuantLinear(16, 32, bias=True, weight_bit_width=4),
        QuantReLU(bit_width=4),
        QuantLinear(32, 4, bias=True, weight_bit_width=8),
    )
    return Made(torch.nn.Sequential(*layers), (torch.randn(16, 16),), square)
