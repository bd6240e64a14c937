"""`python suites/planted/mutations.py`: lowers one value of a network at a time, and asks `measure` about each change that does harm.

Nobody chose these bugs, so no rule was written with one of them in mind. A change is one of these: a value that is float32 in the low run is cast
low, a `.float()` is left out, an eps is too small, a loss is computed by a formula that loses digits, and so on: usual_mistakes.py has all kinds. A
change does harm if the function that has it, or a result of the network, is `harm.LEAST` times as far off as without it (`harm`). Where it does as
much harm in float32, it is no bug of low precision, and is left out (`float32_harm`).
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import itertools
import json
import random
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from harm import LEAST, RESULTS, Parts, off, parts, reference
from networks import Network, names, network
from one_case import arguments
from torch.overrides import TorchFunctionMode
from training_steps import Steps
from usual_mistakes import BEFORE_THE_RUN, MISTAKES

import precheck

LOW = {"bf16-mixed": "torch.bfloat16", "16-mixed": "torch.float16", "bf16-true": "torch.bfloat16"}
PASSED_OVER = frozenset({"make", "batch", "optimizer", "step"})
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
    wide: bool = False  # only where the value is float32

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

    tree = ast.parse(text)
    constants = [("", each) for each in tree.body if isinstance(each, ast.Assign)]
    for function, code in [*_functions(tree, ""), *constants]:
        kinds = BEFORE_THE_RUN if getattr(code, "name", "__init__") == "__init__" else MISTAKES
        for node, kind in itertools.product(ast.walk(code), kinds):
            for number, place in enumerate(MISTAKES[kind](node, held, low)):
                old = place.node
                name = "-".join(map(str, [kind, old.lineno, old.col_offset, old.end_col_offset, *[number][:number]]))
                yield Change(name, kind, function, place.lines or range(old.lineno, old.end_lineno + 1), at(old), place.new, place.wide)


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
        if change.wide:
            begin, end = change.old
            inserted += [(begin, 1, begin - end, f"_noted({place}, "), (end, 0, 0, ")")]
    for offset, *_, added in sorted(inserted, reverse=True):  # of those that begin together the longest comes last, and so stands outermost
        raw = raw[:offset] + added.encode() + raw[offset:]
    head, after, rest = raw.decode().rpartition(AFTER)
    noting = head + after + NOTING + rest
    code = of.code(Noted("noting", noting))  # type: ignore[arg-type]
    Steps(code, precision).run()
    return [each for place, each in enumerate(found) if not each.wide or code._seen.get(place) == {"torch.float32"}]


def harm(of: Network, change: Change, precision: str) -> float:
    """How many times the error of the healthy network, in the function that has the change or in the worst of the results."""
    return _times(of, change, precision, parts(of.code(change), precision, change.function), precision)  # type: ignore[arg-type]


def float32_harm(of: Network, change: Change, precision: str) -> float:
    """The same where the changed network computes all in float32."""
    code = of.code(change)  # type: ignore[arg-type]
    with Raised(code):
        changed = parts(code, "32-true", change.function)
    return _times(of, change, "32-true", changed, precision)


def _times(of: Network, change: Change, kind: str, changed: Parts, precision: str) -> float:
    exact, exactly = reference(of, precision, change.function), reference(of, kind, change.function)
    healthy, least = parts(of.code(), precision, change.function), precheck.PRECISIONS[precision].roundoff
    shown = [name for name in (change.function, *RESULTS) if name in exact]
    return max(off(changed.get(name), exactly[name]) / max(off(healthy[name], exact[name]), least) for name in shown)


class Raised(TorchFunctionMode):
    """float32 wherever code names a low format, but not while the model is made: `measure` is given the model as it is."""

    def __init__(self, code: ModuleType) -> None:
        super().__init__()
        self.made, make = False, code.make

        def making() -> torch.nn.Module:
            self.made = False
            model: torch.nn.Module = make()
            self.made = True
            return model

        code.make = making  # type: ignore[attr-defined]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.made:
            return func(*args, **(kwargs or {}))

        def raised(value: Any) -> Any:
            return torch.float32 if value is torch.bfloat16 or value is torch.float16 else value

        return func(*map(raised, args), **{key: raised(value) for key, value in (kwargs or {}).items()})


def told(of: Network, change: Change | None, precision: str) -> dict[str, Any]:
    """Whether `measure` finds an error (`found`), and whether the first one is on a changed line (`at`) or names one in its words (`named`).
    None: the network as it is."""
    report = precheck.measure(**arguments(of.code(change)), precision=precision)  # type: ignore[arg-type]
    if not report.errors:
        return {"found": False, "at": False, "named": False}
    first = report.errors[0]
    places = {f".py:{number}" for number in change.lines} if change else set()
    words = re.findall(r"\.py:\d+", f"{first.source} {first.message} {first.cause} {first.advice}")
    said = f"{first.rule} {first.source.rpartition('/')[2]}: {first.message}"[:250]
    return {"found": True, "at": first.source[first.source.rfind(".py:") :] in places, "named": bool(places & set(words)), "told": said}


def drawn(of: Network, precision: str, kinds: list[str], seed: str) -> list[Change]:
    """The network's changes in a random order, in which each kind comes once before any comes twice."""
    found = [each for each in changes(of.text, LOW[precision]) if each.kind in kinds]
    found = wide(of, found, precision)
    random.Random(f"{seed} {of.name} {precision}").shuffle(found)
    turns: collections.Counter[str] = collections.Counter()
    order = []
    for each in found:
        order.append(turns[each.kind])
        turns[each.kind] += 1
    return [found[place] for place in sorted(range(len(found)), key=order.__getitem__)]


