"""A `Job` holds what a user asks to have run. Checks of its parts raise an `InputError`, which says what to change."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from precheck.observe.containers import made, named_items, tensors
from precheck.words import described, dtype_name

Depth = Literal["ops", "boundaries"]
"""What a run records: every op beside float32, or only modules, gradients and weights."""
EXAMPLE = "lambda params: torch.optim.AdamW(params, lr=1e-3)"


class InputError(ValueError):
    """An argument cannot be used. The message names it, and says what is accepted and what to type."""


def check_arguments(model: Any, inputs: Any, loss: Any, steps: Any, seed: Any) -> None:
    """Raises InputError for arguments of another kind than those that a measurement takes."""
    if not callable(model):
        raise InputError(f"model is {described(model)}; pass a torch.nn.Module, or a function of tensors")
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise InputError(f"model is the class {model.__name__}; pass an instance, as in {model.__name__}(...)")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps={steps!r}; pass a whole number from 1")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed={seed!r}; pass a whole number")
    if loss is not None and (not callable(loss) or isinstance(loss, type)):
        raise InputError(f"loss is {described(loss)}; pass a function of the model's output, as in loss=lambda out: out.mean()")
    if isinstance(model, torch.nn.Module) and isinstance(inputs, (torch.utils.data.DataLoader, torch.utils.data.Dataset)):
        batches = "loader" if isinstance(inputs, torch.utils.data.DataLoader) else "DataLoader(dataset, batch_size=8)"
        raise InputError(f"inputs is {described(inputs)}, and the model is called with it; pass one batch, as in next(iter({batches}))")


def check_inputs(model: torch.nn.Module, inputs: Any) -> None:
    """Raises InputError for meta tensors, which have no numbers, and for iterators: one run uses them up, and a measurement needs several. Also if
    all tensors are empty."""
    given_tensors = [each for _, each in tensors(inputs)]
    if given_tensors and not any(each.numel() for each in given_tensors):
        shape = tuple(given_tensors[0].shape)
        raise InputError(f"inputs has no elements (shape {shape}), so there is nothing to compare; pass a batch of one row or more")
    for name, each in named(model, inputs):
        if isinstance(each, torch.Tensor) and each.is_meta:
            given = name.startswith("inputs")
            real = "pass a real one, as in torch.randn(shape)" if given else 'move the model with .to_empty(device="cpu"), and load its weights'
            raise InputError(f"{name} is a tensor on the meta device, which has a shape but no numbers to compare; {real}")
        if isinstance(each, Iterator):
            raise InputError(
                f"{name} is {described(each)}, which is empty once the model has gone through it, and a measurement runs the model several "
                "times; pass what can be gone through again, as in list(...)"
            )


def check_loss(loss: Any) -> None:
    """Raises InputError if a loss is not a scalar tensor."""
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"loss returned {type(loss).__name__}, not a tensor; it must return a scalar tensor, as in loss=lambda out: out.mean()")
    if loss.numel() != 1:
        raise InputError(f"loss returned a tensor of shape {tuple(loss.shape)}; it must be a scalar, so reduce it: .mean() or .sum()")


def detached_loss(loss: torch.Tensor, *, trains: bool) -> NoReturn:
    """Raises InputError for a loss that has no gradient. `trains`: whether any parameter requires one."""
    why = "something on the way to it is detached, or computed under torch.no_grad()"
    if not (loss.is_floating_point() or loss.is_complex()):
        why = f"it is a tensor of {loss.dtype}, which has none"
    elif not trains:
        why = "none of them does: requires_grad_(True)"
    raise InputError(
        f"the loss does not depend on any parameter that requires a gradient ({why}); return one that does, as in loss=lambda out: "
        "out.float().mean(), or leave the loss and the optimizer out to compare the forward pass alone"
    )


def made_optimizer(make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer], parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that the user's function makes. Raises InputError if it is none, holds other parameters, or has nothing to train."""
    if not parameters:
        raise InputError(
            "no parameter of the model requires a gradient, so an optimizer has nothing to step; leave the optimizer and steps out, or train some: "
            "requires_grad_(True)"
        )
    optimizer = made(make, list(parameters))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer returned {type(optimizer).__name__}; it must return a torch.optim.Optimizer, as in optimizer={EXAMPLE}")
    own = {id(param) for param in parameters}
    held = [param for group in optimizer.param_groups for param in group["params"]]
    foreign = [param for param in held if id(param) not in own and param.requires_grad]
    if foreign:
        raise InputError(
            f"the optimizer holds {len(foreign)} of {len(held)} parameters that are not the ones it was given (first: shape "
            f"{tuple(foreign[0].shape)}); build it from its argument, as in optimizer={EXAMPLE}"
        )
    return optimizer


def nothing_to_compare(result: Any) -> NoReturn:
    """Raises InputError for a model that returned `result`, in which nothing could be recorded."""
    found = ", ".join(dict.fromkeys(f"a {'nested ' * each.is_nested}tensor of {dtype_name(each.dtype)}" for _, each in tensors(result)))
    raise InputError(
        f"the model returned {found or type(result).__name__}, in which there is no dense floating-point tensor to compare, and no module in "
        "it returns one; return what is computed (tensors may be in tuples, lists, dicts and dataclasses), or pass loss=lambda out: ..."
        + ("; of a nested tensor return its .values()" if "nested" in found else "")
        + ("; numbers in float8 are codes: return what they stand for" if "float8" in found else "")
    )


def named(model: torch.nn.Module, inputs: Any) -> Iterator[tuple[str, Any]]:
    """Each input, parameter and buffer of a run, with its name for error messages."""
    found = ((f"inputs{path}", each) for path, each in named_items(inputs))
    return itertools.chain(found, model.named_parameters(), model.named_buffers())


@dataclasses.dataclass(slots=True)
class Job:
    """What the user asked to have measured."""

    model: torch.nn.Module
    inputs: Any
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None
    steps: int = 1
    seed: int = 0
    sampled: frozenset[str] = frozenset()  # keys of records that may be sampled: those with evenly spread numbers when the golden was recorded

    @property
    def device(self) -> str:
        own = itertools.chain(self.model.parameters(), self.model.buffers(), (tensor for _, tensor in tensors(self.inputs)))
        return next((tensor.device.type for tensor in own), "cpu")


@contextlib.contextmanager
def no_steps() -> Iterator[None]:
    """A backward pass in which a hook of a weight must step no optimizer: each run would change the weights of the next."""

    def refused(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        raise InputError(
            f"a hook of a weight steps {type(optimizer).__name__} within the backward pass, so each run would change the weights of the next; "
            "measure the model without this hook, or put precheck.watch() around the training loop"
        )

    handle = register_optimizer_step_pre_hook(refused)
    try:
        yield
    finally:
        handle.remove()
