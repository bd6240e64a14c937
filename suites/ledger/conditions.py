"""Finds conditions of the judgement that decide no verdict of the zoo. Each is taken out in turn, and the programs that it decided are judged again.

    python suites/ledger/conditions.py analysis/rounding/errors.py [FILE ...] [--jobs 2] [--lines FILE]

A condition is an operand of `and` or `or`, the test of an `if` or of a conditional expression, or the filter of a comprehension. An operand is taken
out by the value that leaves the others to decide, and a test by either value. What changes no error, no warning and no first finding is printed.

Such a condition is a special case that nothing needs any more, or it guards against what the zoo has no program for. So before you delete it, look at
the tests of its file, and run the sweep of suites/architectures and a sample of suites/planted without it.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "precheck"
VALUES = {"and": (True,), "or": (False,), "filter": (True,), "test": (False, True)}
"""What a condition of each kind is set to, to take it out."""
Verdict = tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]
"""All errors and warnings of a program in order of their names, and the first of them."""


@dataclasses.dataclass(frozen=True, order=True)
class Condition:
    """A condition in a source file: its place, what kind it is of, and its text."""

    file: str
    line: int
    column: int
    kind: str
    text: str


class Conditions:
    """The conditions of modules, with what they were, and the one that is taken out."""

    def __init__(self) -> None:
        self.known: list[Condition] = []
        self.seen: set[tuple[int, bool]] = set()  # numbers of conditions, and what they were since this was emptied
        self.out: int | None = None
        self.value = False

    def asked(self, number: int, value: Any) -> Any:
        """What the condition of that number is taken for."""
        self.seen.add((number, bool(value)))
        return self.value if number == self.out else value

    def compiled(self, source: str, path: str, file: str) -> CodeType:
        """The code of a module whose conditions ask `_precheck_condition`."""
        return compile(ast.fix_missing_locations(_Asking(self, source, file).visit(ast.parse(source))), path, "exec", dont_inherit=True)


class _Asking(ast.NodeTransformer):
    """Makes each condition `c` of a file `_precheck_condition(number, c)`."""

    def __init__(self, conditions: Conditions, source: str, file: str) -> None:
        self.conditions, self.source, self.file = conditions, source, file

    def _asked(self, node: ast.expr, kind: str) -> ast.expr:
        text = " ".join((ast.get_source_segment(self.source, node) or "").split())
        self.conditions.known.append(Condition(self.file, node.lineno, node.col_offset, kind, text))
        number = ast.Constant(len(self.conditions.known) - 1)
        return ast.copy_location(ast.Call(ast.Name("_precheck_condition", ast.Load()), [number, self.visit(node)], []), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
        kind = "and" if isinstance(node.op, ast.And) else "or"
        node.values = [self._asked(value, kind) for value in node.values]
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        node.test = self._asked(node.test, "test")
        node.body, node.orelse = [self.visit(each) for each in node.body], [self.visit(each) for each in node.orelse]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        node.test = self._asked(node.test, "test")
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        node.target, node.iter = self.visit(node.target), self.visit(node.iter)
        node.ifs = [self._asked(each, "filter") for each in node.ifs]
        return node


class _Loader(SourceFileLoader):
    conditions: Conditions

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.conditions.compiled(Path(path).read_text(encoding="utf8"), path, str(Path(path).relative_to(PACKAGE)))

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_precheck_condition"] = self.conditions.asked
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Loads the modules of some files with conditions that ask."""

    def __init__(self, conditions: Conditions, files: Sequence[Path]) -> None:
        self.conditions, self.files = conditions, set(files)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname.startswith("precheck") else None
        if spec is None or spec.origin is None or Path(spec.origin) not in self.files:
            return None
        loader = _Loader(fullname, spec.origin)
        loader.conditions = self.conditions
        spec.loader = loader
        return spec


def needless(conditions: Conditions, programs: Sequence[Any], verdict: Callable[[Any], Verdict], share: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """The conditions that change no verdict, as rows: `was` is what a condition is set to, and `programs` how many it had decided otherwise. `share`:
    a number, and how many processes divide the conditions up."""
    before, deciding = [], defaultdict[tuple[int, bool], list[int]](list)
    for place, program in enumerate(programs):
        conditions.seen.clear()
        before.append(verdict(program))
        for each in conditions.seen:
            deciding[each].append(place)
    for number, condition in enumerate(conditions.known):
        for value in VALUES[condition.kind] if number % share[1] == share[0] else ():
            conditions.out, conditions.value = number, value
            decided = deciding[number, not value]
            if all(_same(lambda place=place: verdict(programs[place]) == before[place]) for place in decided):  # type: ignore[misc]
                yield {**dataclasses.asdict(condition), "was": value, "programs": len(decided)}
    conditions.out = None


def _same(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except Exception:  # a guard: without it the judgement fails
        return False


def main(files: Sequence[Path], jobs: int, lines: Path | None) -> None:
    conditions = Conditions()
    sys.meta_path.insert(0, _Finder(conditions, files))
    sys.path.insert(0, str(HERE))
    from programs import corpus

    from precheck.judge import watched_runs

    def verdict(program: Any) -> Verdict:
        found = watched_runs.found(program.observation)
        told = [(each.severity, each.rule, each.op, each.source) for each in found if each.severity != "note"]
        return tuple(sorted(told)), told[0] if told else ()

    programs = corpus()

    def worker(number: int) -> None:
        for row in needless(conditions, programs, verdict, (number, jobs)):
            with lock:
                print(f"{row['file']}:{row['line']}: {row['text']} (as {row['was']}; it had decided {row['programs']} programs)", flush=True)
                if lines is not None:
                    with lines.open("a", encoding="utf8") as out:
                        out.write(json.dumps(row) + "\n")

    context = multiprocessing.get_context("fork")  # the programs' runs are shared
    lock = context.Lock()
    processes = [context.Process(target=worker, args=(number,)) for number in range(jobs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of precheck/, as analysis/rounding/errors.py")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="appends a line of JSON for each")
    arguments = parser.parse_args()
    paths = [PACKAGE / each for each in arguments.files]
    missing = [str(each) for each in paths if not each.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    main(paths, arguments.jobs, arguments.lines)
