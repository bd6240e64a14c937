"""A few steps of training under a precision, as a user writes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from fieldcase import Case

STEPS = 3
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors in another dtype, in tuples, lists and dicts too."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(dtype) if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {key: cast(value, dtype) for key, value in inputs.items()}
    return type(inputs)(cast(value, dtype) for value in inputs) if isinstance(inputs, (tuple, list)) else inputs


def trained(case: Case, precision: str, around: Callable[[torch.nn.Module], AbstractContextManager[Any]] | None = None) -> dict[str, torch.Tensor]:
    """All that the run leaves: losses, weights, buffers, gradients and the state of torch's random numbers.

    A case without an optimizer has AdamW, except under bf16-true: AdamW on bfloat16 weights loses updates, which is the loop's fault, not the case's.
    """
    made = case.made()
    model, inputs = made.model.train(), made.inputs
    if precision == "bf16-true":
        model, inputs = model.to(torch.bfloat16), cast(inputs, torch.bfloat16)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    make = made.optimizer or (None if precision == "bf16-true" else lambda given: torch.optim.AdamW(given, lr=1e-3))
    optimizer = make(parameters) if make and parameters else None
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "16-mixed")
    low = AUTOCAST.get(precision)
    left: dict[str, torch.Tensor] = {}
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with around(model) if around else nullcontext():
        for step in range(STEPS):
            with torch.autocast("cpu", dtype=low) if low else nullcontext():
                loss = made.loss(model(*inputs))
            left[f"loss {step}"] = loss.detach().clone()
            if loss.requires_grad:
                scaler.scale(loss).backward()
            if optimizer is not None:
                scaler.step(optimizer)
                scaler.update()
            if step < STEPS - 1:
                model.zero_grad()
    left |= {f"weight {name}": value.detach().clone() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    left |= {f"gradient {name}": value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    return left | {"random state": torch.get_rng_state()}


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Names of tensors that are not the same bit for bit."""
    return sorted(name for name in one.keys() | other.keys() if name not in one or name not in other or not _same(one[name], other[name]))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = [tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*bits)
