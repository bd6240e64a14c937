"""Robots, atoms, lenses, control and equations."""

from __future__ import annotations

from pathlib import Path

import torch
from fieldcase import Calls, Made, case, square


@case("mpc")
def pendulum_control() -> Made:
    from mpc import mpc
    from mpc.env_dx import pendulum

    plant = pendulum.PendulumDx(torch.tensor((10.0, 1.0, 1.0)))

    def controlled(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        weights, aim = net(x).float().exp().mean(0), torch.tensor([1.0, 0, 0, 0])
        cost = mpc.QuadCost(torch.diag(weights).expand(6, 2, 4, 4), (-weights.sqrt() * aim).expand(6, 2, 4))
        start = torch.tensor([[0.9, 0.43, 0.1], [0.8, 0.6, -0.2]])
        solver = mpc.MPC(
            3,
            1,
            6,
            u_lower=plant.lower,
            u_upper=plant.upper,
            lqr_iter=5,
            grad_method=mpc.GradMethods.AUTO_DIFF,
            exit_unconverged=False,
            backprop=True,
            verbose=-1,
        )
        found, moved, _ = solver(start, cost, plant)
        return found.square().sum() + moved.square().sum()

    return Made(Calls(controlled, torch.nn.Linear(4, 4)), (0.1 * torch.randn(3, 4),), lambda out: out)


@case("differentiable-robot-model")
def inverse_dynamics() -> Made:
    import diff_robot_data
    from differentiable_robot_model.robot_model import DifferentiableRobotModel

    robot = DifferentiableRobotModel(str(Path(diff_robot_data.__file__).parent / "2link_robot.urdf"), device="cpu")

    def torques(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        place, speed, push = net(x).float().tanh().view(-1, 3, 2).unbind(1)
        return robot.compute_inverse_dynamics(place, speed, push, include_gravity=True)

    return Made(Calls(torques, torch.nn.Linear(4, 6)), (torch.randn(8, 4),), square)


@case("hippynn")
def hierarchical_atoms() -> Made:
    import hippynn
    from hippynn.networks.hipnn import Hipnn

    hippynn.custom_kernels.set_custom_kernels(False)

    net = Hipnn(16, 8, 0.8, 4.0, 5.0, n_atom_layers=2, n_interaction_layers=2, possible_species=[0, 1, 6], n_input_features=2)
    places, kinds = torch.rand(10, 3) * 4, torch.nn.functional.one_hot(torch.randint(0, 2, (10,)), 2).bool()
    first, second = (~torch.eye(10, dtype=torch.bool)).nonzero().T

    def energies(net: torch.nn.Module, places: torch.Tensor) -> torch.Tensor:
        return net(kinds, first, second, (places[first] - places[second]).norm(dim=-1))[-1]

    return Made(Calls(energies, net), (places,), square)


@case("caustics")
def gravitational_lens() -> Made:
    from caustics.lenses.func import reduced_deflection_angle_epl, reduced_deflection_angle_sie

    axis = torch.linspace(-2, 2, 24)

    def bent(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        ratio, angle, radius = net(x).sigmoid().mean(0).unbind(-1)
        given = axis.to(ratio)[:, None].expand(24, 24), axis.to(ratio)[None, :].expand(24, 24)
        smooth = reduced_deflection_angle_sie(0.03, 0.02, ratio, angle, radius, *given, s=0.05)
        steep = reduced_deflection_angle_epl(0.03, 0.02, ratio, angle, radius, torch.tensor(1.1).to(ratio), *given, n_iter=12)
        return torch.stack([*smooth, *steep])

    return Made(Calls(bent, torch.nn.Linear(4, 3)), (torch.randn(4, 4),), square)


@case("torchphysics")
def heat_operator() -> Made:
    import torchphysics as tp

    space, out = tp.spaces.R2("x"), tp.spaces.R1("u")
    net = tp.models.QRES(space, out, hidden=(20, 20))
    residual = tp.utils.laplacian

    def solved(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        points = tp.spaces.Points(x, space)
        places = x.requires_grad_()
        found = net(tp.spaces.Points(places, space)).as_tensor
        return (residual(found, places) - points.as_tensor.sum(1, keepdim=True)).square().mean()

    return Made(Calls(solved, net), (torch.rand(32, 2),), lambda out: out)


@case("qpth")
def quadratic_program() -> Made:
    from qpth.qp import QPFunction

    def solved(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        linear = net(x)
        root = torch.eye(4).to(linear)
        nothing = torch.empty(0).to(linear)
        return QPFunction(verbose=-1)(root, linear, -root, torch.zeros(4).to(linear), nothing, nothing)

    return Made(Calls(solved, torch.nn.Linear(6, 4)), (torch.randn(8, 6),), square)


@case("torch-frft2d")
def fractional_fourier() -> Made:
    from torch_frft2d import frft2d_multi

    def turned(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        angles = net(x.flatten(1)).float().tanh() + 0.8
        return frft2d_multi(x.float(), angles).abs()

    return Made(Calls(turned, torch.nn.Linear(256, 3)), (torch.randn(2, 16, 16),), square)


@case("pytorch-minimize")
def fitted_inside() -> Made:
    from torchmin import minimize

    def fitted(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        aim = net(x).mean(0)
        found = minimize(lambda v: (v - aim.detach()).square().sum() + v.pow(4).sum(), torch.zeros_like(aim), method="bfgs", max_iter=20).x
        return (aim - found).square().mean()

    return Made(Calls(fitted, torch.nn.Linear(6, 3)), (torch.randn(16, 6),), lambda out: out)
