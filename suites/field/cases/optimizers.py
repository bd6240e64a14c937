"""Optimizers on a small network with a norm, and averages of weights."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from fieldcase import Calls, Made, case, square


def _network() -> torch.nn.Module:
    layers = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4)
    return torch.nn.Sequential(*layers)


def _made(optimizer: Any) -> Made:
    return Made(_network(), (torch.randn(8, 16),), square, optimizer)


def _optimizer(name: str, package: str, path: str, **settings: Any) -> None:
    """A case called `name`: the class at "module:class" of a package, made with these settings."""
    module, kind = path.split(":")

    def make() -> Made:
        made = getattr(importlib.import_module(module), kind)
        return _made(lambda given: made(given, **settings))

    make.__name__ = name
    case(package)(make)


_optimizer("lion", "lion-pytorch", "lion_pytorch:Lion", lr=1e-3, weight_decay=1e-2)
_optimizer("adam_atan2", "adam-atan2-pytorch", "adam_atan2_pytorch:AdamAtan2", lr=1e-3)
_optimizer("pytorch_optimizer_came", "pytorch-optimizer", "pytorch_optimizer:CAME", lr=1e-3)
_optimizer("pytorch_optimizer_stableadamw", "pytorch-optimizer", "pytorch_optimizer:StableAdamW", lr=1e-3, kahan_sum=True)
_optimizer("pytorch_optimizer_soap", "pytorch-optimizer", "pytorch_optimizer:SOAP", lr=1e-3)
_optimizer("pytorch_optimizer_adafactor", "pytorch-optimizer", "pytorch_optimizer:AdaFactor", lr=1e-3)
_optimizer("torch_optimizer_radam", "torch-optimizer", "torch_optimizer:RAdam", lr=1e-3)
_optimizer("torch_optimizer_lamb", "torch-optimizer", "torch_optimizer:Lamb", lr=1e-3)
_optimizer("torch_optimizer_yogi", "torch-optimizer", "torch_optimizer:Yogi", lr=1e-2)


@case("schedulefree")
def schedulefree() -> Made:
    from schedulefree import AdamWScheduleFree

    return _made(lambda given: _training(AdamWScheduleFree(given, lr=1e-3)))


def _training(optimizer: Any) -> Any:
    optimizer.train()
    return optimizer


_optimizer("prodigy", "prodigyopt", "prodigyopt:Prodigy", lr=1.0)
_optimizer("dadaptation", "dadaptation", "dadaptation:DAdaptAdam", lr=1.0)
_optimizer("adabelief", "adabelief-pytorch", "adabelief_pytorch:AdaBelief", lr=1e-3, print_change_log=False)
_optimizer("ranger", "pytorch-ranger", "pytorch_ranger:Ranger", lr=1e-3)
_optimizer("adabound", "adabound", "adabound:AdaBound", lr=1e-3)
_optimizer("ranger21", "ranger21", "ranger21:Ranger21", lr=1e-3, num_epochs=2, num_batches_per_epoch=20, logging_active=False)
_optimizer("memory_efficient_sm3", "torch-sm3", "SM3:SM3", lr=0.01, momentum=0.9)
_optimizer("sophia", "sophia-opt", "sophia_opt:SophiaG", lr=1e-3)
_optimizer("first_lamb", "pytorch-lamb", "pytorch_lamb:Lamb", lr=1e-3)
_optimizer("came", "came-pytorch", "came_pytorch:CAME", lr=1e-3)
_optimizer("adan", "adan-pytorch", "adan_pytorch:Adan", lr=1e-3)
_optimizer("timm_adopt", "timm", "timm.optim:Adopt", lr=1e-3)


@case("geoopt", ("bf16-mixed", "16-mixed"))
def geoopt_radam() -> Made:
    import geoopt

    ball = geoopt.PoincareBall()
    points = geoopt.ManifoldParameter(ball.expmap0(torch.randn(20, 8) * 0.1), manifold=ball)
    holder = torch.nn.ParameterDict({"points": points})

    def apart(given: torch.nn.Module, index: torch.Tensor) -> torch.Tensor:
        chosen = given["points"][index]  # type: ignore[index]
        return ball.dist(chosen[:, 0], chosen[:, 1])

    return Made(
        Calls(apart, holder), (torch.randint(0, 20, (16, 2)),), lambda out: out.mean(), lambda given: geoopt.optim.RiemannianAdam(given, lr=1e-2)
    )


@case("ema-pytorch")
def ema() -> Made:
    from ema_pytorch import EMA

    model = _network()
    averaged = EMA(model, beta=0.999, update_after_step=0, update_every=1, include_online_model=False)

    def stepped(online: torch.nn.Module, average: Any, x: torch.Tensor) -> torch.Tensor:
        average.update()
        return online(x)

    return Made(Calls(stepped, model, averaged), (torch.randn(8, 16),), square, lambda given: torch.optim.SGD(given, lr=0.1))


@case("muon-optimizer")
def muon() -> Made:
    from muon import SingleDeviceMuon

    model = torch.nn.Sequential(torch.nn.Linear(16, 32, bias=False), torch.nn.Tanh(), torch.nn.Linear(32, 4, bias=False))
    return Made(model, (torch.randn(16, 16),), square, lambda given: SingleDeviceMuon(given, lr=1e-2))


@case("galore-torch")
def galore() -> Made:
    from galore_torch import GaLoreAdamW

    def optimizer(given: Any) -> torch.optim.Optimizer:
        wide = [value for value in given if value.dim() == 2]
        others = [value for value in given if value.dim() != 2]
        return GaLoreAdamW(
            [{"params": others}, {"params": wide, "rank": 4, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}],
            lr=1e-2, no_deprecation_warning=True,
        )  # fmt: skip

    return _made(optimizer)


_optimizer("adamp", "adamp", "adamp:AdamP", lr=1e-3, weight_decay=1e-2)
_optimizer("madgrad", "madgrad", "madgrad:MADGRAD", lr=1e-3)
_optimizer("optimi_adamw", "torch-optimi", "optimi:AdamW", lr=1e-3)
_optimizer("optimi_lion", "torch-optimi", "optimi:Lion", lr=1e-4)
_optimizer("grokfast", "grokfast-pytorch", "grokfast_pytorch:GrokFastAdamW", lr=1e-3)


@case("opacus")
def private_training() -> Made:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    class Private(GradSampleModule):
        """The loop clears gradients by the model, where opacus expects it by the optimizer."""

        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)
            for parameter in self.parameters():
                parameter.summed_grad = parameter.grad_sample = None

    def optimizer(given: Any) -> torch.optim.Optimizer:
        return DPOptimizer(torch.optim.SGD(given, lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8)

    return Made(Private(_network()), (torch.randn(8, 16),), square, optimizer)


@case("kron-torch")
def kron() -> Made:
    from kron_torch import Kron

    torch.compiler.set_stance("force_eager")  # compiled code draws other random numbers, and watched code runs in eager mode
    return _made(lambda given: Kron(given, lr=3e-4))


@case("torchastic", ("bf16-true",))
def torchastic_adamw() -> Made:
    from torchastic import AdamW

    return _made(lambda given: AdamW(given, lr=1e-3))


@case("adamw-bf16", ("bf16-true",))
def stochastic_adamw() -> Made:
    from adamw_bf16 import AdamWBF16

    return _made(lambda given: AdamWBF16(given, lr=1e-3))


@case("adam-mini")
def adam_mini() -> Made:
    def optimizer(given: Any) -> torch.optim.Optimizer:
        from adam_mini import Adam_mini

        named = [(f"layers.{place}.weight", value) for place, value in enumerate(given)]
        return Adam_mini(named, lr=1e-3, dim=16, n_heads=2, verbose=False)

    return _made(optimizer)


@case("torchjd")
def two_tasks() -> Made:
    from torchjd.scalarization import GeometricMean

    combined, targets = GeometricMean(), torch.randn(2, 16, 1)

    def losses(shared: torch.nn.Module, one: torch.nn.Module, other: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        seen = shared(x)
        mse = torch.nn.functional.mse_loss
        return combined(torch.stack([mse(task(seen).float(), target) for task, target in zip((one, other), targets, strict=True)]))

    shared = torch.nn.Sequential(torch.nn.Linear(10, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3), torch.nn.ReLU())
    parts = shared, torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    return Made(Calls(losses, *parts), (torch.randn(16, 10),), lambda loss: loss, lambda given: torch.optim.SGD(given, lr=0.1))


_optimizer("grok_adamw", "grokadamw", "grokadamw:GrokAdamW", lr=1e-3)
_optimizer("expected_gradients", "expectigrad", "expectigrad.pytorch:Expectigrad", lr=1e-2)
_optimizer("coin_betting", "parameterfree", "parameterfree:COCOB")
_optimizer("krichevsky_trofimov", "parameterfree", "parameterfree:KT")
_optimizer("heavyball_adamw", "heavyball", "heavyball:AdamW", lr=1e-3)


@case("mechanic-pytorch")
def tuned_learning_rate() -> Made:
    from mechanic_pytorch import mechanize

    return _made(lambda given: mechanize(torch.optim.SGD)(given, lr=1.0))


_optimizer("half_the_memory", "atiny", "Atiny:Atiny", lr=1e-3)
_optimizer("speed_limited", "relativistic-adam", "relativistic_adam:RelativisticAdamW", lr=1e-3)
_optimizer("confident_steps", "casmo-optimizer", "casmo:CASMO", lr=1e-3, tau_init_steps=50)


@case("pogo-torch")
def orthogonal_steps() -> Made:
    from pogo import POGO, base

    def turned(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x @ net.weight.view(4, 8).T

    net = torch.nn.Linear(8, 4, bias=False)
    torch.nn.init.orthogonal_(net.weight)
    net.weight = torch.nn.Parameter(net.weight.detach().view(1, 4, 8))
    aim = torch.randn(16, 4)

    def optimizer(given: Any) -> torch.optim.Optimizer:
        return POGO(given, base.VectorAdam(), 0.1)

    return Made(Calls(turned, net), (torch.randn(16, 8),), lambda out: torch.nn.functional.mse_loss(out, aim.to(out)), optimizer)
