"""Makes the gradient of `prod` the same as in an unwatched run. Torch computes it in another way under any dispatch mode.

The gradient has two forms: the result divided by each factor, or the product of all other factors, which also works if a factor is zero. Torch uses
the second form if a factor is zero, and always under a dispatch mode (`isTensorSubclassLike` in its `FunctionsManual.cpp`). So a watched run would
round in other places than the user's. This module restores the first form where torch would have used it, for `torch.prod` and the method.
A name that was bound to `torch.prod` earlier is not followed.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from precheck.observe.shadow.torch_wrappers import Wrapped, Wrappers
from precheck.torch_internals import backward_node, without_modes

_SIGNED = 1 << 63
"""Torch shows a negative dimension of a node as an unsigned number from here on."""


class _Followed(Wrapped):
    """`prod` with a hook that corrects the gradient of each product."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.__wrapped__(*args, **kwargs)
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if node is not None and node.name() in ("ProdBackward0", "ProdBackward1"):
            node.register_hook(functools.partial(_gradient, *_along(node)))
        return result


PRODUCT: Wrappers = {"prod": _Followed}
"""The function and the method of torch."""


def _along(node: Any) -> tuple[int, bool]:
    """The dimension of a product, and whether the result can be broadcast as it is. A product of all elements has no dimension and can."""
    if node.name() == "ProdBackward0":
        return 0, True
    dim: int = node._saved_dim
    return dim - 2 * _SIGNED if dim >= _SIGNED else dim, node._saved_keepdim


def _gradient(
    dim: int, kept: bool, inputs: tuple[torch.Tensor | None, ...], outputs: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor] | None:
    """The gradient by division, as in torch's `prod_backward`. None, to keep torch's own, if a factor is zero."""
    node: Any = backward_node()
    gradient = outputs[0]
    if gradient is None or inputs[0] is None or node is None:
        return None
    factors, result = node._saved_self, node._saved_result
    with without_modes(), torch.no_grad():
        if factors.dim() == 0 or factors.is_meta or bool((factors == 0).any()):
            return None
    factors = factors.to(gradient.dtype)
    if not kept:
        gradient, result = gradient.unsqueeze(dim), result.unsqueeze(dim)
    return ((gradient * (result / factors).conj()).to(inputs[0].dtype),)
