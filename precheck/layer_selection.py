"""The function `layers_to_keep`: finds the layers that must not be quantised for the loss or gradient error to stay within a given bound."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch

from precheck import arguments, interrupts
from precheck.measurement import job_of
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import InputError, Job
from precheck.observe.listeners import doing
from precheck.observe.models.layer_recipes import kept_in, recipe_for
from precheck.observe.recording.surveys import surveyed
from precheck.observe.recording.whole_gradients import WholeGradients, gradients
from precheck.observe.setting import low, reference
from precheck.precisions import Precision, resolve
from precheck.recipes import RECIPES, Recipe
from precheck.shared_runs.smallest_set import SpentError, needed

Error = Literal["gradient", "loss"]


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """The layers to keep, and the error with them. Errors are relative to float32.

    Attributes:
        precision: The recipe that all other layers follow, by name.
        keep_in: The precision of the layers that are kept, by name.
        what: "gradient" or "loss": the quantity whose error is measured.
        within: The largest error allowed, as given.
        layers: The layers to keep, as `model.get_submodule` takes them.
        error: The error of a run with these layers kept.
        without: The error with no layer kept.
        least: The error with all layers kept.
        alone: For each layer the error if it alone follows the recipe. Empty where there were too few trials.
        runs: How many runs were made.
        minimal: Whether no layer can be left out.
    """

    precision: str
    keep_in: str
    what: Error
    within: float
    layers: tuple[str, ...]
    error: float
    without: float
    least: float
    alone: dict[str, float]
    runs: int
    minimal: bool

    @property
    def code(self) -> str:
        """Code that keeps the layers of a variable `model`. "" where no layer has to be kept."""
        if not self.layers:
            return ""
        return f'from precheck import layers_in\nlayers_in(model, {json.dumps(list(self.layers))}, "{self.keep_in}")'

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer, the costliest first: "layer", "alone", "kept". "alone" is the error if no other layer follows the recipe."""
        names = sorted(self.alone, key=lambda name: -self.alone[name]) if self.alone else self.layers
        return [{"layer": name, "alone": self.alone.get(name), "kept": name in self.layers} for name in names]

    def to_json(self) -> str:
        """The numbers and `rows`, as JSON."""
        figures = {name: getattr(self, name) for name in ("precision", "keep_in", "what", "within", "error", "without", "least", "runs", "minimal")}
        return json.dumps(figures | {"layers": self.rows()}, indent=1)

    def __str__(self) -> str:
        """The result as text: a sentence, the table and the code."""
        few = "keep nothing" if not self.layers else f"keep {len(self.layers)} layer{'s' if len(self.layers) > 1 else ''} in {self.keep_in}"
        note = "" if self.minimal else " (fewer may do: more trials, most=)"
        head = (
            f"{self.precision}: {few}{note}. The {self.what} is then {self.error:.2%} off float32, {self.within:.2%} was asked for; "
            f"{self.without:.2%} with none kept, {self.least:.2%} with all."
        )
        return "\n".join([head, *(self._table() if self.alone else ()), *self.code.splitlines()])

    def _table(self) -> list[str]:
        width = max(map(len, self.alone))
        lines = [f"{row['layer']:{width}}  {row['alone']:7.2%}{'  kept' if row['kept'] else ''}" for row in self.rows()]
        return [f"{'layer':{width}}  {self.what} error if it alone is quantised", *lines]


@arguments.explained
@interrupts.held()
def layers_to_keep(
    model: torch.nn.Module | Callable[..., Any],
    inputs: Any,
    precision: str | Precision,
    *,
    loss: Callable[[Any], torch.Tensor],
    gradient_error: float | None = None,
    loss_error: float | None = None,
    keep_in: str | Precision = "bf16",
    most: int = 64,
    seed: int = 0,
) -> Kept:
    """Finds a small set of layers to keep out of a recipe, for one step's gradient or loss to stay within an error. Every set is tried by a run.

    The search begins with the layers that cost most, and ends with a set of which no layer can be left out.

    Args:
        model: A module. It comes back as it was.
        inputs: A tensor is one argument, a tuple positional arguments, a dict keyword arguments.
        precision: The name of a recipe ("nvfp4"), or a framework's object for one.
        loss: Takes the model's output, gives a scalar.
        gradient_error: How far the gradient of all parameters together may be off: |difference| / |float32's|, Euclidean.
        loss_error: How far the loss may be off: |difference| / |float32's|. Give one of the two.
        keep_in: What the layers follow instead: "bf16" (they are not quantised), or another recipe ("mxfp8").
        most: How many runs of one step are made, at most, beside the float32 one.
        seed: The seed of torch's random numbers.

    Returns:
        The layers, what was reached, and what each layer costs alone.

    Raises:
        InputError: An argument cannot be used, or the error cannot be reached with all layers kept.
        PrecisionError: There is no such precision.
    """
    what, within = _stated(gradient_error, loss_error)
    if isinstance(most, bool) or not isinstance(most, int) or most < 2:
        raise InputError(f"most={most!r}; pass how many runs may be made, a whole number from 2")
    if loss is None:
        raise InputError("no loss was given; pass loss=lambda out: ..., since a recipe is judged by the loss or its gradient")
    chosen, instead = resolve(precision), recipe_for(keep_in)
    if not isinstance(chosen.gemm, Recipe):
        raise InputError(f"{precision} is no recipe of products; known are {', '.join(RECIPES)}")
    search = _Search(job_of(model, inputs, loss=loss, seed=seed), chosen, instead, what, within, most)
    return search.found(str(keep_in))


