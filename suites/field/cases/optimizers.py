"""Optimizers on a small network with a norm, and averages of weights."""

from __future__ import annotations

from typing import Any

import torch
from fieldcase import Calls, Made, case, square


def _network() -> torch.nn.Module:
    layers = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4)
    return torch.nn.Sequential(*layers)


def _made(optimizer: Any) -> Made:
    return Made(_network(), (torch.randn(8, 16),), square, optimizer)


@case("lion-pytorch")
def lion() -> Made:
    from lion_pytorch import Lion

    return _made(lambda given: Lion(given, lr=1e-3, weight_decay=1e-2))


@case("adam-atan2-pytorch")
def adam_atan2() -> Made:
    from adam_atan2_pytorch import AdamAtan2

    return _made(lambda given: AdamAtan2(given, lr=1e-3))


@case("pytorch-optimizer")
def pytorch_optimizer_came() -> Made:
    from pytorch_optimizer import CAME

    return _made(lambda given: CAME(given, lr=1e-3))


@case("pytorch-optimizer")
def pytorch_optimizer_stableadamw() -> Made:
    from pytorch_optimizer import StableAdamW

    return _made(lambda given: StableAdamW(given, lr=1e-3, kahan_sum=True))


@case("pytorch-optimizer")
def pytorch_optimizer_soap() -> Made:
    from pytorch_optimizer import SOAP

    return _made(lambda given: SOAP(given, lr=1e-3))


@case("pytorch-optimizer")
def pytorch_optimizer_adafactor() -> Made:
    from pytorch_optimizer import AdaFactor

    return _made(lambda given: AdaFactor(given, lr=1e-3))


@case("torch-optimizer")
def torch_optimizer_radam() -> Made:
    from torch_optimizer import RAdam

    return _made(lambda given: RAdam(given, lr=1e-3))


@case("torch-optimizer")
def torch_optimizer_lamb() -> Made:
    from torch_optimizer import Lamb

    return _made(lambda given: Lamb(given, lr=1e-3))


@case("torch-optimizer")
def torch_optimizer_yogi() -> Made:
    from torch_optimizer import Yogi

    return _made(lambda given: Yogi(given, lr=1e-2))


@case("schedulefree")
def schedulefree() -> Made:
    from schedulefree import AdamWScheduleFree

    return _made(lambda given: _training(AdamWScheduleFree(given, lr=1e-3)))


def _training(optimizer: Any) -> Any:
    optimizer.train()
    return optimizer


@case("prodigyopt")
def prodigy() -> Made:
    from prodigyopt import Prodigy

    return _made(lambda given: Prodigy(given, lr=1.0))


@case("dadaptation")
def dadaptation() -> Made:
    from dadaptation import DAdaptAdam

    return _made(lambda given: DAdaptAdam(given, lr=1.0))


@case("adabelief-pytorch")
def adabelief() -> Made:
    from adabelief_pytorch import AdaBelief

    return _made(lambda given: AdaBelief(given, lr=1e-3, print_change_log=False))


@case("pytorch-ranger")
def ranger() -> Made:
    from pytorch_ranger import Ranger

    return _made(lambda given: Ranger(given, lr=1e-3))


@case("adabound")
def adabound() -> Made:
    from adabound import AdaBound

    return _made(lambda given: AdaBound(given, lr=1e-3))


@case("came-pytorch")
def came() -> Made:
    from came_pytorch import CAME

    return _made(lambda given: CAME(given, lr=1e-3))


@case("adan-pytorch")
def adan() -> Made:
    from adan_pytorch import Adan

    return _made(lambda given: Adan(given, lr=1e-3))


@case("timm")
def timm_adopt() -> Made:
    from timm.optim import Adopt

    return _made(lambda given: Adopt(given, lr=1e-3))


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
