"""`python suites/planted/mutations.py`: lowers one value of a network at a time, and asks `measure` about each change that does harm.

Nobody chose these bugs, so no rule was written with one of them in mind. A change is one of these: a value that is float32 in the low run is cast
low, where it is assigned or returned (`cast`) or where a sum, a norm or a function reads it (`read`); a `.float()` or `.to(torch.float32)` is left
out (`float`); `autocast(enabled=False)` is left on (`autocast`); a factory that asks for float32 is asked for the low format (`factory`). A change
does harm if the function that has it, or a result of the network, is `harm.LEAST` times as far off as without it (`harm`).
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import random
import sys
import warnings
from collections.abc import Callable, Iterator

import torch
from harm import LEAST, RESULTS, off, parts, reference
from networks import Network, names, network
from one_case import arguments
from training_steps import Steps

import precheck

LOW = {"bf16-mixed": "torch.bfloat16", "16-mixed": "torch.float16", "bf16-true": "torch.bfloat16"}
READING = frozenset({
    "cos", "cumprod", "cumsum", "exp", "log", "log_softmax", "logsumexp", "mean", "norm", "pow", "prod", "rsqrt", "sigmoid", "sin", "softmax", "sqrt",
    "square", "std", "sum", "var",
})  # fmt: skip
"""Methods that read a value which may be cast low."""
PASSED_OVER = frozenset({"make", "batch", "optimizer", "step", "__init__"})
"""Functions that are no part of the network's arithmetic."""
NOTING = """
import torch as _torch
_seen = {}
def _noted(place, value):
    _seen.setdefault(place, set()).add(str(value.dtype) if isinstance(value, _torch.Tensor) and value.numel() > 1 else "")
    return value
"""
AFTER = "from __future__ import annotations\n"


@dataclasses.dataclass(frozen=True)
class Change:
    """One change of a network's text. `old` is the expression that is replaced by `new`, as offsets into the text in UTF-8."""

    name: str
    kind: str
    function: str  # as `harm.parts` takes it
    lines: range  # of the expression
    old: tuple[int, int]
    new: str

    def applied(self, text: str) -> str:
        raw = text.encode()
        return (raw[: self.old[0]] + self.new.encode() + raw[self.old[1] :]).decode()


@dataclasses.dataclass(frozen=True)
class Noted:
    """The network with a note of the format of each value that may be cast."""

    name: str
    text: str

    def applied(self, _text: str) -> str:
        return self.text


