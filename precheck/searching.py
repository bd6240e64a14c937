"""The verb `search`: uses hypothesis to find a small input on which a model fails under a precision.

It draws inputs, judges each by two runs, and moves towards overflow and towards more drift (targeted search). If no input fails, it follows the
gradient from the inputs that came nearest to overflow. A failing input is shrunk, first by hypothesis, then element by element, and measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import random
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch

from precheck import arguments, interpreter, interrupts
from precheck.findings import RULES
from precheck.input_search.ascent import ascended
from precheck.input_search.counterexample import Counterexample
from precheck.input_search.pairs import SEARCHED as OF_PAIRS
from precheck.input_search.pairs import PairTrials
from precheck.input_search.shrinking import Shrinking
from precheck.input_search.trials import SEARCHED, SPENT, Trials, Verdict
from precheck.measurement import job_of
from precheck.observe.containers import tensors
from precheck.observe.job import InputError
from precheck.precisions import Precision, resolve
from precheck.words import described

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_LOG = logging.getLogger("precheck")
_WIDE = 1e6  # a format with a larger maximum is not followed to its end by the gradient
_STARTS = 2  # inputs of each kind from which the gradient is followed
_SURVEY = 100  # draws that only record the range of the strategy
_FLOOR, _CEILING = -60.0, 60.0  # bits; hypothesis needs finite scores


@arguments.explained
@interrupts.held()
@interpreter.spared
def search(
    model: torch.nn.Module | Callable[..., Any],
    strategy: SearchStrategy[Any],
    *,
    other: torch.nn.Module | Callable[..., Any] | None = None,
    precision: str | Precision = "bf16-mixed",
    loss: Callable[[Any], torch.Tensor] | None = None,
    seed: int = 0,
    rules: str | Collection[str] | None = None,
    most: int = 400,
    seconds: float | None = None,
) -> Counterexample | None:
    """Searches `strategy` for an input with which `measure(model, input, precision=…, loss=…)` has an error, and shrinks it.

    Args:
        model: As in `measure`.
        strategy: A strategy of hypothesis whose values are inputs as `measure` takes them; `precheck.strategies` has tensors, tokens,
            padding and masks. Inputs are rounded to what the precision stores them in. Those that it cannot hold, or on which float32 is not
            finite, are left out.
        precision: As in `measure`.
        loss: As in `measure`; with it gradients are searched too.
        seed: The same seed gives the same search, unless `seconds` ends it.
        rules: A rule or several to look for; without it any.
        most: How many inputs are tried; again as many for each of the two ways of shrinking.
        seconds: A limit of time; without it there is none.
        other: Another implementation of `model`, as in `compare`. The search is then for an input on which the two differ by more than rounding.

    Returns:
        The input, its measurement and code that rebuilds it. None if nothing was found: the logger "precheck" then says how many were
        tried and how near the nearest came. The model is as it was.

    Raises:
        InputError: An argument cannot be used, or no input could be judged.
        ModuleNotFoundError: hypothesis is not installed, which precheck requires.
        Exception: Whatever the model raises.
    """
    chosen, wanted = resolve(precision), _rules(rules, SEARCHED if other is None else OF_PAIRS)
    _checked(chosen, most, seconds)
    if other is None:
        trials = Trials(job_of(model, None, loss=loss, seed=seed), chosen, wanted)
    else:
        trials = PairTrials(model, other, chosen, wanted, loss=loss, seed=seed)
    hunt = _Hunt(trials, most, math.inf if seconds is None else seconds)
    found = hunt.found(strategy, seed)
    if found is None and other is None:
        found = hunt.followed()
    if found is not None:
        for inputs in (trials.stored(hunt.shrunk(found)), trials.stored(found)):
            report = trials.report(inputs)
            errors = [error for error in report.errors if error.rule in wanted]
            if errors:
                job = dataclasses.replace(trials.job, inputs=inputs)
                return Counterexample(inputs, report, errors[0], hunt.tried, job, chosen, of_pair=other is not None)
    _LOG.info("%s", _nothing(trials, chosen))
    return None


def _rules(rules: Any, known: tuple[str, ...]) -> frozenset[str]:
    names = known if rules is None else (rules,) if isinstance(rules, str) else tuple(rules)
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        why = "watch() or training steps find that, no search does" if wrong and wrong[0] in RULES else "no such rule"
        raise InputError(f"rules={rules!r}: {why if wrong else 'none is named'}; pass one or several of {', '.join(known)}")
    return frozenset(names)


def _checked(precision: Precision, most: Any, seconds: Any) -> None:
    if precision.name == "64-true":
        raise InputError("search(precision='64-true') has nothing more exact to compare with; pass another precision")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InputError(f"most={most!r}; pass how many inputs may be tried, a whole number from 1")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0):
        raise InputError(f"seconds={seconds!r}; pass how long may be searched, a positive number, or None")


class _TimeUpError(BaseException):
    """No time is left. A BaseException, since hypothesis would take an Exception for a failing input and shrink it."""


class _Hunt:
    """One search: judges the inputs that hypothesis draws, within the budget of trials and time."""

    def __init__(self, trials: Trials, most: int, seconds: float) -> None:
        self.trials, self.most, self.seconds = trials, most, seconds
        self.begun = time.monotonic()
        self.ceilings: dict[str, float] = {}  # the largest magnitude that the strategy has drawn, by path
        self.signed: set[str] = set()  # paths with both signs in one draw
        self.near: list[tuple[float, Any]] = []  # inputs that came nearest to overflow, nearest first
        self.large: list[tuple[float, Any]] = []  # inputs with the largest sum of magnitudes
        self.tried = 0  # how many inputs were judged up to the first that fails

    @property
    def late(self) -> bool:
        """Whether the time for this part of the search is up."""
        return time.monotonic() - self.begun > self.seconds

    def shrunk(self, inputs: Any) -> Any:
        """Returns a failing input with as few significant elements as possible."""
        self.begun = time.monotonic()

        def breaks(trial: Any) -> bool:
            return not self.late and self.trials.verdict(trial).fault is not None

        return Shrinking(inputs, breaks, self.ceilings, self.most).shrunk()

    def found(self, strategy: Any, seed: int) -> Any:
        """The simplest failing input that hypothesis drew. None if none failed."""
        from precheck.strategies import hypothesis

        if not isinstance(strategy, hypothesis.strategies.SearchStrategy):
            example = "precheck.strategies.tensors((2, 16)), or hypothesis.strategies.tuples(...) of such"
            raise InputError(f"strategy is {described(strategy)}; pass a strategy of hypothesis, as in {example}")
        def asked(inputs: Any) -> bool:
            verdict = self._verdict(inputs)
            if verdict.why and not self.trials.fault:
                hypothesis.reject()
            hypothesis.target(min(max(verdict.reach, _FLOOR), _CEILING), label="reach")
            hypothesis.target(min(max(verdict.drift, _FLOOR), _CEILING), label="drift")
            return verdict.fault is not None

        found = self._drawn(strategy, asked, seed, self.most)
        if found is not None:
            self._drawn(strategy, self._noted, seed, _SURVEY)
        return found

    def _drawn(self, strategy: Any, asked: Callable[[Any], bool], seed: int, most: int) -> Any:
        """The simplest value of `strategy` for which `asked` is true. None if there is none among `most` draws."""
        from hypothesis import Phase, Verbosity, errors, find
        from hypothesis import settings as with_settings  # explicit, so that the profile of the user's tests has no effect

        phases, quiet = (Phase.generate, Phase.target, Phase.shrink), Verbosity.quiet
        settings = with_settings(max_examples=most, phases=phases, deadline=None, database=None, derandomize=False, verbosity=quiet)
        try:
            return find(strategy, asked, settings=settings, random=random.Random(seed))
        except (errors.NoSuchExample, errors.Unsatisfiable, _TimeUpError):
            return None

    def followed(self) -> Any:
        """A failing input that following the gradient found, from the inputs nearest to overflow of a narrow format. None if there is none."""
        trials = self.trials
        with contextlib.suppress(_TimeUpError):
            for _, start in (*self.near, *self.large) if trials.precision.compute.max < _WIDE else ():
                found = ascended(start, trials.job, trials.precision, lambda inputs: self._verdict(inputs).fault is not None, self.signed)
                if found is not None:
                    return found
        return None

    def _verdict(self, inputs: Any) -> Verdict:
        known = self.trials.known_verdict(inputs)
        if known is not None:
            return known
        if not self.tried and self.late:
            raise _TimeUpError
        if self.tried and (self.late or len(self.trials.judged) >= self.tried + self.most):  # shrinking may try as many inputs again
            return SPENT
        self._noted(inputs)
        verdict = self.trials.verdict(inputs)
        if verdict.fault and not self.tried:
            self.tried, self.begun = len(self.trials.judged), time.monotonic()
        if not verdict.why and not verdict.fault:
            self.near = _best(self.near, verdict.reach, inputs)
            self.large = _best(self.large, sum(float(value.detach().double().abs().sum()) for _, value in _floating(inputs)), inputs)
        return verdict

    def _noted(self, inputs: Any) -> bool:
        """Records the range of an input. Always False, so that hypothesis goes on."""
        storable = self.trials.stored(inputs) is not None
        for path, value in _floating(inputs):
            if value.numel() and storable:
                finite = value.detach().double().nan_to_num(posinf=0.0, neginf=0.0)
                least, most = float(finite.amin()), float(finite.amax())
                self.ceilings[path] = max(self.ceilings.get(path, 0.0), -least, most)
                if least < 0 < most:
                    self.signed.add(path)
        return False

def _best(ranked: list[tuple[float, Any]], score: float, inputs: Any) -> list[tuple[float, Any]]:
    return sorted([*ranked, (score, inputs)], key=lambda pair: -pair[0])[:_STARTS]


def _floating(inputs: Any) -> list[tuple[str, torch.Tensor]]:
    return [(path, value) for path, value in tensors(inputs) if value.is_floating_point()]


def _nothing(trials: Trials, precision: Precision) -> str:
    """The log message of a search that found nothing. Raises InputError if no input could be judged."""
    judged, others = trials.judged, [verdict.why for verdict in trials.known.values() if verdict.why]
    if not judged:
        reasons = "; ".join(f"{others.count(why)} since {why}" for why in dict.fromkeys(others)) or "the time was up"
        raise InputError(
            f"none of {len(others)} inputs could be judged under {precision}: {reasons}; pass a strategy with other magnitudes, "
            "as in precheck.strategies.tensors(shape, magnitude=(2**-8, 2**8)), or more seconds"
        )
    does = "tells other from model" if isinstance(trials, PairTrials) else "breaks the model"
    text = f"search: none of {len(judged)} inputs {does} under {precision}"
    text += f" ({len(others)} more could not be judged)" if others else ""
    reach = max(verdict.reach for verdict in judged)
    fmt = precision.compute
    return text + (f"; the largest value of any op was {-reach:.1f} bits below {fmt}'s {fmt.max:g}" if math.isfinite(reach) else "")
