"""Healthy pairs from torch's op database: an operator as the reference, torch's own formulation of it in Python as the candidate."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST = 4096
"""Elements of a sample's tensor; the samples are small, and the judge makes larger ones of them."""


class Pair(NamedTuple):
    """A candidate, its reference, and the arguments of one call."""

    name: str
    candidate: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[Any, ...]
    gradients: bool  # whether the candidate has any: torch's prims have none


def operators() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """Entries of the database that `torch._refs` formulates too, by name."""
    import torch._refs
    import torch._refs.linalg
    import torch._refs.nn.functional
    import torch._refs.special
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for entry in op_db:
        place: Any = torch._refs
        for part in entry.name.split("."):
            place = getattr(place, part, None)
        if callable(place) and not entry.variant_test_name:
            found[entry.name] = entry, place
    return found


def pair(name: str, dtype: torch.dtype) -> Pair | None:
    """The first sample of that operator that the reference runs on and that has numbers to compare; None where there is none."""
    entry, formulation = operators_once()[name]
    if dtype not in entry.supported_dtypes("cpu"):
        return None
    torch.manual_seed(0)
    for sample in _samples(entry, dtype):
        inputs = (sample.input, *sample.args)
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        sizes = [each.numel() for each in tensors]
        if not isinstance(sample.input, torch.Tensor) or not sample.input.dim() or max(sizes) > LARGEST or not min(sizes):
            continue
        reference, candidate = functools.partial(_called, entry.op, sample.kwargs), functools.partial(_called, formulation, sample.kwargs)
        if _runs(reference, inputs) and _runs(candidate, inputs):
            plain = tuple(each.detach() if isinstance(each, torch.Tensor) else each for each in inputs)
            return Pair(f"{name}/{str(dtype).removeprefix('torch.')}", candidate, reference, plain, _differentiable(candidate, plain))
    return None


operators_once = functools.cache(operators)


def _samples(entry: Any, dtype: torch.dtype) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from entry.sample_inputs("cpu", dtype, requires_grad=False)


def _called(function: Callable[..., Any], keywords: dict[str, Any], *args: Any) -> Any:
    return function(*args, **keywords)


def _differentiable(function: Callable[..., Any], inputs: tuple[Any, ...]) -> bool:
    leaves = [each.clone().requires_grad_() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in inputs]
    try:
        found = function(*leaves)
        results = [each for each in (found if isinstance(found, tuple) else (found,)) if isinstance(each, torch.Tensor) and each.requires_grad]
        asked = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
        torch.autograd.grad(results, asked, [torch.ones_like(each) for each in results], allow_unused=True)
    except Exception:
        return False
    return True


def _runs(function: Callable[..., Any], inputs: tuple[Any, ...]) -> bool:
    try:
        state = torch.get_rng_state()
        found = function(*inputs)
        if not torch.equal(state, torch.get_rng_state()):
            return False
    except Exception:
        return False
    return isinstance(found, tuple) or (isinstance(found, torch.Tensor) and found.is_floating_point())
FAULTY = {
    **dict.fromkeys(("nn.functional.softplus", "nn.functional.celu", "nn.functional.selu", "nn.functional.elu"), "its gradient is NaN at 64"),
    "nn.functional.mish": "its gradient is NaN at 64", "sinc": "its gradient is NaN at 0", "special.log_ndtr": "its gradient is NaN far below 0",
    **dict.fromkeys(("lerp", "index_fill", "ravel"), "no gradient for a transposed input"), "sum_to_size": "no gradient at size 1",
    **dict.fromkeys(("to", "constant_pad_nd"), "no gradient"), "diagonal_scatter": "the gradient of what is written over",
    **dict.fromkeys(("tensor_split", "dsplit", "hsplit", "vsplit"), "raises below as many elements as pieces"), "chunk": "divides by zero at size 0",
    **dict.fromkeys(("nn.functional.group_norm", "view_copy"), "raises for a transposed input"),
    "nn.functional.pdist": "its gradient is NaN for one row", **dict.fromkeys(("xlogy", "special.xlog1py"), "its gradient is 0 at 0"),
    "zero_": "writes into its input, as the operator does", "empty_like": "has no content",
}
"""Formulations of torch's that are wrong for some input of the judge's, and how: each was looked at, and none is counted as healthy."""