def changes(text: str, low: str) -> Iterator[Change]:
    """All changes of the text. Whether a value is float32 is for the run to say (`formats`)."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))

    def at(node: ast.AST) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def held(node: ast.AST) -> str:
        begin, end = at(node)
        return text.encode()[begin:end].decode()

    for function, code in _functions(ast.parse(text), ""):
        for kind, node, new in _kinds(code, held, low):
            name = f"{kind}-{node.lineno}-{node.col_offset}-{node.end_col_offset}"
            yield Change(name, kind, function, range(node.lineno, node.end_lineno + 1), at(node), new or f"({held(node)}).to({low})")


def _kinds(code: ast.FunctionDef, held: Callable[[ast.AST], str], low: str) -> Iterator[tuple[str, ast.expr, str]]:
    """The changes of a function: the kind, the expression, and what replaces it; "": a cast of it."""
    for node in ast.walk(code):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and not isinstance(node.value, ast.Name):
            yield "cast", node.value, ""
        elif isinstance(node, (ast.AugAssign, ast.Return)) and node.value is not None and not isinstance(node.value, (ast.Tuple, ast.Constant)):
            yield "cast", node.value, ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if (node.func.attr == "float" and not node.args) or (node.func.attr == "to" and _is_float32(node)):
                yield "float", node, f"({held(node.func.value)})"
            elif node.func.attr in READING and not (isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "F", "functional")):
                yield "read", node.func.value, ""
        if isinstance(node, ast.keyword) and node.arg == "enabled" and getattr(node.value, "value", None) is False:
            yield "autocast", node.value, "True"
        elif isinstance(node, ast.keyword) and node.arg == "dtype" and getattr(node.value, "attr", "") in ("float32", "float64"):
            yield "factory", node.value, low


def _is_float32(cast: ast.Call) -> bool:
    """Whether a call of `to` asks for float32 and nothing else."""
    asked = [*cast.args, *(each.value for each in cast.keywords)]
    return len(asked) == 1 and getattr(asked[0], "attr", "") == "float32"


def _functions(tree: ast.AST, above: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{above}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and node.name not in PASSED_OVER:
            yield f"function:{above}{node.name}", node


def wide(of: Network, found: list[Change], precision: str) -> list[Change]:
    """The changes whose value is float32 wherever the run comes by, and those that change no value."""
    raw, inserted = of.text.encode(), []
    for place, change in enumerate(found):
        if change.kind in ("cast", "read"):
            inserted += [(change.old[0], 1, f"_noted({place}, "), (change.old[1], 0, ")")]
    for offset, _, added in sorted(inserted, reverse=True):
        raw = raw[:offset] + added.encode() + raw[offset:]
    head, after, rest = raw.decode().rpartition(AFTER)
    noting = head + after + NOTING + rest
    code = of.code(Noted("noting", noting))  # type: ignore[arg-type]
    Steps(code, precision).run()
    return [each for place, each in enumerate(found) if each.kind not in ("cast", "read") or code._seen.get(place) == {"torch.float32"}]


def harm(of: Network, change: Change, precision: str) -> float:
    """How many times the error of the healthy network, in the function that has the change or in the worst of the results."""
    exact, healthy = reference(of, precision, change.function), parts(of.code(), precision, change.function)
    changed = parts(of.code(change), precision, change.function)  # type: ignore[arg-type]
    least = precheck.PRECISIONS[precision].roundoff
    shown = [name for name in (change.function, *RESULTS) if name in exact]
    return max(off(changed.get(name), exact[name]) / max(off(healthy[name], exact[name]), least) for name in shown)


def told(of: Network, change: Change | None, precision: str) -> tuple[bool, bool]:
    """Whether `measure` finds an error, and whether the first one is on a changed line. None: the network as it is."""
    report = precheck.measure(**arguments(of.code(change)), precision=precision)  # type: ignore[arg-type]
    line = report.errors[0].source.rpartition(":")[2] if report.errors else ""
    return bool(report.errors), change is not None and line.isdigit() and int(line) in change.lines


def main() -> int:
    """0, whatever is found."""
    parser = argparse.ArgumentParser(prog="python suites/planted/mutations.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="networks (default: all)")
    parser.add_argument("--precision", default="bf16-mixed", choices=sorted(LOW))
    parser.add_argument("--most", type=int, default=12, help="changes of each network, drawn at random (default: 12)")
    parser.add_argument("--seed", default="0")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tried = harmful = found = placed = 0
    for name in asked.names or names():
        of = network(name)
        if asked.precision not in of.precisions or hasattr(of.code(), "step"):
            continue  # `measure` is not asked about a loop of the network's own
        drawn = wide(of, list(changes(of.text, LOW[asked.precision])), asked.precision)
        random.Random(f"{asked.seed} {name} {asked.precision}").shuffle(drawn)
        for change in drawn[: asked.most]:
            tried += 1
            try:
                figure = harm(of, change, asked.precision)
            except Exception as error:  # the changed code may not run: then nobody would ship it
                print(f"{name} {change.name}: does not run ({type(error).__name__})", flush=True)
                continue
            if figure < LEAST:
                continue
            harmful += 1
            error, at = told(of, change, asked.precision)
            found, placed = found + error, placed + at
            text = change.applied(of.text).splitlines()[change.lines[0] - 1].strip()
            print(f"{name} {change.name}: {figure:.1f} times, {'on its line' if at else 'found' if error else 'MISSED'}: {text}", flush=True)
    print(f"{tried} changes, {harmful} do harm; found {found}, on the line {placed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
