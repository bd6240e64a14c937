"""`search`: the input that breaks a model under a precision, hunted with hypothesis and shrunk to what matters of it.

The story: draw inputs, judge each by two runs, and climb towards the end of the format and beyond the limit of drift (targeted
search). What breaks is shrunk, first as it was drawn, then element by element; the measurement of that is the proof.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch

from precheck.findings import RULES
from precheck.hunt.counterexample import Counterexample
from precheck.hunt.shrinking import Shrinking
from precheck.hunt.trials import SEARCHED, SPENT, Trials, Verdict
from precheck.measurement import job_of, measure
from precheck.observe.job import InputError
from precheck.observe.structure import tensors
from precheck.precisions import Precision, resolve

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_LOG = logging.getLogger("precheck")
_FLOOR, _CEILING = -60.0, 60.0  # bits: hypothesis climbs finite scores


def search(
    model: torch.nn.Module | Callable[..., Any],
    strategy: SearchStrategy[Any],
    *,
    precision: str | Precision = "bf16-mixed",
    loss: Callable[[Any], torch.Tensor] | None = None,
    seed: int = 0,
    rules: str | Collection[str] | None = None,
    most: int = 400,
    seconds: float | None = None,
) -> Counterexample | None:
    """Hunts an input from `strategy` with which `measure(model, input, precision=…, loss=…, seed=…)` has an error, and shrinks it.

    `strategy` is one of hypothesis whose values are inputs as `measure` takes them; `precheck.strategies` has tensors, tokens, padding
    and masks. Inputs are rounded to what the precision stores them in; those that it cannot hold, or on which float32 itself is not
    finite, are left aside. `rules`: a rule or several to look for; else any. `most`: inputs that are tried, and again as many
    each for the shrinking by hypothesis and by elements. `seconds`: when to stop trying, if sooner. The same seed gives the same
    search, unless the clock ends it. The model comes back as it was.

    None if nothing was found; the logger "precheck" says how many were tried and how close the closest came.

    Raises InputError for arguments that are none, or where no input could be judged; ModuleNotFoundError without hypothesis
    (extra `search`); and what the model raises.
    """
    chosen, wanted = resolve(precision), _rules(rules)
    _checked(chosen, most, seconds)
    trials = Trials(job_of(model, None, loss=loss, seed=seed), chosen, wanted)
    hunt = _Hunt(trials, most, math.inf if seconds is None else seconds)
    found = hunt.found(strategy, seed)
    if found is not None:
        shrunk = Shrinking(found, lambda inputs: trials.verdict(inputs).fault is not None, hunt.ceilings, most).shrunk()
        for inputs in (trials.stored(shrunk), trials.stored(found)):
            report = measure(model, inputs, precision=chosen, loss=loss, seed=seed)
            if any(error.rule in wanted for error in report.errors):
                return Counterexample(inputs, report, hunt.tried, dataclasses.replace(trials.job, inputs=inputs), chosen)
    _LOG.info("%s", _nothing(trials, chosen))
    return None


def _rules(rules: Any) -> frozenset[str]:
    names = SEARCHED if rules is None else (rules,) if isinstance(rules, str) else tuple(rules)
    wrong = [name for name in names if name not in SEARCHED]
    if wrong or not names:
        why = "watch() or training steps find that, no search does" if wrong and wrong[0] in RULES else "no such rule"
        raise InputError(f"rules={rules!r}: {why if wrong else 'none is named'}; pass one or several of {', '.join(SEARCHED)}")
    return frozenset(names)


def _checked(precision: Precision, most: Any, seconds: Any) -> None:
    if precision.name == "64-true":
        raise InputError("search(precision='64-true') has nothing more exact to compare with; pass another precision")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InputError(f"most={most!r}; pass how many inputs may be tried, a whole number from 1")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0):
        raise InputError(f"seconds={seconds!r}; pass how long may be searched, a positive number, or None")


class _Hunt:
    """What hypothesis asks, within the budget."""

    def __init__(self, trials: Trials, most: int, seconds: float) -> None:
        self.trials, self.most, self.end = trials, most, time.monotonic() + seconds
        self.ceilings: dict[str, float] = {}  # by path, the greatest magnitude that the strategy has given
        self.tried = 0  # inputs judged until the first that breaks

    def found(self, strategy: Any, seed: int) -> Any:
        """The simplest input that breaks among those that hypothesis drew; None if none did."""
        from precheck.strategies import hypothesis

        if not isinstance(strategy, hypothesis.strategies.SearchStrategy):
            example = "precheck.strategies.tensors((2, 16)), or hypothesis.strategies.tuples(...) of such"
            raise InputError(f"strategy is a {type(strategy).__name__}; pass a strategy of hypothesis, as in {example}")
        phases = (hypothesis.Phase.generate, hypothesis.Phase.target, hypothesis.Phase.shrink)
        quiet = hypothesis.Verbosity.quiet
        settings = hypothesis.settings(
            max_examples=self.most, phases=phases, deadline=None, database=None, derandomize=False, verbosity=quiet
        )  # whatever profile the user's tests run under

        def asked(inputs: Any) -> bool:
            verdict = self._verdict(inputs)
            if verdict.why and not self.trials.fault:
                hypothesis.reject()
            hypothesis.target(min(max(verdict.reach, _FLOOR), _CEILING), label="reach")
            hypothesis.target(min(max(verdict.drift, _FLOOR), _CEILING), label="drift")
            return verdict.fault is not None

        try:
            return hypothesis.find(strategy, asked, settings=settings, random=random.Random(seed))
        except (hypothesis.errors.NoSuchExample, hypothesis.errors.Unsatisfiable):
            return None

    def _verdict(self, inputs: Any) -> Verdict:
        known = self.trials.known_verdict(inputs)
        if known is not None:
            return known
        if self._spent():
            return SPENT
        for path, value in tensors(inputs):
            if value.is_floating_point() and value.numel():
                greatest = value.detach().double().nan_to_num(posinf=0.0, neginf=0.0).abs().amax()
                self.ceilings[path] = max(self.ceilings.get(path, 0.0), float(greatest))
        verdict = self.trials.verdict(inputs)
        if verdict.fault and not self.tried:
            self.tried = len(self.trials.judged)
        return verdict

    def _spent(self) -> bool:
        """While hunting, hypothesis counts; then as many again may be tried to shrink."""
        return len(self.trials.judged) >= self.tried + self.most if self.tried else time.monotonic() > self.end


def _nothing(trials: Trials, precision: Precision) -> str:
    """What to say of a search that found nothing. Raises InputError if it could not have."""
    judged, others = trials.judged, [verdict.why for verdict in trials.known.values() if verdict.why]
    if not judged:
        reasons = "; ".join(f"{others.count(why)} since {why}" for why in dict.fromkeys(others)) or "the time was up"
        raise InputError(
            f"none of {len(others)} inputs could be judged under {precision}: {reasons}; pass a strategy with other magnitudes, "
            "as in precheck.strategies.tensors(shape, magnitude=(2**-8, 2**8)), or more seconds"
        )
    text = f"search: none of {len(judged)} inputs breaks the model under {precision}"
    text += f" ({len(others)} more could not be judged)" if others else ""
    reach = max(verdict.reach for verdict in judged)
    fmt = precision.compute
    return text + (f"; the largest value of any op was {-reach:.1f} bits below {fmt}'s {fmt.max:g}" if math.isfinite(reach) else "")
