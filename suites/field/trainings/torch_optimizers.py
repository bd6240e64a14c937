"""torch's own optimizers, each in the variants that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from training import Left, Low, data, looped, network, training

RATES = {"SGD": 1e-1, "Adadelta": 1.0, "Adagrad": 1e-1, "Adam": 1e-2, "AdamW": 1e-2, "Adamax": 1e-2, "NAdam": 1e-2, "RAdam": 1e-2, "RMSprop": 1e-2,
         "Rprop": 1e-2, "ASGD": 1e-1, "Adafactor": 1e-2}  # fmt: skip
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "foreach": ({"foreach": True}, " ".join(RATES)),
    "single": ({"foreach": False}, " ".join(RATES)),
    "fused": ({"fused": True}, "SGD Adagrad Adam AdamW"),
    "maximize": ({"maximize": True}, " ".join(RATES)),
    "amsgrad": ({"amsgrad": True, "weight_decay": 0.1}, "Adam AdamW"),
    "nesterov": ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, "SGD"),
    "centered": ({"centered": True, "momentum": 0.9}, "RMSprop"),
    "tensor rate": ({"lr": "tensor", "foreach": False}, "Adam AdamW SGD RMSprop"),
    "differentiable": ({"differentiable": True}, "SGD"),
}


def added(name: str, variant: str, options: dict[str, Any]) -> None:
    def made(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        rate = torch.tensor(RATES[name]) if options.get("lr") == "tensor" else RATES[name]
        return getattr(torch.optim, name)(parameters, **{**options, "lr": rate})  # type: ignore[no-any-return]

    def run(low: Low) -> Left:
        left = looped(low, network(), made)
        left.asked |= {"optimizer": made, "steps": 2}
        return left

    training("torch", name=f"{name}, {variant}")(run)


for variant, (options, names) in VARIANTS.items():
    for name in names.split():
        if not (name == "Adafactor" and variant == "fused"):
            added(name, variant, options)


def closed(make: Callable[..., torch.optim.Optimizer]) -> Callable[[Low], Left]:
    """An optimizer that calls a closure; no scaler can be used with it."""

    def run(low: Low) -> Left:
        model, (x, y) = low.cast(network()), data()
        optimizer, losses = make(model.parameters()), []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            with low.autocast():
                loss = nn.functional.cross_entropy(model(low.cast(x)).float(), y)
            loss.backward()
            losses.append(loss.detach())
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return Left(model, {"losses": torch.stack(losses)}, (model, x))

    return run


training("torch", name="LBFGS, strong Wolfe")(closed(lambda given: torch.optim.LBFGS(given, max_iter=4, line_search_fn="strong_wolfe")))
training("torch", name="LBFGS")(closed(lambda given: torch.optim.LBFGS(given, lr=0.1, max_iter=4)))


@training("torch")
def muon(low: Low) -> Left:
    """Muon for matrices, AdamW for the rest."""
    model, (x, y) = low.cast(network()), data()
    matrices = [each for each in model.parameters() if each.ndim == 2]
    optimizers = torch.optim.Muon(matrices, lr=2e-2), torch.optim.AdamW([each for each in model.parameters() if each.ndim < 2], lr=1e-2)
    for _ in range(3):
        with low.autocast():
            loss = nn.functional.cross_entropy(model(low.cast(x)).float(), y)
        low.step(loss, *optimizers)
    return Left(model, {"loss": loss}, (model, x))


@training("torch")
def sparse_adam(low: Low) -> Left:
    model = low.cast(nn.EmbeddingBag(50, 16, sparse=True, mode="sum"))
    head = low.cast(nn.Linear(16, 4))
    optimizers = torch.optim.SparseAdam(model.parameters(), lr=1e-2), torch.optim.SGD(head.parameters(), lr=0.1)
    ids = torch.arange(64).view(16, 4) % 50
    for _ in range(3):
        with low.autocast():
            loss = nn.functional.cross_entropy(head(model(ids)).float(), ids[:, 0] % 4)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return Left(nn.ModuleList([head]), {"table": model.weight, "loss": loss}, (nn.Sequential(model, head), ids))


@training("torch")
def stepped_within_backward(low: Low) -> Left:
    """An optimizer for each weight, stepped as soon as its gradient is there."""
    model = low.cast(network())
    optimizers = {each: torch.optim.AdamW([each], lr=1e-2, foreach=False) for each in model.parameters()}

    def hook(weight: torch.Tensor) -> None:
        optimizers[weight].step()  # type: ignore[index]
        optimizers[weight].zero_grad()  # type: ignore[index]

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(hook)
    x, y = data()
    for _ in range(3):
        with low.autocast():
            loss = nn.functional.cross_entropy(model(low.cast(x)).float(), y)
        loss.backward()
    return Left(model, {"loss": loss}, (model, x), {"loss": lambda out: out.float().square().mean()})


@training("torch")
def groups_with_rates_and_schedules(low: Low) -> Left:
    """OneCycle over groups, then SWA's average of the weights."""
    model, (x, y) = low.cast(network()), data()
    optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2:].parameters(), "lr": 0.3}], momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.3], total_steps=4)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    for _ in range(4):
        with low.autocast():
            loss = nn.functional.cross_entropy(model(low.cast(x)).float(), y)
        low.step(loss, optimizer)
        schedule.step()
        average.update_parameters(model)
    return Left(average, {"loss": loss}, (average, x))
