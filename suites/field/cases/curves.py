"""Losses, curves, distributions and filters."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("engression")
def energy_score() -> Made:
    from engression.loss_func import energy_loss

    def scored(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        samples = [net(torch.cat([x, torch.randn_like(x)], 1)) for _ in range(2)]
        return energy_loss(y, samples, verbose=False)

    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    x = torch.randn(64, 4)
    return Made(Calls(scored, net), (x, x[:, :2].square() + 0.1 * torch.randn(64, 2)), lambda out: out)


@case("mgiou")
def rotated_boxes() -> Made:
    from mgiou import MGIoU2D

    loss, truth = MGIoU2D(representation="rect"), torch.rand(16, 5) * torch.tensor([20.0, 20.0, 8.0, 8.0, 1.5]) + torch.tensor([0, 0, 2.0, 2.0, 0])
    return Made(Calls(lambda net, loss, x: loss(truth + net(x).float(), truth), torch.nn.Linear(8, 5), loss), (torch.randn(16, 8),), lambda out: out)


@case("mgiou")
def rotated_cuboids() -> Made:
    from mgiou import MGIoU3D

    corners = torch.tensor([[x, y, z] for x in (0.0, 1.0) for y in (0.0, 2.0) for z in (0.0, 3.0)])
    truth = corners + 10 * torch.rand(8, 1, 3)
    net, loss = torch.nn.Linear(4, 24), MGIoU3D()
    return Made(
        Calls(lambda net, loss, x: loss(truth.to(x) + 0.3 * net(x).view(8, 8, 3), truth.to(x)), net, loss), (torch.randn(8, 4),), lambda out: out
    )


@case("torch-kf")
def kalman_filter() -> Made:
    from torch_kf import GaussianState, KalmanFilter

    moves = torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]])

    def filtered(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        model = KalmanFilter(moves.to(x), torch.eye(2, 4).to(x), torch.eye(4).to(x) * 0.05, torch.eye(2).to(x) * 0.3)
        state = GaussianState(torch.zeros(x.shape[1], 4, 1).to(x), torch.eye(4).expand(x.shape[1], 4, 4).to(x) * 5)
        found = []
        for seen in (x + 0.1 * net(x).to(x.dtype))[..., None]:
            state = model.update(model.predict(state), seen)
            found.append(state.mean)
        return torch.stack(found)

    steps = torch.randn(2, 4, 2).cumsum(0)[1] * 0.2
    path = torch.arange(12.0)[:, None, None] * steps + 0.3 * torch.randn(12, 4, 2)
    return Made(Calls(filtered, torch.nn.Linear(2, 2)), (path,), square)


@case("torchcurves")
def spline_curve() -> Made:
    import torchcurves

    curve = torchcurves.BSplineCurve(num_curves=6, dim=4)
    return Made(Calls(lambda net, curve, x: curve(net(x)), torch.nn.Linear(8, 6), curve), (torch.randn(32, 8) * 0.5,), square)


@case("torchcurves")
def legendre_curve() -> Made:
    import torchcurves

    curve = torchcurves.LegendreCurve(6, 4, degree=7)
    return Made(Calls(lambda net, curve, x: curve(net(x)), torch.nn.Linear(8, 6), curve), (torch.randn(32, 8) * 0.5,), square)


@case("torch-betainc")
def incomplete_beta() -> Made:
    from torch_betainc import betainc

    def chance(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        a, b, at = net(x).float().chunk(3, -1)
        return betainc(a.exp() + 0.5, b.exp() + 0.5, at.sigmoid())

    return Made(Calls(chance, torch.nn.Linear(8, 12)), (torch.randn(16, 8),), square)


@case("torch-betainc")
def student_distribution() -> Made:
    from torch_betainc import StudentT

    def chance(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        freedom, at = net(x).chunk(2, -1)
        return StudentT(freedom.exp() + 2, validate_args=False).cdf(at)

    return Made(Calls(chance, torch.nn.Linear(8, 8)), (torch.randn(16, 8),), square)


@case("pytorch-ggd")
def gaussian_activation() -> Made:
    from pytorch_ggd.GGD import DynamicGGD

    return Made(
        torch.nn.Sequential(torch.nn.Linear(8, 16), DynamicGGD(16, channels_last=True), torch.nn.Linear(16, 4)), (torch.randn(16, 8),), square
    )


@case("fft-conv-pytorch")
def fourier_convolution() -> Made:
    from fft_conv_pytorch import FFTConv1d

    return Made(FFTConv1d(3, 2, 33, padding=16), (torch.randn(2, 3, 256),), square)


@case("torch-interpol")
def pulled_image() -> Made:
    from interpol import grid_pull, identity_grid

    def pulled(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        moved = net(x).movedim(1, -1)
        return grid_pull(x, identity_grid((24, 24)).to(moved) + moved, interpolation=3, bound="dct2", prefilter=True)

    return Made(Calls(pulled, torch.nn.Conv2d(1, 2, 3, padding=1)), (torch.randn(1, 1, 24, 24),), square)


@case("survival-distributions")
def survival_weibull() -> Made:
    import survival_distributions as sd

    times = torch.rand(32) * 5 + 0.1

    def scored(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        rate, shape = net(x).float().exp().unbind(-1)
        found = sd.Weibull(rate, shape)
        return -torch.where(times > 2, found.logsf(times), found.log_prob(times)).mean()

    return Made(Calls(scored, torch.nn.Linear(8, 2)), (torch.randn(32, 8),), lambda out: out)


@case("survival-distributions")
def survival_logistic() -> Made:
    import survival_distributions as sd

    times = torch.rand(32) * 5 + 0.1

    def scored(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        place, scale = net(x).unbind(-1)
        found = sd.LogLogistic(place, scale.exp(), validate_args=False)
        return -torch.where(times > 2, found.logsf(times.to(x)), found.log_prob(times.to(x))).mean()

    return Made(Calls(scored, torch.nn.Linear(8, 2)), (torch.randn(32, 8),), lambda out: out.float())


@case("torch-contour")
def drawn_contour() -> Made:
    from torch_contour import ContourToMask

    angle = torch.linspace(0, 6.2832, 41)[:-1]
    circle = 0.5 + 0.3 * torch.stack([angle.cos(), angle.sin()], -1)
    target = ((torch.stack(torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij"), -1) / 24 - 0.55).norm(dim=-1) < 0.25).float()

    def drawn(net: torch.nn.Module, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(circle.to(x) + 0.05 * net(x).view(2, 1, 40, 2).tanh()) - target.to(x)

    return Made(Calls(drawn, torch.nn.Linear(8, 80), ContourToMask(size=24)), (torch.randn(2, 8),), square)


@case("torch-contour")
def smooth_contour() -> Made:
    from torch_contour import area, curvature, perimeter

    angle = torch.linspace(0, 6.2832, 41)[:-1]
    circle = 0.5 + 0.3 * torch.stack([angle.cos(), angle.sin()], -1)

    def measured(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        curve = circle.to(x) + 0.01 * net(x).view(2, 1, 40, 2)
        return area(curve).mean() + perimeter(curve).mean() + 1e-3 * curvature(curve).square().mean()

    return Made(Calls(measured, torch.nn.Linear(8, 80)), (torch.randn(2, 8),), lambda out: out.float())


@case("torchpropel")
def propel_loss() -> Made:
    from torchpropel import PROPEL

    loss, truth = PROPEL(sigma=0.2), torch.rand(16, 2)

    def judged(net: torch.nn.Module, loss: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return loss(net(x).sigmoid().float().view(16, 3, 4), truth)

    return Made(Calls(judged, torch.nn.Linear(8, 12), loss), (torch.randn(16, 8),), lambda out: out)


@case("stribor")
def flow_of_affine() -> Made:
    import stribor

    flow = stribor.Coupling(stribor.Affine(4, latent_net=stribor.net.MLP(4, [16], 8)), mask="ordered_right_half")
    return Made(Calls(lambda flow, x: flow.forward_and_log_det_jacobian(x)[0], flow), (torch.randn(16, 4),), square)
