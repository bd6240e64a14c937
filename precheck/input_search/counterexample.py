"""`Counterexample`: a failing input with its report. Shows it, writes it as code, and saves it as a test with a golden."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import textwrap
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from precheck.files import create
from precheck.findings import Finding, Report
from precheck.goldens import lifecycle
from precheck.goldens.file import write
from precheck.goldens.place import SUFFIX
from precheck.input_search import literals
from precheck.measurement import job_of, measure
from precheck.observe.job import InputError, Job
from precheck.precisions import Precision
from precheck.words import described

_SHOWN = 20  # the most lines of code in the text; `code()` has all
_WIDTH = 110  # of prose in a test file
_FACTORY = 'model="package.module:function", where function() returns the model, seeded if it draws its weights'


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Counterexample:
    """A small input on which a model fails under a precision, with the report that shows it.

    It keeps the model, for `save`.

    Attributes:
        inputs: As the model takes them. The precision stores them exactly.
        report: The report of their measurement.
        finding: The first error in it of a rule that was searched for.
        tried: How many inputs were judged up to the first that failed.
    """

    inputs: Any
    report: Report
    finding: Finding
    tried: int
    job: Job = dataclasses.field(repr=False)
    precision: Precision = dataclasses.field(repr=False)
    of_pair: bool = dataclasses.field(default=False, repr=False)  # whether it shows a difference between two implementations

    @property
    def elements(self) -> list[tuple[str, tuple[int, ...], float]]:
        """The elements that matter: path ("" for a bare tensor, "[1]", "[input_ids]"), index and value of each that is not what its
        tensor is everywhere else (0, True in masks)."""
        return list(literals.elements(self.inputs))

    def code(self) -> str:
        """Python that rebuilds `inputs` bit for bit, with torch and nothing else. Raises InputError for inputs of unknown classes."""
        return literals.code(self.inputs)

    def __str__(self) -> str:
        lines, count = self.code().splitlines(), len(self.elements)
        more = [f"# … {len(lines) - _SHOWN} more lines: .code()"] if len(lines) > _SHOWN else []
        found = f"found after {self.tried} input{'s' if self.tried > 1 else ''}"
        head = f"{self.precision} breaks: {self.finding.rule}: {self.finding.message}"
        by = [f"    by {self.finding.cause}"] if self.finding.cause else []
        matters = f"{count} elements matter" if count > 1 else "1 element matters" if count else "no element matters more than others"
        return "\n".join([head, *by, f"    {found}; {matters}:", *lines[:_SHOWN], *more])

    def save(self, path: str | Path, *, model: str = "", loss: str = "") -> Path:
        """Writes a test to `path` that contains the input as code and fails while the model does, and its golden beside it.

        `model` names a function that makes the model ("package.module:function"), `loss` the loss that was given to `search`. They can be
        left out if the objects can be imported by name. The model that is made must fail on this input, which is tested. The golden is
        the present float32 reference, so the test also notices if that moves. No file is overwritten. Returns the golden's path.

        Raises InputError for names that do not lead to the model, a path that is no test file, an existing file, or a precision that is
        not below float32; GoldenError if a golden cannot be written.
        """
        if self.of_pair:
            raise InputError("it is of two implementations, which no golden is of; put .code() into a test that calls check_parity")
        if not self.precision.is_low:
            why = f"under {self.precision} a golden says nothing, being float32 itself"
            raise InputError(f"{why}; put .code() into a test that calls precheck.measure")
        test = Path(path)
        golden = test.with_suffix(SUFFIX)
        if test.suffix != ".py" or not test.stem.isidentifier():
            raise InputError(f"path={str(path)!r}; pass the test file to write, as in test_{self._name()}.py")
        if not test.parent.is_dir():
            raise InputError(f"path={str(path)!r}: there is no folder {test.parent}; make it first, or pass another path")
        for each in (test, golden):
            if each.exists():
                raise InputError(f"{each} is there already, and is not written over; pass another path, or delete it")
        made, named = self._again(model, loss)
        written = _source(self, named, test.stem)
        write(golden, lifecycle.record(made))
        try:
            create(test, written.encode("utf8", "backslashreplace"))
        except OSError as error:
            golden.unlink()
            raise InputError(f"{test} cannot be written: {error.strerror or error}; pass another path") from None
        return golden

    def _name(self) -> str:
        return self.finding.rule.replace("-", "_")

    def _again(self, model: str, loss: str) -> tuple[Job, dict[str, str]]:
        """The job as the test will make it, and the names that the test imports. Raises InputError unless it fails by the same rule."""
        given = getattr(self.job.model, "function", None)
        makes = bool(model)
        word = model or _importable(given)
        if not word:
            what = type(given or self.job.model).__name__
            raise InputError(f"a test has to make the model by itself, and a {what} has no name to import; pass {_FACTORY}")
        made = _loaded(word, "model")
        losses = loss or _importable(self.job.loss)
        if self.job.loss is not None and not losses:
            raise InputError('the loss has no name to import; pass loss="package.module:function"')
        function = _loaded(losses, "loss") if losses else None
        job = job_of(made() if makes else made, self.inputs, loss=function, seed=self.job.seed)
        report = measure(job.model, self.inputs, precision=self.precision, loss=function, seed=self.job.seed)
        if self.finding.rule not in {error.rule for error in report.errors}:
            raise InputError(
                f"this input does not break ({self.finding.rule}) what {word} makes; "
                + ("if that draws its weights, seed it (torch.manual_seed) as for the search" if makes else f"pass {_FACTORY}")
            )
        return job, {"model": word + ("()" if makes else ""), **({"loss": losses} if losses else {})}


def _importable(value: Any) -> str:
    """The "package.module:name" by which a function can be imported. "" if there is none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module or not name or module == "__main__" or "<" in name:
        return ""
    try:
        same = functools.reduce(getattr, name.split("."), importlib.import_module(module)) is value
    except (ImportError, AttributeError):
        return ""
    return f"{module}:{name}" if same else ""


