"""The verb `remedy`: finds by trials the fewest modules, then functions, that must stay in float32 for a failing measurement to pass.

1. Keep the module that the first error blames, measure again, keep the next one, until the model passes. If a module does not help, keep its parent,
   and in the end the whole model.
2. Shrink that set (QuickXplain, Junker 2004: about k log(n/k) trials for k of n). Replace each module by those of its children that are enough, and
   test that none can be left out.
3. Do the same with the functions that these modules call.

Every trial runs the code that is printed. Most trials are one low run, compared with the reference and the floors of the failing measurement. The
final set is measured in full. So is the first set that passes, if the failing measurement has errors that one low run does not show.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from precheck import arguments, interpreter, interrupts
from precheck.analysis.labels import module_of
from precheck.findings import Report
from precheck.judge import allowances
from precheck.measurement import Measurement, job_of
from precheck.observe.job import Depth, InputError, Job
from precheck.observe.models import float32_parts
from precheck.observe.models.float32_parts import inside
from precheck.observe.recording.module_hooks import LOW
from precheck.precisions import Precision, resolve
from precheck.shared_runs.evidence import depth_of
from precheck.shared_runs.remedy_trials import Trials, patience
from precheck.shared_runs.smallest_set import SpentError, needed, swept

GROWTH = 3
"""One in this many trials may be used in step 1 before the whole model is tried, since shrinking takes more trials than growing."""
ELSEWHERE = frozenset({"golden-stale", "lost-update"})
"""Rules that modules in float32 do not cure. The cures are to record the golden again, and float32 master weights."""
ALIKE = 3
"""If this many modules of one class are blamed, all of that class are tried together, since they share the faulty code."""


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """The parts of a model to keep in float32.

    Attributes:
        modules: Names as `model.get_submodule` takes them. "" is the model itself, where no part of it is enough.
        functions: Functions of torch ("pow", "softmax") that need float32 in these modules. Empty where whole modules need it, or their weights, or
            where trials ran out.
        report: The report of the measurement that passed with it.
        runs: How many trials were made in all.
        minimal: Whether none of the modules can be left out. Also False if there were too few trials to show it.
        code: Code that does this to a variable `model`, without precheck.
    """

    modules: tuple[str, ...]
    functions: tuple[str, ...]
    report: Report
    runs: int
    minimal: bool
    code: str

    @property
    def call(self) -> str:
        """Short code that does the same with precheck imported."""
        note = "" if self.minimal else "  # fewer may do: -o remedy_trials=24"
        note = '  # "": the whole model' if self.modules == ("",) else note
        what, modules, functions = "in_float32", json.dumps(list(self.modules)), json.dumps(list(self.functions))
        if not self.functions:
            return f"from precheck import {what}\n{what}(model, {modules}){note}"
        return f"from precheck import functions_{what}\nfunctions_{what}(model, {modules}, {functions}){note}"


@arguments.explained
@interrupts.held()
@interpreter.spared
def remedy(
    model: torch.nn.Module | Callable[..., Any],
    inputs: Any,
    *,
    precision: str | Precision = "bf16-mixed",
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    steps: int = 1,
    seed: int = 0,
    most: int = 24,
    depth: Depth = "ops",
) -> Remedy | None:
    """Measures `model`, and if that fails finds the fewest modules to keep in float32 for it to pass. Arguments are those of `measure`.

    Args:
        most: How many models are tried, at most.

    Returns:
        None where nothing fails, or where not even the whole model in float32 passes: for a cast in the model's own code, for example.

    Raises:
        Exception: As `measure`.
    """
    job, chosen = job_of(model, inputs, loss=loss, optimizer=optimizer, steps=steps, seed=seed), resolve(precision)
    failed = Measurement(job, chosen, depth=depth_of(depth))
    return searched(job, chosen, failed.report(), most=most, depth=depth, failed=failed)


def searched(
    job: Job, precision: Precision, report: Report, *, most: int = 24, patient: bool = True, depth: Depth = "ops",
    allow: Mapping[str, str] | None = None, failed: Measurement | None = None, parts_only: bool = False,
) -> Remedy | None:  # fmt: skip
    """Finds the fewest modules to keep in float32 for the failing measurement `report` of `job` to pass, with at most `most` trials.

    `failed` is that measurement, if its runs are still there. If not `patient`, the time that PATIENCE gives is a limit too. If nothing was found
    before trials or time ran out, `report.facts["remedy"]` says so. `parts_only`: a remedy that keeps more than half of the model is none.

    None where there is nothing to find: no errors, no low format, or a fault that is there with the whole model in float32 (a cast in the model's own
    code, a loss that cannot be computed). `allow` is as in `measure`, for every trial. Model and process are restored as after `measure`. Raises
    InputError if `most` is not a whole number from 1.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InputError(f"most={most!r}; pass how many trials may be made, a whole number from 1")
    if not report.errors or precision.compute_dtype not in LOW or not getattr(job.model, "curable", True):
        return None

    def measured() -> Report:
        found = Measurement(job, precision, depth=depth).report()
        allowances.apply(found, allow or {})
        return found

    job = job if failed is None else failed.job
    seconds = None if patient else patience(job, precision)
    failing = None if allow else lambda: failed or Measurement(job, precision)
    search = _Search(job, precision, report, Trials(job, precision, report, most, seconds, measured, failing), parts_only=parts_only)
    minimal, trials = search.finished(), search.trials
    if trials.best is None:
        if trials.spent:
            report.facts["remedy"] = trials.spent
        return None
    (names, functions), passed = trials.best
    return Remedy(names, functions, passed, trials.made, minimal, float32_parts.code(names, functions, precision.name))


