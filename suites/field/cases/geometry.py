"""Rotations and poses, functions on the sphere, and rendering of volumes."""

from __future__ import annotations

from typing import Any

import torch
from fieldcase import Calls, Made, case, square


def _network(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(inputs, 32), torch.nn.ReLU(), torch.nn.Linear(32, outputs))


@case("pypose")
def pypose_rotation() -> Made:
    import pypose

    def turned(net: torch.nn.Module, x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return pypose.so3(net(x)).Exp() @ points

    return Made(Calls(turned, _network(8, 3)), (torch.randn(16, 8), torch.randn(16, 3)), square)


@case("pypose")
def pypose_inversion() -> Made:
    import pypose

    class Inversion(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pose = pypose.Parameter(pypose.randn_se3(2, 2))

        def forward(self, given: Any) -> torch.Tensor:
            return (self.pose.Exp() @ given).Log().tensor()

    return Made(Inversion(), (pypose.randn_SE3(2, 2),), square)


@case("roma")
def roma_gram_schmidt() -> Made:
    import roma

    target = roma.random_rotmat(16)

    def distance(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return roma.utils.rotmat_geodesic_distance(roma.special_gramschmidt(net(x).view(-1, 3, 2)), target.to(x.dtype))

    return Made(Calls(distance, _network(8, 6)), (torch.randn(16, 8),), lambda angle: angle.float().mean())


@case("roma")
def roma_procrustes() -> Made:
    import roma

    target = roma.random_rotmat(16)

    def distance(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return roma.utils.rotmat_geodesic_distance(roma.special_procrustes(net(x).float().view(-1, 3, 3)), target)

    return Made(Calls(distance, _network(8, 9)), (torch.randn(16, 8),), lambda angle: angle.mean())


@case("roma")
def roma_rotation_vector() -> Made:
    import roma

    def turned(net: torch.nn.Module, x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        turn = roma.unitquat_to_rotmat(roma.rotvec_to_unitquat(net(x)))
        return (turn @ points[..., None]).squeeze(-1)

    return Made(Calls(turned, _network(8, 3)), (torch.randn(16, 8), torch.randn(16, 3)), square)


@case("torch-harmonics")
def spherical_transform() -> Made:
    import torch_harmonics

    forward, back = torch_harmonics.RealSHT(16, 32), torch_harmonics.InverseRealSHT(16, 32)

    def filtered(net: torch.nn.Module, there: torch.nn.Module, again: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        field = net(x)
        with torch.autocast("cpu", enabled=False):  # as the README says
            return again(there(field.float()))

    return Made(Calls(filtered, torch.nn.Conv2d(2, 2, 1), forward, back), (torch.randn(2, 2, 16, 32),), square)


@case("torch-harmonics")
def spherical_fourier_operator() -> Made:
    from torch_harmonics.examples.models import SphericalFourierNeuralOperator

    model = SphericalFourierNeuralOperator(
        img_size=(16, 32), grid="equiangular", scale_factor=1, in_chans=2, out_chans=2, embed_dim=16, num_layers=2, use_mlp=True, pos_embed="none"
    )
    return Made(model, (torch.randn(2, 2, 16, 32),), square)


@case("nerfacc")
def volume_rendering() -> Made:
    from nerfacc import rendering

    def rendered(field: torch.nn.Module, origins: torch.Tensor, directions: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        starts, ends = edges[:, :-1], edges[:, 1:]

        def shaded(t_starts: torch.Tensor, t_ends: torch.Tensor, ray_indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
            middle = (t_starts + t_ends)[..., None] / 2
            found = field(origins[:, None] + directions[:, None] * middle)
            return found[..., :3].sigmoid(), torch.nn.functional.softplus(found[..., 3] + 1)

        colour, _, depth, _ = rendering(starts, ends, rgb_sigma_fn=shaded)
        return torch.cat([colour, depth], -1)

    rays = torch.randn(16, 3), torch.nn.functional.normalize(torch.randn(16, 3), dim=-1), torch.linspace(2, 6, 65).repeat(16, 1)
    return Made(Calls(rendered, _network(3, 4)), rays, square)
