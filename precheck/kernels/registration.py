"""Checks an operator of torch.library: its schema, derivative and fake kernel must agree with its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from precheck.kernels.bench import Bench
from precheck.kernels.trial_result import Fault
from precheck.kernels.trials import Trial
from precheck.torch_internals import CustomOpDef, OpOverload, OpOverloadPacket

WORDS = {
    "test_schema": "its schema does not say what it does: what it writes into, or what its result shares memory with",
    "test_autograd_registration": "its derivative is not registered where autograd looks for it",
    "test_faketensor": "its fake kernel gives other shapes, strides or formats than the kernel",
    "test_aot_dispatch_dynamic": "traced by torch.compile it gives other results or gradients, or cannot be traced",
}
"""Tests of `torch.library.opcheck`, in its order, and the meaning of a failure."""
_WITHOUT_FAKE = ("test_schema", "test_autograd_registration")


def operator(function: Any) -> bool:
    """Whether it is an operator of torch.library: made by `custom_op`, or found in `torch.ops`."""
    return isinstance(function, (OpOverload, OpOverloadPacket, CustomOpDef))


def checked(bench: Bench) -> tuple[Fault | None, str]:
    """A fault in a candidate's registration, and a warning, if there is one. Nothing for a candidate that is no operator.

    An operator without a fake kernel is right wherever nothing is compiled, so that is only a warning. A wrong declaration is a fault.
    """
    candidate: Any = bench.candidate
    if not operator(candidate):
        return None, ""
    args, kwargs = _arguments(bench)
    tests = tuple(WORDS) if _has_fake(candidate, args, kwargs) else _WITHOUT_FAKE
    found = torch.library.opcheck(candidate, args, kwargs, test_utils=tests, raise_exception=False)
    name, fault = getattr(candidate, "_qualname", str(candidate)), None
    for test, result in found.items():
        if isinstance(result, Exception) and fault is None:
            said = (str(result).strip() or type(result).__name__).splitlines()[0][:200]
            fault = Fault("registered", "output", f"{name}: {WORDS[test]} ({test} of torch.library.opcheck: {said})")
    return fault, "" if "test_faketensor" in tests else f"{name} has no fake kernel: torch.compile and torch.export cannot trace it"


def _arguments(bench: Bench) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example's arguments. Those whose gradient is compared require a gradient."""
    made = bench.make(Trial(given=True))
    wanted = bench.wishes.gradients
    leaves = [each.requires_grad_(wanted and leaf.wanted) for leaf, each in zip(bench.example.leaves, made.values, strict=True)]
    arguments = bench.example.filled(leaves)
    if isinstance(arguments, Mapping):
        return (), dict(arguments)
    return (arguments if isinstance(arguments, tuple) else (arguments,)), {}


def _has_fake(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it runs on tensors with shapes and no contents. If it fails there, it has a fake kernel, unless the error says that there is none."""
    try:
        function(*(_meta(each) for each in args), **{name: _meta(each) for name, each in kwargs.items()})
    except NotImplementedError:
        return False
    except Exception as error:
        return "no fake impl" not in str(error)  # `custom_op` registers this if nobody else did
    return True


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("meta")
    return type(value)(_meta(each) for each in value) if isinstance(value, (list, tuple)) else value

