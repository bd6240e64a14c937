"""Atoms, accelerators, hyperbolic layers and equations that networks solve."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("hypll")
def hyperbolic_layers() -> Made:
    from hypll.manifolds.poincare_ball import Curvature, PoincareBall
    from hypll.nn import HLinear, HReLU
    from hypll.tensors import TangentTensor

    ball = PoincareBall(Curvature(1.0))
    layers = torch.nn.Sequential(HLinear(8, 16, manifold=ball), HReLU(manifold=ball), HLinear(16, 4, manifold=ball))

    def mapped(layers: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layers(ball.expmap(TangentTensor(data=x, man_dim=-1, manifold=ball))).tensor

    return Made(Calls(mapped, layers), (torch.randn(16, 8) * 0.5,), square)


@case("torchdyn")
def neural_dynamics() -> Made:
    from torchdyn.core import NeuralODE

    field = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    model = NeuralODE(field, solver="rk4", sensitivity="autograd", return_t_eval=False)
    return Made(Calls(lambda net, x: net(x, torch.linspace(0, 1, 8).to(x.dtype)), model), (torch.randn(16, 2),), square)


@case("torch-pme")
def long_range() -> Made:
    import torchpme

    calculator = torchpme.EwaldCalculator(torchpme.CoulombPotential(smearing=1.0), lr_wavelength=0.5)
    places = torch.rand(8, 3) * 4
    first, second = torch.triu_indices(8, 8, 1)
    pairs = torch.stack([first, second], dim=1)

    def energies(layer: torch.nn.Module, calculator: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        charges = layer(x).to(x.dtype)
        at = places.to(x.dtype)
        apart = (at[first] - at[second]).norm(dim=-1)
        return calculator(charges - charges.mean(0), 4 * torch.eye(3, dtype=x.dtype), at, pairs, apart)

    return Made(Calls(energies, torch.nn.Linear(4, 1), calculator), (torch.randn(8, 4),), square)


@case("mace-torch")
def radial_basis() -> Made:
    from mace.modules.radial import BesselBasis, PolynomialCutoff

    basis, cutoff = BesselBasis(r_max=5.0, num_basis=8, trainable=True), PolynomialCutoff(5.0)

    def energy(net: torch.nn.Module, basis: torch.nn.Module, cutoff: torch.nn.Module, apart: torch.Tensor) -> torch.Tensor:
        return net(basis(apart) * cutoff(apart))

    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.SiLU(), torch.nn.Linear(32, 1))
    return Made(Calls(energy, net, basis, cutoff), (torch.rand(64, 1) * 5 + 0.5,), square)


@case("cheetah-accelerator")
def beam_line() -> Made:
    import cheetah

    def tracked(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        strength = layer(x).mean()
        setting = {"dtype": x.dtype}
        beam = cheetah.ParameterBeam.from_parameters(
            sigma_x=torch.tensor(1e-4, **setting), sigma_px=torch.tensor(1e-5, **setting), energy=torch.tensor(1e8, **setting), **setting
        )
        line = cheetah.Segment(
            [
                cheetah.Quadrupole(torch.tensor(0.2, **setting), k1=strength.to(x.dtype), **setting),
                cheetah.Drift(torch.tensor(0.5, **setting), **setting),
            ]
        )
        return torch.stack([line.track(beam).sigma_x, line.track(beam).sigma_y]) * 1e4

    return Made(Calls(tracked, torch.nn.Linear(4, 1)), (torch.randn(8, 4),), square)


@case("geometric-vector-perceptron")
def vector_perceptron() -> Made:
    from geometric_vector_perceptron import GVP

    model = GVP(dim_vectors_in=8, dim_vectors_out=4, dim_feats_in=16, dim_feats_out=8)
    return Made(
        Calls(lambda net, feats, vectors: net((feats, vectors)), model),
        (torch.randn(8, 16), torch.randn(8, 8, 3)),
        lambda out: square(out[0]) + square(out[1]),
    )


@case("deepxde")
def physics_network() -> Made:
    import deepxde

    net = deepxde.nn.pytorch.FNN([1, 32, 32, 1], "tanh", "Glorot normal")

    def residual(net: torch.nn.Module, times: torch.Tensor) -> torch.Tensor:
        times = times.detach().requires_grad_()
        found = net(times)
        (slope,) = torch.autograd.grad(found.sum(), times, create_graph=True)
        return slope + found

    return Made(Calls(residual, net), (torch.rand(32, 1),), square)


@case("pina-mathlab")
def spectral_block() -> Made:
    from pina.model.block import SpectralConvBlock1D

    return Made(Calls(lambda block, x: block(x.float()), SpectralConvBlock1D(4, 4, n_modes=6)), (torch.randn(2, 4, 32),), square)


@case("pina-mathlab")
def fourier_features() -> Made:
    from pina.model.block import FourierFeatureEmbedding

    return Made(torch.nn.Sequential(FourierFeatureEmbedding(2, 32, sigma=5), torch.nn.Linear(32, 4)), (torch.rand(64, 2),), square)
