"""Makes the gradient of `prod` the same as in an unwatched run. Torch computes it in another way under any dispatch mode.

The gradient has two forms: the result divided by each factor, or the product of all other factors, which also works if a factor is zero. Torch uses
the second form if a factor is zero, and always under a dispatch mode (`isTensorSubclassLike` in its `FunctionsManual.cpp`). So a watched run would
round in other places than the user's. This module restores the first form where torch would have used it, for `torch.prod` and the method.
A name that was bound to `torch.prod` earlier is not followed.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch

from precheck.observe.shadow.python_numbers import _Wrapped
from precheck.torch_internals import backward_node, script_builtin, without_modes

_lock = threading.Lock()
_watching: list[None] = []  # one entry for each watched block
_SIGNED = 1 << 63
"""Torch shows a negative dimension of a node as an unsigned number from here on."""


class _Followed(_Wrapped):
    """`prod` with a hook that corrects the gradient of each product."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.__wrapped__(*args, **kwargs)
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if node is not None and node.name() in ("ProdBackward0", "ProdBackward1"):
            node.register_hook(functools.partial(_gradient, *_along(node)))
        return result


@contextlib.contextmanager
def usual() -> Iterator[None]:
    """Inside, gradients of `prod` are those of an unwatched run. May be nested, and used from any thread."""
    with _lock:
        _watching.append(None)
        if len(_watching) == 1:
            function = _Followed(torch.prod)
            script_builtin(function, function.__wrapped__)
            torch.prod, torch.Tensor.prod = function, _Followed(torch.Tensor.prod)  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _lock:
            _watching.pop()
            if not _watching:
                _restored()


def _restored() -> None:
    if isinstance(torch.prod, _Followed):  # else other code has wrapped it
        function = torch.prod
        torch.prod = function.__wrapped__
        script_builtin(function, None)
    if isinstance(vars(torch.Tensor).get("prod"), _Followed):  # inherited from torch's own base class
        del torch.Tensor.prod


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
