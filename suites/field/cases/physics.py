"""Geometry, optics, robots, splines, differential equations and transforms of measured signals."""

from __future__ import annotations

import math

import torch
from fieldcase import Calls, Made, case, square


@case("point-transformer-pytorch")
def point_transformer() -> Made:
    from point_transformer_pytorch import PointTransformerLayer

    model = PointTransformerLayer(dim=16, pos_mlp_hidden_dim=16, attn_mlp_hidden_mult=2, num_neighbors=4)
    return Made(model, (torch.randn(2, 16, 16), torch.randn(2, 16, 3)), square)


ARM = """<robot name="arm"><link name="base"/><link name="upper"/><link name="lower"/><link name="hand"/>
<joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><origin xyz="0 0 0.1"/><axis xyz="0 0 1"/>
<limit lower="-3" upper="3" effort="1" velocity="1"/></joint>
<joint name="elbow" type="revolute"><parent link="upper"/><child link="lower"/><origin xyz="0.3 0 0"/><axis xyz="0 1 0"/>
<limit lower="-3" upper="3" effort="1" velocity="1"/></joint>
<joint name="wrist" type="revolute"><parent link="lower"/><child link="hand"/><origin xyz="0.25 0 0"/><axis xyz="0 1 0"/>
<limit lower="-3" upper="3" effort="1" velocity="1"/></joint></robot>"""


@case("pytorch-kinematics")
def arm_kinematics() -> Made:
    import pytorch_kinematics

    chain = pytorch_kinematics.build_serial_chain_from_urdf(ARM, "hand")

    def reached(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        angles = layer(x)
        return chain.to(dtype=angles.dtype).forward_kinematics(angles).get_matrix()[:, :3, 3]

    return Made(Calls(reached, torch.nn.Linear(8, 3)), (torch.randn(16, 8),), square)


@case("equiformer-pytorch")
def equiformer() -> Made:
    from equiformer_pytorch import Equiformer

    model = Equiformer(
        num_tokens=24, dim=(8, 4), dim_head=(4, 4), heads=(2, 2), num_degrees=2, depth=1, num_neighbors=4, attend_self=True, l2_dist_attention=False
    )
    inputs = torch.randint(0, 24, (1, 16)), torch.randn(1, 16, 3), torch.ones(1, 16, dtype=torch.bool)
    return Made(model, inputs, lambda out: square(out.type0) + square(out.type1))


@case("torchkbnufft")
def nonuniform_fourier() -> Made:
    from torchkbnufft import KbNufft

    def measured(transform: torch.nn.Module, layer: torch.nn.Module, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        image = layer(x).float()
        return torch.view_as_real(transform(torch.complex(image[:, :1], image[:, 1:]), places.float()))

    transform, layer = KbNufft(im_size=(16, 16)), torch.nn.Conv2d(2, 2, 3, padding=1)
    return Made(Calls(measured, transform, layer), (torch.randn(1, 2, 16, 16), (torch.rand(2, 100) * 2 - 1) * math.pi), square)


@case("torch-cubic-spline-grids")
def spline_grids() -> Made:
    from torch_cubic_spline_grids import CubicBSplineGrid1d, CubicCatmullRomGrid2d

    line, plane = CubicBSplineGrid1d(resolution=6, n_channels=2), CubicCatmullRomGrid2d(resolution=(5, 5), n_channels=2)
    for grid in (line, plane):
        grid.data = torch.randn_like(grid.data)

    def deformed(one: torch.nn.Module, two: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return one(x[:, :1]) + two(x)

    return Made(Calls(deformed, line, plane), (torch.rand(64, 2),), square)


@case("neurodiffeq")
def neural_equation() -> Made:
    from neurodiffeq import diff
    from neurodiffeq.conditions import IVP
    from neurodiffeq.networks import FCNN

    condition = IVP(t_0=0.0, u_0=1.0)

    def residual(network: torch.nn.Module, times: torch.Tensor) -> torch.Tensor:
        times = times.detach().requires_grad_()
        found = condition.enforce(network, times)
        return diff(found, times) + found

    return Made(Calls(residual, FCNN(n_input_units=1, n_output_units=1, hidden_units=(32, 32))), (torch.rand(32, 1),), square)


@case("cliffordlayers")
def clifford() -> Made:
    from cliffordlayers.nn.modules.cliffordconv import CliffordConv2d
    from cliffordlayers.nn.modules.groupnorm import CliffordGroupNorm2d

    layers = CliffordConv2d((1, 1), 2, 4, 3, padding=1), CliffordGroupNorm2d((1, 1), 2, 4), CliffordConv2d((1, 1), 4, 2, 3, padding=1)
    return Made(torch.nn.Sequential(*layers), (torch.randn(2, 2, 8, 8, 4),), square)


@case("torchoptics")
def optical_system() -> Made:
    from torchoptics import Field, System
    from torchoptics.elements import Lens, PhaseModulator
    from torchoptics.profiles import gaussian

    setting = {"spacing": 10e-6}
    phase = PhaseModulator(torch.nn.Parameter(torch.randn(32, 32) * 0.1), z=0.01, **setting)
    system = System(Lens(32, 0.05, z=0.0, **setting), phase)
    beam = gaussian(32, waist_radius=80e-6, **setting)

    def focused(elements: torch.nn.Module, field: torch.Tensor) -> torch.Tensor:
        return elements.measure_at_z(Field(field.float(), wavelength=700e-9, **setting), z=0.03).intensity()  # type: ignore[operator]

    return Made(Calls(focused, system), (beam.real / beam.abs().max(),), lambda out: out[12:20, 12:20].float().mean())


@case("difftmm")
def thin_films() -> Made:
    from difftmm import create_jones_matrix_isotropic

    indices = torch.tensor([[2.10, 1.46, 2.10]]) + 0j
    waves, angles = torch.tensor([[0.45, 0.55, 0.65]]), torch.linspace(0, 1.2, 20)[None]

    def reflected(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        thickness = net(x).sigmoid().float() * 0.19 + 0.01
        *_, across, along = create_jones_matrix_isotropic(indices, thickness, waves, 1.0, 1.52, angles)
        return torch.stack([across.abs(), along.abs()])

    return Made(Calls(reflected, torch.nn.Linear(8, 3)), (torch.randn(1, 8),), square)


@case("xitorch")
def root_of_equation() -> Made:
    from xitorch.optimize import rootfinder

    def root(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        matrix = net(x).float().unflatten(-1, (2, 2)).mean(0)
        return rootfinder(lambda y, a: torch.tanh(a @ y + 0.1) + y / 2.0, torch.zeros(2, 1), params=(matrix,))

    return Made(Calls(root, torch.nn.Linear(6, 4)), (torch.randn(8, 6),), square)
