"""Calls of ops as torch's own op database makes them, on which the registry's rows are held against torch."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precheck import ops

SAMPLES = 6
"""Inputs of each entry of the database that are run."""
KEPT = 4
"""Calls of each overload that are kept."""
COMPOSED = ("nn.functional.", "linalg.", "special.", "select", "unfold")
"""Entries that are made of other ops, or have them for derivatives, by the beginnings of their names."""
LARGEST = 1 << 13
"""Elements of all operands of a call that is kept."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an op on float64 tensors. `operands` are its floating-point tensors in order, those in lists among them."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def operands(self) -> list[torch.Tensor]:
        return [value for value in _flat((self.args, tuple(self.kwargs.values()))) if floating(value)]

    def with_operands(self, operands: Sequence[torch.Tensor]) -> Call:
        """The same call on other operands."""
        left = iter(operands)
        args = _swapped(self.args, left)
        return Call(self.func, args, dict(zip(self.kwargs, _swapped(tuple(self.kwargs.values()), left), strict=True)))

    def __call__(self) -> list[torch.Tensor]:
        """Its floating-point results, and what it wrote, on copies of its operands and from one seed. Fewer than were made if an op gives none."""
        torch.default_generator.manual_seed(0)
        copies = self.with_operands([operand.clone() for operand in self.operands])
        result = self.func(*copies.args, **copies.kwargs)
        made = [value for value in _flat(result) if isinstance(value, torch.Tensor)]
        return [value for value in (made or copies.operands[:1]) if floating(value)]

    def raw(self) -> list[Any]:
        """All that it returns."""
        torch.default_generator.manual_seed(0)
        copies = self.with_operands([operand.clone() for operand in self.operands])
        return _flat(copies.func(*copies.args, **copies.kwargs))


class Calls(dict[str, list[Call]]):
    """Calls by the op's name."""

    def __repr__(self) -> str:
        return f"<calls of {len(self)} ops>"


def floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in _flat(item)]
    return [value]


def _swapped(value: Any, left: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, (list, tuple)):
        parts = [_swapped(part, left) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return next(left) if floating(value) else value


class _Caught(TorchDispatchMode):
    """Keeps calls of the ops that the registry has rows of."""

    def __init__(self, found: Calls) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        library, _, packet = func._schema.name.rpartition("::")
        name = ops.base_name(packet)
        rounds = func._overloadname.endswith("_mode")  # a quotient that is rounded is a step
        if library == "aten" and name in ops.REGISTRY and not packet.startswith("_foreach_") and not rounds:
            self._keep(name, Call(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _keep(self, name: str, call: Call) -> None:
        known = self.found.setdefault(name, [])
        alike = [each for each in known if each.func is call.func]
        usual = [operand for operand in call.operands if operand.dtype is torch.float64 and operand.layout is torch.strided]
        telling = usual or not ops.REGISTRY[name].law
        sizes = [operand.numel() for operand in usual]
        plain = len(usual) == len(call.operands) and "out" not in call.kwargs and all(sizes) and sum(sizes) <= LARGEST
        if telling and plain and len(alike) < KEPT:
            known.append(call.with_operands([operand.detach().clone() for operand in usual]))


def _more() -> dict[str, list[tuple[Any, ...]]]:
    """Calls of what the database takes apart into other ops, or does not have."""
    aten, (x, y) = torch.ops.aten, torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    query = torch.randn(3, 1, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()
    return {
        **{name: [(getattr(aten, name).Tensor, x, y)] for name in ("multiply", "divide", "true_divide")},
        "outer": [(aten.outer.default, x[0], y[0])],
        **{name: [(getattr(aten, name).default, x)] for name in ("square", "nanmean", "contiguous", "isfinite")},
        "_to_copy": [(aten._to_copy.default, x)],
        "repeat_interleave": [(aten.repeat_interleave.self_int, x, 2)],
        "slice_copy": [(aten.slice_copy.Tensor, x, 0, 1, 3)],
        "select_copy": [(aten.select_copy.int, x, 0, 1)],
        "im2col": [(aten.im2col.default, x[None, None], [2, 2], [1, 1], [0, 0], [1, 1])],
        "col2im": [(aten.col2im.default, torch.ones(1, 4, 6, dtype=torch.float64), [3, 4], [2, 2], [1, 1], [0, 0], [1, 1])],
        "_index_put_impl": [(aten._index_put_impl.default, x, [torch.tensor([0, 2])], y[:2])],
        "isclose": [(aten.isclose.default, x, y)],
        "searchsorted": [(aten.searchsorted.Tensor, x[0].sort().values, y[0])],
        "l1_loss": [(aten.l1_loss.default, x, y)],
        "native_dropout": [(aten.native_dropout.default, x, 0.5, True)],
        "rand_like": [(aten.rand_like.default, x)],
        "random": [(aten.random.default, x)],
        "poisson": [(aten.poisson.default, x.abs())],
        "binomial": [(aten.binomial.default, torch.full_like(x, 5), y.sigmoid())],
        "randperm": [(aten.randperm.default, 9)],
        "normal_functional": [(aten.normal_functional.default, x)],
        "slice_scatter": [(aten.slice_scatter.default, x, y[:, 1:3], 1, 1, 3)],
        "zero": [(aten.zero.default, x)],
        "_ctc_loss": [(aten._ctc_loss.Tensor, torch.zeros(6, 2, 4, dtype=torch.float64).log_softmax(-1), torch.ones(2, 2, dtype=torch.long),
                       torch.tensor([6, 6]), torch.tensor([2, 1]))],
        "_scaled_dot_product_flash_attention_for_cpu": [(aten._scaled_dot_product_flash_attention_for_cpu.default, *query)],
    }  # fmt: skip


def _run(entry: Any, found: Calls) -> None:
    samples = itertools.islice(entry.sample_inputs_func(entry, "cpu", torch.float64, entry.supports_autograd), SAMPLES)
    for sample in samples:
        with contextlib.suppress(RuntimeError, TypeError, NotImplementedError), _Caught(found):
            results = [each for each in _flat(entry(sample.input, *sample.args, **sample.kwargs)) if floating(each) and each.requires_grad]
            if results:
                torch.autograd.backward([each.sum() for each in results])


def known() -> Calls:
    """Calls of the registry's ops on float64, by name, as the op database and its derivatives make them."""
    from torch.testing._internal.common_methods_invocations import op_db

    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True  # the import forbids it to the whole process

    found = Calls()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in op_db:
            wanted = entry.name.rpartition(".")[2] in ops.REGISTRY or entry.name.startswith(COMPOSED)
            if wanted and entry.supports_dtype(torch.float64, "cpu"):
                _run(entry, found)
    for name, made in _more().items():
        found.setdefault(name, []).extend(Call(func, tuple(args), {}) for func, *args in made)
    return found
