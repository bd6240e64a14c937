"""Measures the weight that a quantised linear layer really uses, by its results for unit vectors. Also records its inputs and results in a run."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

ROWS = 512
"""Unit vectors in one call."""


@dataclasses.dataclass(slots=True)
class InputAndResult:
    """A layer's first input and its result, as matrices."""

    given: torch.Tensor
    made: torch.Tensor


def effective(layer: torch.nn.Module, columns: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight (outputs by inputs) and bias, both float32, from the results of `layer` for zeros and for each unit vector.
    A unit vector is exact in any format under a scale of its own, so quantisation of inputs causes no error.
    """
    with torch.no_grad():
        bias = layer(torch.zeros(1, columns, dtype=dtype, device=device)).float()
        parts = []
        for start in range(0, columns, ROWS):
            many = min(ROWS, columns - start)
            unit = torch.zeros(many, columns, dtype=dtype, device=device)
            unit[torch.arange(many, device=device), torch.arange(start, start + many, device=device)] = 1
            parts.append(layer(unit).float() - bias)
    return torch.cat(parts).t(), bias.squeeze(0)


def passing(model: torch.nn.Module, names: list[str], inputs: Any) -> tuple[dict[str, InputAndResult], Any]:
    """The first input and result of each named layer in one run without gradients, and the model's result."""
    seen: dict[str, InputAndResult] = {}

    def hook(name: str) -> Any:
        def noted(_module: torch.nn.Module, given: tuple[Any, ...], made: Any) -> None:
            if name not in seen and given and isinstance(given[0], torch.Tensor) and isinstance(made, torch.Tensor):
                seen[name] = InputAndResult(given[0].detach().reshape(-1, given[0].shape[-1]), made.detach().reshape(-1, made.shape[-1]))

        return noted

    handles = [model.get_submodule(name).register_forward_hook(hook(name)) for name in names]
    try:
        with torch.no_grad():
            args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
            result = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return seen, result
