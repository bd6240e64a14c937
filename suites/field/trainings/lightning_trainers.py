"""Lightning's Trainer and Fabric with settings that few use."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from training import Left, Low, data, network, square, training


def loader(size: int = 8) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data(32)), batch_size=size)


def module(own: nn.Module | None = None, configure: Any = None, **members: Any) -> Any:
    """A LightningModule of a network, with an optimizer, and other methods if given."""
    import lightning

    class Classifier(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = own or network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)  # type: ignore[no-any-return]

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            loss = cross_entropy(self(x).float(), y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val", cross_entropy(self(batch[0]).float(), batch[1]))

        def configure_optimizers(self) -> Any:
            return configure(self) if configure else torch.optim.AdamW(self.parameters(), lr=2e-2)

    made = type("Classifier", (Classifier,), members)()
    if "training_step" in members and "manual" in members:
        made.automatic_optimization = False
    return made


def fitted(low: Low, model: Any, **options: Any) -> Left:
    import lightning
    from lightning.pytorch.plugins.precision import MixedPrecision

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet: dict[str, Any] = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    given: dict[str, Any] = {"precision": low.precision}
    if low.precision == "16-mixed":  # on a CPU the Trainer takes bfloat16 for it, so it is given the plugin and the scaler of a GPU
        given = {"plugins": [MixedPrecision("16-mixed", "cpu", low.scaler)]}
        given["plugins"][0].precision = "16-mixed"
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=options.pop("max_epochs", 1), **{**quiet, **given, **options})
    trainer.fit(model, loader(), loader() if options.get("limit_val_batches") else None)
    return Left(model, {}, (model.net, low.cast(data()[0])), {"loss": square})


@training("lightning")
def accumulated_and_clipped_by_value(low: Low) -> Left:
    return fitted(low, module(), accumulate_grad_batches=2, gradient_clip_val=0.01, gradient_clip_algorithm="value")


@training("lightning")
def two_optimizers_by_hand(low: Low) -> Left:
    """A generator and a critic, each toggled while the other is trained."""

    def step(self: Any, batch: Any, index: int) -> None:
        x, first, second = batch[0], *self.optimizers()
        noise = torch.randn(len(x), 32, dtype=x.dtype)
        self.toggle_optimizer(first)
        loss = nn.functional.softplus(-self.net[1](self.net[0](noise)).float()).mean()
        self.manual_backward(loss)
        self.clip_gradients(first, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        first.step()
        first.zero_grad()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        real, made = self.net[1](x), self.net[1](self.net[0](noise).detach())
        self.manual_backward(nn.functional.softplus(-real.float()).mean() + nn.functional.softplus(made.float()).mean())
        second.step()
        second.zero_grad()
        self.untoggle_optimizer(second)

    networks = nn.ModuleList([nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), network()])
    both = lambda self: tuple(torch.optim.SGD(each.parameters(), lr=0.1) for each in self.net)  # noqa: E731
    left = fitted(low, module(networks, both, training_step=step, manual=True))
    return Left(left.model, {}, (networks[1], left.measured[1]), {"loss": square})


@training("lightning")
def closure_of_lbfgs(low: Low) -> Left:
    if low.scaler.is_enabled():
        low = Low("bf16-mixed")
    return fitted(low, module(configure=lambda self: torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)))


@training("lightning")
def average_of_weights_ema(low: Low) -> Left:
    from lightning.pytorch.callbacks import EMAWeightAveraging

    return fitted(low, module(), callbacks=[EMAWeightAveraging(decay=0.9)], limit_val_batches=2)


@training("lightning")
def average_of_weights_swa(low: Low) -> Left:
    """Of a network with batch norm, whose statistics are made anew at the end."""
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    own = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    return fitted(low, module(own), callbacks=[StochasticWeightAveraging(1e-2, swa_epoch_start=1, annealing_epochs=1)], max_epochs=3)


@training("lightning")
def compiled_network(low: Low) -> Left:
    own = network()
    made = module(own)
    made.net = torch.compile(own, backend="aot_eager")
    return fitted(low, made)


@training("lightning")
def compiled_module(low: Low) -> Left:
    made = module()
    made.compile(backend="eager")
    return fitted(low, made)


@training("lightning")
def accumulation_that_grows(low: Low) -> Left:
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    return fitted(low, module(), callbacks=[GradientAccumulationScheduler({0: 1, 1: 4})], max_epochs=2)


@training("lightning")
def backbone_that_is_thawed(low: Low) -> Left:
    from lightning.pytorch.callbacks import BackboneFinetuning

    own = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.GELU())

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = own, nn.Linear(64, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.backbone(x))  # type: ignore[no-any-return]

    made = module(Both(), lambda self: torch.optim.SGD(filter(lambda each: each.requires_grad, self.parameters()), lr=0.1))
    made.backbone = made.net.backbone
    return fitted(low, made, callbacks=[BackboneFinetuning(1, initial_denom_lr=2.0)], max_epochs=2)


@training("lightning")
def pruned(low: Low) -> Left:
    from lightning.pytorch.callbacks import ModelPruning

    return fitted(low, module(), callbacks=[ModelPruning("l1_unstructured", amount=0.3, parameters_to_prune=None)], max_epochs=2)


@training("lightning")
def anomaly_and_overfit(low: Low) -> Left:
    return fitted(low, module(), detect_anomaly=True, overfit_batches=2, max_epochs=2)


@training("lightning")
def fabric(low: Low) -> Left:
    """Accumulation, clipping by value, two models."""
    import lightning

    precision = "bf16-mixed" if low.precision == "16-mixed" else low.precision
    own = lightning.Fabric(accelerator="cpu", devices=1, precision=precision)
    own.launch()
    first, second = network(), nn.Linear(4, 4)
    model, optimizer = own.setup(first, torch.optim.AdamW(first.parameters(), lr=1e-2))
    head, other = own.setup(second, torch.optim.SGD(second.parameters(), lr=0.1))
    for index, (x, y) in enumerate(own.setup_dataloaders(loader())):
        with own.no_backward_sync(model, enabled=index % 2 == 0):
            loss = cross_entropy(head(model(x)).float(), y)
            own.backward(loss)
        if index % 2:
            own.clip_gradients(model, optimizer, clip_val=0.05)
            optimizer.step()
            other.step()
            optimizer.zero_grad()
            other.zero_grad()
    return Left(nn.ModuleList([first, second]), {"loss": loss}, (nn.Sequential(first, second), low.cast(data()[0])), {"loss": square})