def judged(of: Network, change: Change, precision: str, harmless: bool) -> dict[str, Any]:
    """A change, its harm, and what `measure` says where that is asked."""
    line: dict[str, Any] = {"network": of.name, "change": change.name, "kind": change.kind, "precision": precision}
    line["text"] = change.applied(of.text).splitlines()[change.lines[0] - 1].strip()
    try:
        line["harm"] = harm(of, change, precision)
        line["float32"] = float32_harm(of, change, precision) if line["harm"] >= LEAST else 0.0
    except Exception as error:  # the changed code may not run: then nobody would ship it
        return line | {"raised": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    if (line["harm"] >= LEAST and line["float32"] < LEAST) or (line["harm"] < LEAST and harmless):
        line |= told(of, change, precision)
    return line


def table(lines: list[dict[str, Any]]) -> list[str]:
    """For each kind: how many changes run, do harm, are found, and are accused without harm."""
    rows = [
        "| kind | changes that run | do harm | found | on the line | its line named | the same in float32 | harmless and measured | accused |",
        "|" + "---|" * 9,
    ]
    for kind in (*sorted({each["kind"] for each in lines}), None):
        ran = [each for each in lines if kind in (None, each["kind"]) and "raised" not in each]
        bugs = [each for each in ran if each["harm"] >= LEAST and "found" in each]
        healthy = [each for each in ran if each["harm"] < LEAST and "found" in each]
        same = sum(each["float32"] >= LEAST for each in ran)
        told_of = [sum(each[name] for each in bugs) for name in ("found", "at", "named")]
        figures = [len(ran), len(bugs), *told_of, same, len(healthy), sum(each["found"] for each in healthy)]
        rows.append(f"| {kind or 'all'} | {' | '.join(map(str, figures))} |")
    return rows


def main() -> int:
    """0, whatever is found."""
    parser = argparse.ArgumentParser(prog="python suites/planted/mutations.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="networks (default: all, in a random order)")
    parser.add_argument("--precision", default="bf16-mixed", choices=sorted(LOW))
    parser.add_argument("--most", type=int, default=12, help="changes of each network, drawn at random (default: 12)")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--kinds", nargs="*", default=list(MISTAKES), choices=list(MISTAKES), help="of changes (default: all)")
    parser.add_argument("--harmless", action="store_true", help="measure changes that do no harm, too")
    parser.add_argument("--lines", type=Path, help="record, one JSON object a line")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    order, lines = asked.names or names(), []
    random.Random(asked.seed).shuffle(order)
    for of in map(network, order):
        if asked.precision not in of.precisions or hasattr(of.code(), "step"):
            continue  # `measure` is not asked about a loop of the network's own
        for change in drawn(of, asked.precision, asked.kinds, asked.seed)[: asked.most]:
            lines.append(judged(of, change, asked.precision, asked.harmless))
            print(json.dumps(lines[-1]), flush=True)
            if asked.lines:
                with asked.lines.open("a", encoding="utf8") as file:
                    print(json.dumps(lines[-1]), file=file)
    print(*table(lines), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
