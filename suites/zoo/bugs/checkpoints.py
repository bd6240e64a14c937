"""What is saved and loaded again, and tables that are updated row by row."""

from __future__ import annotations

from typing import Any

import torch

from bugs.bug import Bug, normal, uniform

HALF, LOW = torch.float16, torch.bfloat16


class Masters:
    """Descent on float32 copies of bfloat16 weights. A checkpoint holds the weights; the copies are made of them again when it is loaded."""

    def __init__(self, weight: torch.Tensor, kept: bool) -> None:
        self.kept = kept
        self.live, self.master = weight.to(LOW), weight.clone()

    def step(self, gradient: torch.Tensor) -> None:
        self.master -= 1e-4 * gradient
        self.live.copy_(self.master)

    def resume(self) -> None:
        saved = {"weight": self.live.clone(), "master": self.master.clone()}
        self.live = saved["weight"]
        self.master = saved["master"] if self.kept else saved["weight"].float().clone()  # culprit: rebuilt-masters


def resumed(kept: bool) -> torch.Tensor:
    """How far weights move in four runs of five steps, each of which goes on where the last one was saved."""
    weight, target = normal(16, 16).to(LOW).float(), normal(16, 16, seed=1)
    masters = Masters(weight, kept)
    for step in range(20):
        masters.step(masters.live.float() - target)
        if step % 5 == 4:
            masters.resume()
    return masters.master - weight


class Adam(torch.optim.Optimizer):
    """Adam on weights in half precision, whose moments are float32. `load_state_dict` of the base class casts them to the weights' format."""

    def __init__(self, params: Any, wide: bool) -> None:
        super().__init__(params, {"lr": 1e-3})
        self.wide = wide

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["first"], state["second"] = torch.zeros(parameter.shape), torch.zeros(parameter.shape)
            gradient = parameter.grad.float()
            state["first"].lerp_(gradient, 0.1)
            state["second"].lerp_(gradient.square(), 0.05)
            parameter.copy_(parameter.float() - 1e-3 * state["first"] / (state["second"].sqrt() + 1e-8))

    def load(self, saved: dict[str, Any]) -> None:
        self.load_state_dict(saved)  # culprit: loaded-moments
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            for name, value in saved["state"][index].items():
                self.state[parameter][name] = value.clone() if self.wide else self.state[parameter][name].float()


def continued(wide: bool) -> torch.Tensor:
    """The first steps after a checkpoint was loaded: second moments of gradients of 1e-4 are zero in half, and the steps are divided by 1e-8."""
    weight = torch.nn.Parameter((0.5 * normal(8, 8)).to(HALF))
    optimizer = Adam([weight], wide)
    for step in range(10):
        weight.grad = (1e-4 * (1 + normal(8, 8, seed=step))).to(HALF)
        optimizer.step()
    saved = {**optimizer.state_dict()}
    again = Adam([weight], wide)
    again.load({"state": {key: {k: v.clone() for k, v in state.items()} for key, state in saved["state"].items()},
                "param_groups": saved["param_groups"]})  # fmt: skip
    weight.grad = (1e-4 * (1 + normal(8, 8, seed=11))).to(HALF)
    again.step()
    return weight.detach().float()


def table(wide: bool) -> torch.Tensor:
    """What an embedding table in half moves by in 40 steps of row-wise Adagrad, on the average. Steps are half a spacing and less,
    so that the table has to be rounded by chance; but where the step was computed in half as well, there is nothing left to round.
    """
    weight, momentum = (1.0 + 0.5 * uniform(64, 32)).to(HALF), torch.zeros(64)
    first = weight.float()
    for step in range(40):
        rows = (torch.arange(16) * 5 + step) % 64
        gradient = (0.5 + 0.2 * normal(16, 32, seed=step)).to(HALF)
        momentum[rows] += gradient.float().square().mean(-1)
        rate = 1e-3 / (momentum[rows].sqrt() + 1e-8)[:, None]
        if wide:
            updated = weight[rows].float() - rate * gradient.float()
        else:
            updated = (weight[rows] - rate.to(HALF) * gradient).float()  # culprit: table-rows
        weight[rows] = (updated + 2.0**-10 * (uniform(16, 32, seed=1000 + step) - 0.5)).to(HALF)  # culprit: table-rows
    return (weight.float() - first).mean()


BUGS = (
    Bug("rebuilt-masters", "TensorAuto/OpenTau#185", ("absorption", "lost-update", "amplified-rounding"), "aten.copy_.default",
        lambda: resumed(False), lambda: resumed(True),
        wrong_line="the rounding is made where weights are stored, as they are meant to be, and is told there"),
    Bug("loaded-moments", "facebookresearch/fairseq2#212", ("underflow", "overflow"), "aten._to_copy.default", lambda: continued(False),
        lambda: continued(True), step=11),
    Bug("table-rows", "pytorch/FBGEMM#6308", ("amplified-rounding", "absorption", "lost-update"), "aten.index_put_.default",
        lambda: table(False), lambda: table(True)),
)  # fmt: skip