def _loaded(word: str, what: str) -> Callable[..., Any]:
    module, colon, name = word.partition(":")
    example = f'as in {what}="package.module:function"'
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise InputError(f"{what}={word!r} names no function of a module; pass it {example}")
    try:
        found: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise InputError(f"{what}={word!r} cannot be imported: {error}; pass it {example}") from None
    if not callable(found):
        raise InputError(f"{what}={word!r} is {described(found)}; pass a function, {example}")
    made: Callable[..., Any] = found
    return made


def _source(found: Counterexample, named: dict[str, str], stem: str) -> str:
    """The content of the test file."""
    modules = {word.partition(":")[0] for word in named.values()}
    taken = {"precheck", "Path", "golden", "report", *(module.split(".")[0] for module in modules)}
    lines = literals.code(found.inputs, taken=taken).splitlines()
    imports = {line for line in lines if line.startswith(("import ", "from "))}
    standard = {line for line in imports if line in ("import base64", "import zlib")} | {"from pathlib import Path"}
    others, own = imports - standard | {"import precheck"}, {f"import {module}" for module in modules}
    words = {what: word.replace(":", ".") for what, word in named.items()}
    settings = [f'precision="{found.precision.name}"', *([f"loss={words['loss']}"] if "loss" in words else [])]
    settings += [f"seed={found.job.seed}"] if found.job.seed else []
    quoted = found.finding.message.splitlines()[0].replace("\\", "\\\\").replace('"', "'")
    return "\n".join(
        [
            f'"""Found by precheck.search: {found.precision} breaks, {found.finding.rule}."""',
            "",
            *_sorted(standard),
            "",
            *_sorted(others),
            "",
            *_sorted(own),
            "",
            "",
            f"def test_{stem.removeprefix('test_') or found._name()}():",
            *textwrap.wrap(f'"""{found.finding.rule}: {quoted}"""', _WIDTH, initial_indent="    ", subsequent_indent="    "),
            *(f"    {line}" for line in lines if line and line not in imports),
            f'    golden = Path(__file__).with_suffix("{SUFFIX}")',
            f"    report = precheck.check({words['model']}, inputs, golden=golden, {', '.join(settings)})",
            "    report.raise_for_errors()",
            "",
        ]
    )


def _sorted(imports: Collection[str]) -> list[str]:
    return sorted(imports, key=lambda line: (line.startswith("from"), line))
