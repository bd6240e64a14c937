"""Finds the first decision of compiled code that comes out otherwise than with eager code's roundings: a comparison, the place of the largest, a
rounding to whole numbers.

Inside a fused kernel nobody sees a decision: its result is used where it is made. So the code is compiled twice more, with and without
`emulate_precision_casts`, and both times every decision is a result of the graph too. A kernel stores it then, and computes the same. Both get the
same inputs and random numbers. The first decision that differs, in the order of the user's code, is the one that the rounding changed: all before
it agree.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from precheck.observe.shadow.places.source import shortened
from precheck.ops import STEPS
from precheck.torch_internals import inductor
from precheck.words import counted

_FILE = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The result of one decision. `op` is its name in the user's code."""

    op: str
    line: str
    result: torch.Tensor


def first_changed(run: Callable[[Callable[..., Any]], object], option: str) -> str:
    """In words, the first decision that the option changes, or "" if none is. `run` runs the model, compiled with the backend that it is given."""
    without, with_ = (_decisions(run, {option: each}) for each in (False, True))
    for here, there in zip(without, with_, strict=False):
        if here.result.shape != there.result.shape:
            return ""
        apart = int((here.result != there.result).sum())
        if apart:
            where = f" at {here.line}" if here.line else ""
            return f"{here.op}{where} decides otherwise for {apart} of {counted(here.result.numel(), 'element')}"
    return ""


def _decisions(run: Callable[[Callable[..., Any]], object], options: dict[str, bool]) -> list[Decision]:
    found: list[Decision] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        nodes = list(_nodes(graph))
        last = next(node for node in graph.graph.nodes if node.op == "output")
        last.args = ((*last.args[0], *(node for node, _ in nodes)),)
        graph.recompile()
        compiled = inductor().compile(graph, inputs, options=options)
        told = [(op, _line(node)) for node, op in nodes]

        def called(*args: Any) -> Any:
            results = compiled(*args)
            count = len(results) - len(told)
            found.extend(Decision(*each, result.detach().clone()) for each, result in zip(told, results[count:], strict=True))
            return results[:count]

        return called

    run(backend)
    return found


def _nodes(graph: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, str]]:
    """The nodes whose results are decisions among floating-point numbers, each with its name: those that make truth values or whole numbers of these,
    and step functions."""
    for node in graph.graph.nodes:
        made, source = _value(node), node
        if not isinstance(made, torch.Tensor) or node.op not in ("call_function", "call_method"):
            continue
        if _name(node) == "getitem" and node.args and isinstance(node.args[0], torch.fx.Node) and isinstance(_value(node.args[0]), tuple):
            source = node.args[0]  # one of several results, as of max along an axis
        read = [_value(each) for each in source.all_input_nodes]
        floats = any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in read)
        whole = not made.is_floating_point() and not made.is_complex()
        if floats and (_name(source) in STEPS if not whole else _name(source) not in ("to", "long", "int", "size")):
            yield node, _name(source)


def _value(node: torch.fx.Node) -> Any:
    return node.meta.get("example_value")


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _line(node: torch.fx.Node) -> str:
    """The user's line, the innermost outside of torch."""
    places = [f"{file}:{line}" for file, line in _FILE.findall(node.meta.get("stack_trace") or "") if not file.startswith(_TORCH)]
    return shortened(places[-1]) if places else ""
