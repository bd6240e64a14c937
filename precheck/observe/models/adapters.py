"""Adapts models of Lightning, Accelerate, DDP, FSDP2 and Keras: finds the part to run, and the names of its modules and parameters.

A `Guest` has the children, parameters and buffers of a module, but another forward. No framework is imported here: a model can belong to one
only if the user has imported it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from precheck.observe.job import InputError

_REGISTRIES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
Loss = Callable[[Any], torch.Tensor]


class Guest(torch.nn.Module):
    """The module `host` with `run` as its forward."""

    curable = True  # whether the host's own get_submodule understands the names of its modules

    def __init__(self, host: torch.nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__ |= {name: host.__dict__[name] for name in _REGISTRIES} | {"host": host, "run": run}  # bypasses torch's registration
        self.training = host.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["run"](*args, **kwargs)

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[torch.nn.Module]:  # torch 2.9 takes no arguments, later ones `remove_duplicate`
        """Includes the host, which has no name here, so that its state is restored too."""
        yield from super().modules(*args, **kwargs)
        yield self.__dict__["host"]


def received(model: torch.nn.Module, inputs: Any, loss: Loss | None) -> tuple[torch.nn.Module, Any, Loss | None]:
    """The model, inputs and loss to measure, from those that a user passed.

    A LightningModule without a `loss` is measured by its training_step, with the inputs as the batch. For DDP or FSDP, a copy of the wrapped model
    is measured, since the wrapper's buckets and shards are tied to the weights. For a model from Accelerate, its original forward is measured. Raises
    InputError for a model that cannot be measured in this way.
    """
    model = unwrapped(model)
    if loss is None and _steps(model):
        return Guest(model, _Step(model)), (inputs,), _own_loss
    return model, inputs, loss


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """A model without the wrappers of DDP, FSDP2 and Accelerate. A Keras model is wrapped to change its dtype policy with the precision."""
    if isinstance(model, DistributedDataParallel):
        model = copy.deepcopy(model.module)
    elif _sharded(model):
        from precheck.observe.models.sharded import gathered

        model = gathered(model)
    original = model.__dict__.get("_original_forward")
    if original is not None and "forward" in model.__dict__:
        return Guest(model, original)
    if of_keras(model):
        from precheck.observe.models.keras_models import KerasGuest

        return KerasGuest(model)
    return model


def named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules with the names that findings use. "" is the model, and its wrapper too."""
    if isinstance(root, Guest) or isinstance(root, DistributedDataParallel):
        yield "", root
        root = root.__dict__["host"] if isinstance(root, Guest) else root.module
        yield from named_modules(root)
    elif of_keras(root):
        from precheck.observe.models.keras_models import named_layers

        yield from named_layers(root)
    else:
        yield from root.named_modules()


def named_parameters(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The parameters with the names that findings use."""
    if isinstance(root, DistributedDataParallel):
        yield from named_parameters(root.module)
    elif of_keras(root):
        from precheck.observe.models.keras_models import named_weights

        yield from named_weights(root)
    else:
        yield from root.named_parameters()


def _sharded(model: torch.nn.Module) -> bool:
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and any(isinstance(parameter, tensors.DTensor) for parameter in model.parameters())


def of_keras(module: torch.nn.Module) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(module, getattr(getattr(keras, "layers", None), "Layer", ()))


def symbolic(args: tuple[Any, ...]) -> bool:
    """Whether a Keras model is only being built. Its layers are then called on symbolic tensors."""
    kind = getattr(sys.modules.get("keras"), "KerasTensor", None)
    return kind is not None and any(isinstance(each, kind) for each in args)


def _steps(model: torch.nn.Module) -> bool:
    """Whether it is a LightningModule that defines training_step."""
    kinds = [sys.modules[name].LightningModule for name in ("lightning.pytorch", "pytorch_lightning") if name in sys.modules]
    return any(isinstance(model, kind) and type(model).training_step is not kind.training_step for kind in kinds)


_WHY = "without a loss, precheck measures a LightningModule by its training_step, and inputs are its batch; pass loss=lambda out: ... for its forward"


class _Step:
    """Calls a LightningModule's training_step on a batch, without a Trainer."""

    def __init__(self, module: Any) -> None:
        if not module.automatic_optimization:
            raise InputError(
                f"{type(module).__name__} steps its optimizers by itself (automatic_optimization = False), which cannot be measured step by step; "
                "pass loss=lambda out: ... to measure its forward, or put precheck.watch() around trainer.fit"
            )
        self.module = module
        self.indexed = len(inspect.signature(module.training_step).parameters) > 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes a batch whole, or unpacked by the call: a tuple as arguments, a dict as keyword arguments."""
        batch = kwargs or (args[0] if len(args) == 1 else args)
        with _unlogged(self.module):
            try:
                return self.module.training_step(batch, 0) if self.indexed else self.module.training_step(batch)
            except Exception as error:
                if hasattr(error, "add_note"):  # from Python 3.11
                    error.add_note(_WHY)
                raise


@contextlib.contextmanager
def _unlogged(module: Any) -> Iterator[None]:
    own = {name: module.__dict__[name] for name in ("log", "log_dict") if name in module.__dict__}
    module.__dict__ |= {"log": lambda *args, **kwargs: None, "log_dict": lambda *args, **kwargs: None}
    try:
        yield
    finally:
        for name in ("log", "log_dict"):
            del module.__dict__[name]
        module.__dict__ |= own


def _own_loss(result: Any) -> torch.Tensor:
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"training_step returned {type(result).__name__}; it must return a loss, or a dict with one under 'loss'")
    return loss
