"""`python suites/architectures/changed.py`: lowers one value of a published architecture at a time, and asks `measure` about changes that do harm.

The changes are those of suites/planted/mutations.py, made to the modules of the installed transformers, which nobody of this project wrote. Most
of them are what a port gets wrong: an upcast is left out, a table is made low. Functions that several architectures share are changed once.
`--lines FILE` writes a line of JSON for each change and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import importlib.util
import json
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tiny import built, everything, lengthen, losses

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planted"))


from harm import LEAST
from mutations import LOW, Change, changes, harm, told, wide

SKIPPED = re.compile(r"_init_weights|reset_parameters|prepare_inputs|loss_function|_reorder|resize|get_\w*embeddings|compute_default")
"""Functions that a training step does not need."""


@dataclasses.dataclass(frozen=True)
class Published:
    """An architecture of transformers, whose module can be changed. It has what `mutations` asks of a planted network."""

    family: str
    kind: str
    path: Path  # of its module

    @property
    def name(self) -> str:
        return self.kind

    @functools.cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf8")

    def code(self, change: Any = None) -> ModuleType:
        """Its module, imported anew from a file of its own, with what makes the model and its inputs."""
        name = f"transformers.models.{self.path.parent.name}.{self.path.stem}"
        path = _folder() / "models" / self.path.parent.name / self.path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(change.applied(self.text) if change else self.text, encoding="utf8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        before = sys.modules.get(name)
        sys.modules[name], sys.dont_write_bytecode = module, True  # two changes of one length within a second have the same bytecode to Python
        try:
            spec.loader.exec_module(module)
        finally:
            sys.dont_write_bytecode = False
            if before is not None:
                sys.modules[name] = before
        given = _given(self.family, self.kind)
        kind = getattr(module, type(given.model).__name__)

        def make() -> torch.nn.Module:
            torch.manual_seed(0)
            made: torch.nn.Module = kind(given.model.config).float().train()  # type: ignore[union-attr]
            made.load_state_dict(given.model.state_dict())  # type: ignore[union-attr]
            return made

        module.make, module.batch, module.loss = make, lambda: dict(given.inputs), losses  # type: ignore[attr-defined]
        return module


@functools.lru_cache(maxsize=4)
def _given(family: str, kind: str) -> Any:
    return built(family, kind)


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="changed-"))


def published(parts: list[str]) -> Iterator[Published]:
    """All that can be built, or those with one of the parts in the name of their configuration's type."""
    for family, kind in everything():
        if parts and not any(part in kind for part in parts):
            continue
        given = _given(family, kind)
        if given.model is not None:
            path = Path(sys.modules[type(given.model).__module__].__file__ or "")
            yield Published(family, kind, path)


def alike(of: Published, change: Change) -> tuple[str, ...]:
    """What changes have in common that are the same change of shared code: the kind, the value and its function's text, without names of models."""
    begin = of.text.encode()[: change.old[0]].decode()
    around = begin[begin.rfind("def ") :] + of.text.encode()[change.old[0] :].decode()[:200]
    return change.kind, re.sub(r"\b[A-Z]\w+", "", around)


def chosen(of: Published, precision: str, known: set[tuple[str, ...]], most: int, seed: str) -> list[Change]:
    """Changes that no architecture before it had, drawn at random; those that leave out what the authors have put in come first."""
    drawn = [each for each in wide(of, list(changes(of.text, LOW[precision])), precision) if not SKIPPED.search(each.function)]  # type: ignore[arg-type]
    random.Random(f"{seed} {of.name} {precision}").shuffle(drawn)
    drawn.sort(key=lambda each: each.kind in ("cast", "read"))
    fresh = []
    for change in drawn:
        key = alike(of, change)
        if key not in known and len(fresh) < most:
            known.add(key)
            fresh.append(change)
    return fresh


def tried(of: Published, change: Change, precision: str, harmless: bool) -> dict[str, Any]:
    """The change, its harm, and what `measure` says: a line of the record."""
    line: dict[str, Any] = {"model": of.kind, "change": change.name, "kind": change.kind, "function": change.function}
    line["text"] = change.applied(of.text).splitlines()[change.lines[0] - 1].strip()
    try:
        line["harm"] = harm(of, change, precision)  # type: ignore[arg-type]
    except Exception as error:  # the changed code may not run: then nobody would ship it
        return line | {"raised": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    if line["harm"] >= LEAST or harmless:
        line |= told(of, change, precision)  # type: ignore[arg-type]
    return line


def main() -> int:
    """0, whatever is found."""
    parser = argparse.ArgumentParser(prog="python suites/architectures/changed.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of types of configurations (default: all)")
    parser.add_argument("--precision", default="bf16-mixed", choices=sorted(LOW))
    parser.add_argument("--most", type=int, default=4, help="changes of each architecture (default: 4)")
    parser.add_argument("--harmless", action="store_true", help="ask about changes that do no harm, too")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--lines", type=Path, help="record, one JSON object a line")
    parser.add_argument("--length", type=int, default=320, help="of a text (default: 320)")
    asked = parser.parse_args()
    lengthen(asked.length)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known: set[tuple[str, ...]] = set()
    before = [json.loads(each) for each in asked.lines.read_text(encoding="utf8").splitlines()] if asked.lines and asked.lines.exists() else []
    done = {(each["model"], each["change"]) for each in before}
    lines = list(before)
    for of in published(asked.names):
        try:
            fresh = chosen(of, asked.precision, known, asked.most, asked.seed)
        except Exception as error:  # the module cannot be imported from another place, or does not run in this precision
            print(f"{of.kind}: not changed: {type(error).__name__}: {error}".splitlines()[0][:200], flush=True)
            continue
        for change in fresh:
            if (of.kind, change.name) in done:
                continue
            line = tried(of, change, asked.precision, asked.harmless)
            lines.append(line)
            does = line.get("raised") or f"{line['harm']:.1f} times"
            print(of.kind, change.name, does, line.get("found", ""), line.get("at", ""), line["text"], flush=True)
            if asked.lines:
                with asked.lines.open("a", encoding="utf8") as file:
                    file.write(json.dumps(line) + "\n")
    print(table(lines))
    return 0


def table(lines: list[dict[str, Any]]) -> str:
    harmful = [each for each in lines if each.get("harm", 0) >= LEAST]
    kinds = collections.Counter(each["kind"] for each in harmful)
    found, at = (sum(each.get(name, False) for each in harmful) for name in ("found", "at"))
    accused = [each for each in lines if each.get("found") and each["harm"] < LEAST]
    return f"{len(lines)} changes, {len(harmful)} do harm {dict(kinds)}; found {found}, on the line {at}; harmless ones accused: {len(accused)}"


if __name__ == "__main__":
    sys.exit(main())
