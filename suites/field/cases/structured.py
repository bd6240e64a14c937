"""Layers whose weights are bound: Lipschitz, monotonic, on a lattice, products of small tensors."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("monotonicnetworks")
def monotonic_network() -> Made:
    import monotonicnetworks as monotonic

    layers = monotonic.LipschitzLinear(2, 32, kind="one-inf"), monotonic.GroupSort(2), monotonic.LipschitzLinear(32, 1, kind="inf")
    return Made(monotonic.MonotonicWrapper(torch.nn.Sequential(*layers), monotonic_constraints=[1, 0]), (torch.randn(32, 2),), square)


@case("deel-torchlip")
def lipschitz_classifier() -> Made:
    from deel import torchlip

    layers = (
        torchlip.SpectralLinear(16, 32),
        torchlip.FullSort(),
        torchlip.SpectralLinear(32, 16),
        torchlip.FullSort(),
        torchlip.FrobeniusLinear(16, 1),
    )
    loss = torchlip.HKRLoss(alpha=10, min_margin=0.5)
    sides = torch.randint(0, 2, (32, 1)) * 2 - 1
    return Made(Calls(lambda net, x, y: loss(net(x), y.to(x.dtype)), torchlip.Sequential(*layers)), (torch.randn(32, 16), sides), lambda out: out)


@case("pytorch-lattice")
def calibrated_lattice() -> Made:
    import numpy
    from pytorch_lattice.layers import Lattice, NumericalCalibrator

    calibrators = [NumericalCalibrator(numpy.linspace(0.0, 1.0, 6), output_min=0.0, output_max=2.0) for _ in range(2)]

    def calibrated(first: torch.nn.Module, second: torch.nn.Module, lattice: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return lattice(torch.cat([first(x[:, :1]), second(x[:, 1:])], dim=1))

    return Made(Calls(calibrated, *calibrators, Lattice([3, 3])), (torch.rand(32, 2),), square)


@case("tntorch")
def tensor_train() -> Made:
    import tntorch

    cores = torch.nn.ParameterList([torch.nn.Parameter(core.detach()) for core in tntorch.randn(8, 8, 8, ranks_tt=3).cores])

    def completed(weights: torch.nn.Module, places: torch.Tensor) -> torch.Tensor:
        tensor = tntorch.Tensor(list(weights))  # type: ignore[call-overload]
        return tensor[places[:, 0], places[:, 1], places[:, 2]].torch()

    return Made(Calls(completed, cores), (torch.randint(0, 8, (64, 3)),), square)


@case("tensorly-torch")
def factorised_layers() -> Made:
    import tensorly
    import tltorch

    tensorly.set_backend("pytorch")
    layers = [tltorch.FactorizedLinear((4, 4), (4, 8), rank=0.5, factorization=kind) for kind in ("cp", "tucker")]
    for layer in layers:
        layer.weight.normal_(0, 0.2)
    return Made(torch.nn.Sequential(layers[0], torch.nn.Linear(32, 16), torch.nn.GELU(), layers[1]), (torch.randn(8, 16),), square)


@case("spdlayers")
def positive_cholesky() -> Made:
    import spdlayers

    layers = torch.nn.Linear(2, 32), torch.nn.Linear(32, spdlayers.in_shape_from(6)), spdlayers.Cholesky(output_shape=6)
    return Made(torch.nn.Sequential(*layers), (torch.randn(16, 2),), square)


@case("spdlayers")
def positive_eigenvalues() -> Made:
    import spdlayers

    layers = torch.nn.Linear(2, 32), torch.nn.Linear(32, spdlayers.in_shape_from(6)), spdlayers.Eigen(output_shape=6)
    return Made(torch.nn.Sequential(*layers), (torch.randn(16, 2),), square)


@case("cplxmodule")
def complex_pairs() -> Made:
    from cplxmodule import nn

    layers = nn.RealToCplx(), nn.CplxLinear(8, 16), nn.CplxModReLU(threshold=0.1), nn.CplxLinear(16, 4), nn.CplxToReal()
    return Made(torch.nn.Sequential(*layers), (torch.randn(16, 16),), square)


@case("complextorch", ("bf16-mixed", "16-mixed"))
def complex_tensors() -> Made:
    from complextorch import nn

    net = torch.nn.Sequential(nn.Linear(8, 16), nn.modReLU(), nn.Linear(16, 4))
    return Made(Calls(lambda layers, x: layers(torch.view_as_complex(x)).abs(), net), (torch.randn(16, 8, 2),), square)


@case("memcnn")
def reversible_coupling() -> Made:
    import memcnn

    def part() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm2d(5), torch.nn.ReLU(inplace=True), torch.nn.Conv2d(5, 5, 3, padding=1))

    coupling = memcnn.AdditiveCoupling(Fm=part(), Gm=part())
    return Made(memcnn.InvertibleModuleWrapper(fn=coupling, keep_input=True, keep_input_inverse=True), (torch.rand(2, 10, 8, 8),), square)



@case("torchdeq")
def fixed_point() -> Made:
    from torchdeq import get_deq

    find = get_deq(f_solver="anderson", f_max_iter=20, f_tol=1e-3, ift=False, grad=5)

    def solved(state: torch.nn.Module, seen: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        given = seen(x)
        found, _ = find(lambda z: torch.tanh(0.5 * state(z).to(z.dtype) + given.to(z.dtype)), torch.zeros_like(x))
        return found[-1]

    return Made(Calls(solved, torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)), (torch.randn(8, 16),), square)
