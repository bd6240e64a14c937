"""Differential equations, Gaussian processes, operators, integrals, geometry and probability."""

from __future__ import annotations

from typing import Any

import torch
from fieldcase import Calls, Made, case, square


@case("torchdiffeq")
def torchdiffeq_fixed() -> Made:
    from torchdiffeq import odeint

    field = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))

    def solved(net: torch.nn.Module, start: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return odeint(lambda t, y: net(y), start, times, method="rk4")

    return Made(Calls(solved, field), (torch.randn(8, 4), torch.linspace(0, 1, 20)), square)


@case("torchdiffeq")
def torchdiffeq_adaptive() -> Made:
    from torchdiffeq import odeint

    field = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))

    def solved(net: torch.nn.Module, start: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return odeint(lambda t, y: net(y).to(y.dtype), start, times, method="dopri5", rtol=1e-3, atol=1e-3)

    return Made(Calls(solved, field), (torch.randn(8, 4), torch.linspace(0, 1, 5)), square)


@case("torchsde")
def torchsde() -> Made:
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.spread = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.drift(y)

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.spread(y).sigmoid() * 0.2

    def solved(sde: torch.nn.Module, start: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        path = torchsde.BrownianInterval(0.0, 1.0, size=(8, 3), entropy=7, dtype=start.dtype)
        return torchsde.sdeint(sde, start, times, dt=0.05, method="euler", bm=path)

    return Made(Calls(solved, Equation()), (torch.randn(8, 3), torch.linspace(0, 1, 5)), square)


@case("torchcde")
def torchcde() -> Made:
    import torchcde

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 18)

        def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.layer(z).tanh().view(-1, 6, 3)

    def solved(field: torch.nn.Module, begin: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        path = torchcde.CubicSpline(torchcde.hermite_cubic_coefficients_with_backward_differences(x))
        start = begin(path.evaluate(0.0)).to(x.dtype)
        return torchcde.cdeint(X=path, func=field, z0=start, t=path.interval, method="rk4", options={"step_size": 1.0}, adjoint=False)

    return Made(Calls(solved, Field(), torch.nn.Linear(3, 6)), (torch.randn(4, 10, 3).cumsum(1) * 0.1,), square)


@case("torchode")
def torchode() -> Made:
    import torchode

    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def solved(field: torch.nn.Module, start: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        term = torchode.ODETerm(lambda t, y: field(y).to(y.dtype))
        solver = torchode.AutoDiffAdjoint(torchode.Tsit5(term=term), torchode.IntegralController(atol=1e-3, rtol=1e-3, term=term))
        return solver.solve(torchode.InitialValueProblem(y0=start, t_eval=times)).ys

    return Made(Calls(solved, net), (torch.randn(4, 2), torch.linspace(0, 1, 6).repeat(4, 1)), square)


@case("gpytorch", ("bf16-mixed", "16-mixed"))
def gpytorch() -> Made:
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.linspace(0, 1, 40)
    y = torch.sin(6 * x) + 0.1 * torch.randn(40)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(x, y, likelihood)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return Made(Calls(lambda process, at: -marginal(process(at), y), model), (x,), lambda loss: loss)


@case("linear-operator", ("bf16-mixed", "16-mixed"))
def linear_operator() -> Made:
    import linear_operator

    def solved(layer: torch.nn.Module, x: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        seen = layer(x).float()
        matrix = linear_operator.to_linear_operator(seen @ seen.mT + torch.eye(24))
        return linear_operator.solve(matrix, right)

    return Made(Calls(solved, torch.nn.Linear(4, 8)), (torch.randn(24, 4), torch.randn(24, 2)), square)


@case("pyro-ppl", ("bf16-mixed", "16-mixed"))
def pyro_elbo() -> Made:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO

    def elbo(encoder: torch.nn.Module, decoder: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        pyro.clear_param_store()

        def model(x: torch.Tensor) -> None:
            with pyro.plate("data", len(x)):
                hidden = pyro.sample("z", dist.Normal(x.new_zeros(len(x), 2), 1.0).to_event(1))
                pyro.sample("x", dist.Normal(decoder(hidden), 0.5).to_event(1), obs=x)

        def guide(x: torch.Tensor) -> None:
            with pyro.plate("data", len(x)):
                mean, spread = encoder(x).chunk(2, -1)
                pyro.sample("z", dist.Normal(mean, torch.nn.functional.softplus(spread)).to_event(1))

        return Trace_ELBO().differentiable_loss(model, guide, x)

    return Made(Calls(elbo, torch.nn.Linear(4, 4), torch.nn.Linear(2, 4)), (torch.randn(16, 4),), lambda loss: loss)


@case("neuraloperator")
def fourier_operator() -> Made:
    from neuralop.models import FNO

    return Made(FNO(n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2), (torch.randn(2, 1, 16, 16),), square)


@case("torchquad", ("bf16-mixed", "16-mixed"))
def torchquad() -> Made:
    from torchquad import Simpson, set_log_level

    set_log_level("ERROR")
    integrator = Simpson()

    def area(net: torch.nn.Module, unused: torch.Tensor) -> torch.Tensor:
        domain = torch.tensor([[0.0, 1.0]])
        return integrator.integrate(lambda x: net(x).squeeze(-1), dim=1, N=101, integration_domain=domain)

    return Made(Calls(area, torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))), (torch.zeros(1),), square)


@case("geomloss")
def geomloss_sinkhorn() -> Made:
    from geomloss import SamplesLoss

    loss = SamplesLoss("sinkhorn", p=2, blur=0.05, backend="tensorized")
    return Made(
        Calls(lambda layer, x, y: loss(layer(x), y.to(x.dtype)), torch.nn.Linear(2, 2)), (torch.rand(40, 2), torch.rand(40, 2)), lambda out: out
    )


@case("entmax")
def entmax() -> Made:
    from entmax import entmax15, entmax_bisect, sparsemax

    def shared(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        scores = layer(x) * 3
        return torch.stack([sparsemax(scores, dim=-1), entmax15(scores, dim=-1), entmax_bisect(scores, alpha=1.3, dim=-1)])

    return Made(Calls(shared, torch.nn.Linear(16, 64)), (torch.randn(8, 16),), lambda out: (out.float() * torch.arange(64)).sum(-1).square().mean())


@case("sparsemax")
def sparsemax() -> Made:
    from sparsemax import Sparsemax

    return Made(torch.nn.Sequential(torch.nn.Linear(16, 64), Sparsemax(dim=-1)), (torch.randn(8, 16),), square)


@case("pytorch-crf")
def conditional_random_field() -> Made:
    from torchcrf import CRF

    tags = torch.randint(0, 5, (30, 4))
    return Made(Calls(lambda layer, crf, x: -crf(layer(x), tags), torch.nn.Linear(8, 5), CRF(5)), (torch.randn(30, 4, 8),), lambda loss: loss / 100)


@case("pykan")
def pykan() -> Made:
    from kan import KAN

    return Made(KAN(width=[2, 4, 1], grid=5, k=3, seed=0, auto_save=False), (torch.rand(32, 2) * 2 - 1,), square)


@case("ncps")
def liquid_network() -> Made:
    from ncps.torch import CfC

    return Made(CfC(4, 16, batch_first=True), (torch.randn(2, 12, 4),), lambda out: square(out[0]))


@case("info-nce-pytorch")
def info_nce() -> Made:
    from info_nce import InfoNCE

    return Made(
        Calls(lambda layer, x, y: InfoNCE()(layer(x), layer(y)), torch.nn.Linear(16, 8)),
        (torch.randn(32, 16), torch.randn(32, 16)),
        lambda loss: loss,
    )


@case("focal-loss-torch")
def focal_loss() -> Made:
    from focal_loss.focal_loss import FocalLoss

    loss, target = FocalLoss(gamma=0.7), torch.randint(0, 5, (32,))
    return Made(torch.nn.Sequential(torch.nn.Linear(16, 5), torch.nn.Softmax(-1)), (torch.randn(32, 16) * 3,), lambda out: loss(out, target))


@case("coral-pytorch")
def coral_loss() -> Made:
    from coral_pytorch.dataset import levels_from_labelbatch
    from coral_pytorch.layers import CoralLayer
    from coral_pytorch.losses import coral_loss as ordinal

    levels = levels_from_labelbatch(torch.randint(0, 5, (32,)), num_classes=5)
    return Made(CoralLayer(size_in=16, num_classes=5), (torch.randn(32, 16),), lambda out: ordinal(out, levels))


@case("pytorch-metric-learning")
def metric_learning() -> Made:
    from pytorch_metric_learning.losses import ArcFaceLoss, CircleLoss, MultiSimilarityLoss, TripletMarginLoss

    kinds = [ArcFaceLoss(num_classes=4, embedding_size=8), CircleLoss(), MultiSimilarityLoss(), TripletMarginLoss()]
    labels = torch.arange(4).repeat(4)

    def judged(layer: torch.nn.Module, *rest: Any) -> torch.Tensor:
        *losses, x = rest
        return sum(loss(layer(x), labels) for loss in losses)  # type: ignore[return-value]

    return Made(Calls(judged, torch.nn.Linear(16, 8), *kinds), (torch.randn(16, 16),), lambda loss: loss)


@case("torchmetrics")
def torchmetrics_audio() -> Made:
    from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio, signal_noise_ratio

    def compared(layer: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = layer(x).squeeze(1)
        return -(scale_invariant_signal_distortion_ratio(made, y.to(made.dtype)) + signal_noise_ratio(made, y.to(made.dtype))).mean()

    return Made(Calls(compared, torch.nn.Conv1d(1, 1, 9, padding=4)), (torch.randn(2, 1, 2000), torch.randn(2, 2000)), lambda loss: loss)