def _stated(gradient_error: float | None, loss_error: float | None) -> tuple[Error, float]:
    if (gradient_error is None) == (loss_error is None):
        raise InputError("state one error: gradient_error=0.1 (a tenth of the gradient's norm) or loss_error=0.01")
    what: Error = "loss" if gradient_error is None else "gradient"
    within = loss_error if gradient_error is None else gradient_error
    if isinstance(within, bool) or not isinstance(within, (int, float)) or not 0 < within < math.inf:
        raise InputError(f"{what}_error={within!r}; pass a share of float32's, as in {what}_error=0.05")
    return what, float(within)


class _Search:
    """The search: runs of one step, each with some layers kept."""

    def __init__(self, job: Job, precision: Precision, instead: Recipe | None, what: Error, within: float, most: int) -> None:
        self.job, self.precision, self.instead, self.what, self.within, self.most = job, precision, instead, what, within, most
        self.known: dict[frozenset[str], float] = {}
        self.log = DecisionLog()
        self.exact: WholeGradients | None = None

    def found(self, keep_in: str) -> Kept:
        order = self._layers()
        without, least = self._error(()), self._error(order)
        if min(without, least) > self.within:
            raise InputError(
                f"{self.what}_error={self.within:g} cannot be reached: with all {len(order)} layers in {keep_in} it is {least:.2%}, "
                f"and {without:.2%} with none of them; state a larger one"
            )
        alone = {name: self._error([other for other in order if other != name]) for name in order if len(order) <= self.most // 2}
        order = sorted(order, key=lambda name: -alone[name]) if alone else order
        kept, minimal = self._fewest(order)
        return Kept(
            self.precision.name, keep_in, self.what, self.within, kept, self._error(kept), without, least, alone, len(self.known), minimal
        )

    def _layers(self) -> list[str]:
        """The layers that the recipe quantises, in order of their signal to quantisation noise, the worst first."""
        assert isinstance(self.precision.gemm, Recipe)
        with doing("a survey of the layers"):
            places = surveyed(self.job, [self.precision.gemm])
        named = dict(self.job.model.named_modules())
        worst: dict[str, float] = {}
        for place in places:
            if place.layer in named:
                worst[place.layer] = min(worst.get(place.layer, math.inf), place.decibels(self.precision.gemm.name))
        layers = sorted((name for name, value in worst.items() if value < math.inf and not _inside(name, worst)), key=worst.__getitem__)
        if not layers:
            raise InputError(f"{self.precision.name} quantises no layer of this model; its products are not those of nn.Linear with a weight")
        return layers

    def _fewest(self, order: Sequence[str]) -> tuple[tuple[str, ...], bool]:
        """The layers to keep, in the order of the model, and whether none can be left out."""
        try:
            enough, short = len(order), -1  # keeping the first `enough` layers passes; the first `short` do not
            while enough - short > 1:
                middle = (enough + short) // 2
                enough, short = (middle, short) if self._passes(order[:middle]) else (enough, middle)
            kept = frozenset(needed([], order[:enough], self._passes))
            minimal = self._passes(kept)
        except SpentError:
            minimal = False
        if not minimal:
            kept = min((each for each, error in self.known.items() if error <= self.within), key=len)
        return tuple(name for name, _ in self.job.model.named_modules() if name in kept), minimal

    def _passes(self, names: Iterable[str]) -> bool:
        return self._error(names) <= self.within

    def _error(self, names: Iterable[str]) -> float:
        """The error of a run with those layers kept. Raises SpentError if no run is left."""
        key = frozenset(names)
        if key not in self.known:
            if len(self.known) >= self.most:
                raise SpentError
            with doing(f"run {len(self.known) + 1} of at most {self.most}"), kept_in(self.job.model, key, self.instead):
                seen = gradients(self.job, low(self.precision, records=None if self.known else self.log))
            self.known[key] = seen.off(self._reference) if self.what == "gradient" else _relative(seen.loss, self._reference.loss)
        return self.known[key]

    @functools.cached_property
    def _reference(self) -> WholeGradients:
        """The float32 run, with the random draws of the first run but decisions of its own. Other decisions of a recipe count as error."""
        return gradients(self.job, reference(torch.float32, follows=self.log.draws()))


def _inside(name: str, names: Iterable[str]) -> bool:
    """Whether another of the names is that of an enclosing module. Keeping that one keeps both, as an attention module keeps its projection."""
    return any(name.startswith(f"{other}.") for other in names)


def _relative(value: float, exact: float) -> float:
    difference = abs(value - exact)
    if difference == 0:
        return 0.0
    return difference / abs(exact) if exact and math.isfinite(difference) else math.inf