def curable(report: Report) -> bool:
    """Whether keeping modules in float32 is a cure to look for. It is not if an error would stay, or has a simpler cure.

    A stale golden stays stale in any precision. Lost updates arrive with float32 master weights, as the rule's own remedy says. They would also
    arrive in modules in float32, but only in those.
    """
    return bool(report.errors) and not any(finding.rule in ELSEWHERE for finding in report.errors)


class _Every:
    """A container that contains every function name, and records the names it is asked for."""

    def __init__(self) -> None:
        self.called: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        self.called[str(name)] = None
        return True


class _Search:
    def __init__(self, job: Job, precision: Precision, report: Report, trials: Trials, *, parts_only: bool = False) -> None:
        self.precision, self.most, self.report, self.parts_only = precision, trials.most, report, parts_only
        self.modules = dict(job.model.named_modules())
        self.trials = trials

    def finished(self) -> bool:
        """Searches, and stores the result in `trials.best`. Returns whether it is known to be minimal."""
        minimal = self._searched()
        if self.parts_only and self.trials.best is not None and float32_parts.majority(self.modules, self.trials.best[0][0]):
            self.trials.best = None
            return False
        if not self.trials.confirmed():
            minimal = self._searched() and self.trials.confirmed()
        return minimal

    def _searched(self) -> bool:
        try:
            grown = self._grown()
            if self._independent():
                return True
            names = swept(self._shrunk(grown), self.passes)
            report = self.trial(names)
            if report is None or report.errors:
                return False
            self._narrowed(self._completed(names))
        except SpentError:
            return False
        return True

    def _independent(self) -> bool:
        """Whether all errors are lost updates. Each weight loses its own, and neither parts nor functions of a module cure that."""
        best = self.trials.best
        return best is not None and "" not in best[0][0] and {error.rule for error in self.report.errors} == {"lost-update"}

    def trial(self, names: Iterable[str], functions: Sequence[str] = ()) -> Report | None:
        return self.trials.report((self._completed(names), tuple(functions)))

    def passes(self, names: Iterable[str]) -> bool:
        report = self.trial(names)
        return report is not None and not report.errors

    def _narrowed(self, names: tuple[str, ...]) -> None:
        """Stores in `best` the fewest functions of those modules that pass, if fewer than all pass and weights may stay low."""
        whole, every = self.trials.best, _Every()

        def passes(functions: Sequence[str]) -> bool:
            return bool(functions) and (report := self.trial(names, functions)) is not None and not report.errors

        try:
            report = self.trials.report((names, ()), every) if names else None
            if report is None or report.errors:
                return
            few = swept(needed([], list(every.called), passes), passes)
        except SpentError:
            few = list(every.called)
        self.trials.best = whole
        if len(few) < len(every.called):
            self.trial(names, few)

    def _grown(self) -> list[str]:
        """A list of modules that pass together: those that are blamed one after another, or else the whole model. Empty if nothing passes."""
        held: list[str] = []
        report: Report | None = self.report
        while "" not in held and self.trials.made < max(1, self.most // GROWTH):
            held = self._with_next_blamed(held, report)
            if self._hopeless(held):
                return []
            report = self.trial(held)
            if report is not None and not report.errors:
                return held
        return [""] if not self._hopeless([""]) and self.passes([""]) else []

    def _hopeless(self, names: Sequence[str]) -> bool:
        """Whether these modules are too many, and to find fewer would take trials that are whole measurements."""
        return self.parts_only and not self.trials.cheap and float32_parts.majority(self.modules, names)

    def _with_next_blamed(self, held: list[str], report: Report | None) -> list[str]:
        """Returns `held` with the module that `report` blames next, or all modules of its class. If it is held already, or the model did not run, its
        parent is added."""
        blamed = self._blamed(report) if report is not None else held[-1:]
        new = [name for name in blamed if not any(inside(name, other) for other in held)]
        if not new:
            last = next(other for other in held if inside(blamed[0], other))
            new = [self._parent(last)]
        kind = type(self.modules[new[0]])
        if [type(self.modules[name]) for name in (*held, new[0])].count(kind) == ALIKE:
            new = [name for name, module in self.modules.items() if type(module) is kind]
        return [*(name for name in held if not any(inside(name, other) for other in new)), *new]

    def _blamed(self, report: Report) -> list[str]:
        """The module that the first error blames. For lost updates, all modules that lost some, since each is lost on its own."""
        first = report.errors[0]
        if first.rule != "lost-update":
            return [first.module if first.module in self.modules else ""]
        return list(dict.fromkeys(module_of(update["parameter"], "update") for update in report.updates if update["lost"]))

    def _shrunk(self, names: list[str], given: Sequence[str] = ()) -> list[str]:
        """The modules of `names` that are needed to pass together with `given`, each replaced by those of its parts that are needed."""
        settled: list[str] = []
        few = needed(given, names, self.passes)
        for place, name in enumerate(few, 1):
            rest, parts = [*given, *settled, *few[place:]], self._parts(name)
            inner = self._shrunk(parts, rest) if parts and self.passes([*rest, *parts]) else [name]
            settled += inner if inner != parts else [name]  # if all parts are needed, the module itself is
        return settled

    def _parts(self, name: str) -> list[str]:
        """The children of a module. A child that is never called itself, as a ModuleList, is replaced by its members."""
        prefix = f"{name}." if name else ""
        children = (f"{prefix}{child}" for child, _ in self.modules[name].named_children())
        own = [child for child in children if child in self.modules]  # `self.modules` has each module under one name only
        return [part for child in own for part in ([child] if _callable(self.modules[child]) else self._parts(child))]

    def _parent(self, name: str) -> str:
        while name:
            name = name.rpartition(".")[0]
            if _callable(self.modules[name]):
                break
        return name

    def _completed(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns `names` without those inside others, and with the modules that share a weight with them, in the model's order."""
        held = set(names)
        if not self.precision.autocasts:  # autocast stores all weights in float32 anyway
            owned = {id(param) for name in held for param in self.modules[name].parameters()}
            held |= {name for name, module in self.modules.items() if owned & {id(param) for param in module.parameters(recurse=False)}}
        outer = [name for name in held if not any(inside(name, other) for other in held - {name})]
        return tuple(name for name in self.modules if name in outer)


def _callable(module: torch.nn.Module) -> bool:
    return type(module).forward is not torch.nn.Module.forward
