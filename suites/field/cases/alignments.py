"""Alignments, imbalanced and robust losses, divergences, distributions and logic."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("ddtw")
def soft_alignment() -> Made:
    from ddtw import SDTW

    loss, other = SDTW(backend="torch", gamma=1.0), torch.randn(3, 12, 6)
    return Made(torch.nn.Linear(8, 6), (torch.randn(3, 10, 8),), lambda out: loss(out, other.to(out)))


@case("ddtw")
def sparse_alignment() -> Made:
    from ddtw import sparseDTW

    loss, other = sparseDTW(backend="torch"), torch.randn(3, 12, 6)
    return Made(torch.nn.Linear(8, 6), (torch.randn(3, 10, 8),), lambda out: loss(out, other.to(out)))


@case("dtw-loss-functions")
def order_preserving_transport() -> Made:
    from dtw_loss_functions.otw import otw_distance

    other = torch.rand(6, 24)
    net = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.Softplus())
    return Made(net, (torch.randn(6, 8),), lambda out: otw_distance(out, other.to(out), m=1, s=1, beta=1))


@case("rmi-pytorch")
def region_information() -> Made:
    from rmi import RMILoss

    loss = RMILoss(with_logits=True)
    net, truth = torch.nn.Conv2d(3, 2, 3, padding=1), (torch.rand(2, 2, 24, 24) > 0.6).float()
    return Made(net, (torch.randn(2, 3, 24, 24),), lambda out: loss(out, truth.to(out)))


@case("seesawloss")
def long_tail() -> Made:
    from seesawloss import SeesawLoss

    truth, loss = torch.cat([torch.zeros(24), torch.arange(8)]).long(), SeesawLoss(num_classes=8)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    return Made(net, (torch.randn(32, 16),), lambda out: loss(out, truth))


@case("pytopk")
def balanced_top_k() -> Made:
    from pytopk import BalNoisedTopK

    loss, truth = BalNoisedTopK(k=3, epsilon=0.2), torch.randint(0, 20, (16,))
    return Made(torch.nn.Linear(16, 20), (torch.randn(16, 16),), lambda out: loss(out, truth))


@case("pytopk")
def imbalanced_top_k() -> Made:
    from pytopk import ImbalNoisedTopK

    counts = [400, 200, 100, 50, 25, 12, 6, 3]
    loss, truth = ImbalNoisedTopK(k=3, epsilon=0.01, max_m=0.3, cls_num_list=counts), torch.randint(0, 8, (16,))

    def cosines(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(torch.nn.functional.normalize(x, dim=1), torch.nn.functional.normalize(net.weight, dim=1))

    return Made(Calls(cosines, torch.nn.Linear(16, 8)), (torch.randn(16, 16),), lambda out: loss(out, truth))


@case("otloss")
def sinkhorn_divergence() -> Made:
    from otloss import WassersteinLoss

    loss, other = WassersteinLoss(p=2, blur=0.05), torch.randn(2, 24, 4)
    return Made(torch.nn.Linear(6, 4), (torch.randn(2, 24, 6),), lambda out: loss(out, other.to(out)))


@case("otloss")
def sliced_distance() -> Made:
    from otloss import SlicedWassersteinLoss

    loss, other = SlicedWassersteinLoss(), torch.randn(2, 64, 4)
    return Made(torch.nn.Linear(6, 4), (torch.randn(2, 64, 6),), lambda out: loss(out, other.to(out)))


@case("chola-coreloss")
def self_tuned_robust() -> Made:
    from chola_coreloss import CholaCoreLoss

    loss, truth = CholaCoreLoss(), torch.randn(64, 1) + 10 * (torch.rand(64, 1) > 0.95)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    return Made(net, (torch.randn(64, 8),), lambda out: loss(out, truth.to(out)))


@case("beta-divergence-metrics")
def itakura_saito() -> Made:
    from torchbd.loss import BetaDivLoss

    loss, truth = BetaDivLoss(beta=0, reduction="mean"), torch.rand(16, 12) + 0.05
    net = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Softplus())
    return Made(net, (torch.randn(16, 8),), lambda out: loss(input=out, target=truth.to(out)))


@case("beta-divergence-metrics")
def factors_of_counts() -> Made:
    from torchbd.loss import NMFBetaDivLoss

    loss, counts = NMFBetaDivLoss(beta=1, reduction="mean"), torch.rand(20, 12) * 5 + 0.01

    def factored(left: torch.nn.Module, right: torch.nn.Module) -> torch.Tensor:
        return loss(X=counts.to(left.weight), H=left.weight.exp(), W=right.weight.exp())

    return Made(Calls(factored, torch.nn.Linear(4, 20, bias=False), torch.nn.Linear(12, 4, bias=False)), (), lambda out: out)


@case("projnormal")
def projected_normal() -> Made:
    from projnormal.formulas import projected_normal as distribution

    seen = torch.nn.functional.normalize(torch.randn(64, 4) + 1, dim=-1)

    def chances(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        mean, root = net(x).mean(0).float().split([4, 16])
        root = root.view(4, 4)
        return distribution.log_pdf(mean_x=mean, covariance_x=root @ root.T + 0.2 * torch.eye(4), y=seen)

    return Made(Calls(chances, torch.nn.Linear(6, 20)), (torch.randn(8, 6),), lambda out: -out.mean())


@case("flowtorch")
def autoregressive_splines() -> Made:
    import flowtorch.bijectors as bijectors
    import flowtorch.distributions as flows

    base = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2), torch.ones(2)), 1)
    flow = flows.Flow(base, bijectors.SplineAutoregressive())
    return Made(Calls(lambda flow, x: flow.log_prob(x), flow), (torch.randn(64, 2),), lambda out: -out.mean())


@case("flowtorch")
def affine_autoregressive() -> Made:
    import flowtorch.bijectors as bijectors
    import flowtorch.distributions as flows

    base = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(4), torch.ones(4)), 1)
    flow = flows.Flow(base, bijectors.AffineAutoregressive())
    return Made(Calls(lambda flow, x: flow.log_prob(x), flow), (torch.randn(64, 4),), lambda out: -out.mean())


@case("dsntnn")
def heatmap_coordinates() -> Made:
    import dsntnn

    net, truth = torch.nn.Conv2d(3, 5, 7, padding=3), torch.rand(4, 5, 2) * 1.6 - 0.8

    def located(net: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        maps = dsntnn.flat_softmax(net(x))
        return dsntnn.dsnt(maps), maps

    def loss(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        places, maps = out
        return dsntnn.average_loss(dsntnn.euclidean_losses(places, truth.to(places)) + dsntnn.js_reg_losses(maps, truth.to(maps), sigma_t=1.0))

    return Made(Calls(located, net), (torch.randn(4, 3, 32, 32),), loss)


@case("LTNtorch")
def fuzzy_logic() -> Made:
    import ltn

    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ELU(), torch.nn.Linear(16, 1), torch.nn.Sigmoid())
    forall = ltn.Quantifier(ltn.fuzzy_ops.AggregPMeanError(p=2), quantifier="f")
    no, satisfied = ltn.Connective(ltn.fuzzy_ops.NotStandard()), ltn.fuzzy_ops.SatAgg()

    def truth(net: torch.nn.Module, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        inside, a, b = ltn.Predicate(net), ltn.Variable("a", near), ltn.Variable("b", far)
        return satisfied(forall(a, inside(a)), forall(b, no(inside(b))))

    return Made(Calls(truth, net), (0.3 * torch.randn(32, 2), 2 + 0.3 * torch.randn(32, 2)), lambda out: 1.0 - out)


@case("ricciardi")
def firing_rates() -> Made:
    from ricciardi import ricciardi

    def rates(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return ricciardi(0.01 + 0.01 * net(x), sigma=0.01)

    return Made(Calls(rates, torch.nn.Linear(8, 16)), (torch.randn(16, 8),), square)
