"""Ways of running a model that should not change its result. Each has a run to compare with the plain one, and requirements."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from precheck.observe.job import InputError
from precheck.pairs.altered_calls import Aligned, Ask, Language, Step, cropped, in_reverse, in_rows, plainly, rows, turned_round
from precheck.pairs.packing import Packing
from precheck.words import counted, suggestion

Around = Callable[[], contextlib.AbstractContextManager[None]]
DEFAULT = ("repeat", "order", "batch", "threads")
"""Variations that hold for any model. They are tried if the user names none."""

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
"""Norms that keep running statistics, which training updates."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variation:
    """One way of running a model. `around` is a context for its runs. `aligned` makes tensors between its modules comparable with the model's. `base`
    is the context for the model's own runs, if they have to differ from plain ones. `plain` calls the model there, and `hidden` takes from
    the tensors between its modules what is not compared. `reason` says why the results of such runs may differ, or ""."""

    name: str
    ask: Ask = plainly
    around: Around = contextlib.nullcontext
    base: Around | None = None
    aligned: Aligned | None = None
    plain: Ask = plainly
    hidden: Aligned | None = None
    reason: Callable[[], str] = str
    pieces: int = 0  # rows of a microbatch, whose losses are summed; 0 for none
    ranks: int = 0  # ranks that get rows in turn, and whose gradients are averaged; 0 for none


@dataclasses.dataclass(frozen=True, slots=True)
class Asking:
    """The inputs from which variations are made."""

    model: nn.Module
    inputs: Any
    step: Step | None
    weigh: Callable[[Any], float] | None
    has_loss: bool
    axes: list[int] = dataclasses.field(default_factory=list)  # along which rows lie in what a plain call returns, once it was made


def variations_of(over: Any, asking: Asking) -> list[Variation]:
    """The variations that `over` names (names, or a mapping of names to amounts). Raises InputError for unknown names and unmet requirements."""
    wanted = dict.fromkeys(DEFAULT) if over is None else over
    if isinstance(wanted, str):
        wanted = (wanted,)
    if not isinstance(wanted, Mapping):
        try:
            wanted = dict.fromkeys(wanted)
        except TypeError:
            example = 'over=("batch", "padding"), or amounts by name, as in over={"padding": 8}'
            raise InputError(f"over={over!r}; pass names, as in {example}") from None
    if not wanted:
        raise InputError(f"over={over!r} names no variation, so nothing would be compared; leave it out, or pass some, as in over=\"batch\"")
    found = []
    for name, amount in wanted.items():
        if name not in WAYS:
            raise InputError(f"over: there is no variation {name!r}; {suggestion(name, WAYS)}")
        if amount is not None and (isinstance(amount, bool) or not isinstance(amount, int) or amount < 1):
            raise InputError(f"over: {name} takes a whole number from 1, not {amount!r}")
        found += WAYS[name](asking, amount)
    return found


def _repeat(asking: Asking, amount: int | None) -> list[Variation]:
    return [Variation("repeat")]


def _order(asking: Asking, amount: int | None) -> list[Variation]:
    count = rows(asking.inputs)
    return [_quietly(asking, "order", in_reverse(asking.axes), aligned=lambda tensor: turned_round(tensor, count))]


def _batch(asking: Asking, amount: int | None) -> list[Variation]:
    size = amount or 1
    if rows(asking.inputs) <= size:
        raise InputError(f"batch: inputs have {counted(rows(asking.inputs), 'row')}, so that none of {size} is a part of them; pass a larger batch")
    return [_quietly(asking, f"batch of {size}", in_rows(size, asking.weigh, asking.axes))]


def _microbatches(asking: Asking, amount: int | None) -> list[Variation]:
    count, parts = rows(asking.inputs), amount or 2
    if not asking.has_loss:
        raise InputError("microbatches need a loss, whose gradients are accumulated; pass loss=lambda out: ...")
    if count < parts:
        raise InputError(f"microbatches: {counted(count, 'row')} cannot be split into {parts}; pass a larger batch")
    return [_quietly(asking, f"{parts} microbatches", pieces=math.ceil(count / parts))]


def _ranks(asking: Asking, amount: int | None) -> list[Variation]:
    """Splits the batch as data parallelism does. Each rank counts equally in the average, so all ranks need the same number of rows."""
    count, ranks = rows(asking.inputs), amount or 2
    if not asking.has_loss:
        raise InputError("ranks need a loss, whose gradients are averaged; pass loss=lambda out: ...")
    if count % ranks:
        raise InputError(f"ranks: {counted(count, 'row')} cannot be dealt out evenly to {ranks} ranks; pass a batch of a multiple of {ranks}")
    return [_quietly(asking, f"{ranks} ranks", ranks=ranks)]


def _packing(asking: Asking, amount: int | None) -> list[Variation]:
    packing = Packing(Language(asking.model, asking.inputs), asking.inputs, asking.step)
    name = f"{counted(rows(asking.inputs), 'row')} packed into one"

    def reason() -> str:
        with _quiet(asking.model)():
            return packing.unread(asking.model, asking.inputs)

    return [_quietly(asking, name, packing.ask, plain=packing.plain, aligned=packing.unpacked, hidden=packing.hidden, reason=reason)]


def _padding(asking: Asking, amount: int | None) -> list[Variation]:
    language, more = Language(asking.model, asking.inputs), amount or 3
    length = language.needs("padding", "attention_mask").shape[1]

    def padded(side: str, left: bool) -> Variation:
        name, ask = f"{side} padding by {more}", language.padded(left, more)
        return _quietly(asking, name, ask, aligned=lambda tensor: cropped(tensor, length + more, length, left))

    return [padded("left", True), padded("right", False)]


def _pieces(name: str, title: str, size: int, asking: Asking) -> list[Variation]:
    language = Language(asking.model, asking.inputs)
    language.needs(name, *(() if asking.step else (language.cache,)))
    return [_quietly(asking, title, language.in_pieces(size, asking.step))]


def _cache(asking: Asking, amount: int | None) -> list[Variation]:
    return _pieces("cache", f"cache, {counted(amount or 1, 'token')} at a time", amount or 1, asking)


def _prefill(asking: Asking, amount: int | None) -> list[Variation]:
    length = Language(asking.model, asking.inputs).needs("prefill").shape[1]
    return _pieces("prefill", f"prefill in chunks of {amount or math.ceil(length / 2)}", amount or math.ceil(length / 2), asking)


def _position(asking: Asking, amount: int | None) -> list[Variation]:
    language = Language(asking.model, asking.inputs)
    language.needs("position", "position_ids")
    return [_quietly(asking, f"positions from {amount or 17} on", language.shifted(amount or 17))]


def _threads(asking: Asking, amount: int | None) -> list[Variation]:
    now = torch.get_num_threads()
    other = amount or (1 if now > 1 else 2)

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        torch.set_num_threads(other)
        try:
            yield
        finally:
            torch.set_num_threads(now)

    return [Variation(f"{counted(other, 'thread')} for {now}", around=around)]


def _checkpointing(asking: Asking, amount: int | None) -> list[Variation]:
    lists = [module for module in asking.model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    found = [block for each in lists for block in each.children() if any(True for _ in block.parameters())]
    inside = {id(each) for block in found for each in block.modules() if each is not block}
    blocks = [block for block in found if id(block) not in inside]
    if not blocks:
        raise InputError("checkpointing needs blocks in a ModuleList or Sequential to recompute, and the model has none")

    return [Variation("checkpointing", around=lambda: changed([(block, "forward", _recomputed(block.forward)) for block in blocks]))]


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _dropout(asking: Asking, amount: int | None) -> list[Variation]:
    """Compares dropout off by eval() with dropout of probability zero in training. Norms with running statistics are in eval() mode in both runs."""
    model = asking.model
    dropouts = [module for module in model.modules() if isinstance(module, _DROPOUTS)]
    rates = [(each, name) for each in model.modules() for name, value in vars(each).items() if "drop" in name and isinstance(value, float) and value]

    def modes(training: Callable[[nn.Module], bool]) -> list[tuple[Any, str, Any]]:
        return [(module, "training", training(module)) for module in model.modules()]

    def without() -> contextlib.AbstractContextManager[None]:
        held = [(each, "p") for each in dropouts] + rates
        return changed([*((each, name, 0.0 * getattr(each, name)) for each, name in held), *modes(lambda module: not isinstance(module, _COUNTING))])

    return [Variation("dropout of 0 for eval()", around=without, base=lambda: changed(modes(lambda module: False)))]


@contextlib.contextmanager
def changed(values: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Inside, attributes have other values. A method that an attribute hides is the class's again afterwards."""
    values = list(values)
    before = [(each, name, name in vars(each) or not callable(getattr(each, name)), getattr(each, name)) for each, name, _ in values]
    for each, name, value in values:
        setattr(each, name, value)
    try:
        yield
    finally:
        for each, name, own, value in before:
            setattr(each, name, value) if own else delattr(each, name)


def _quiet(model: nn.Module) -> Around:
    """Turns dropout off, since rows in another order or number would get other random draws."""
    return lambda: changed([(module, "training", False) for module in model.modules() if isinstance(module, _DROPOUTS)])


def _quietly(asking: Asking, name: str, ask: Ask = plainly, **more: Any) -> Variation:
    """A variation of a model without dropout."""
    quiet = _quiet(asking.model)
    return Variation(name, ask, base=quiet, around=quiet, **more)


WAYS: dict[str, Callable[[Asking, int | None], list[Variation]]] = {
    "repeat": _repeat, "order": _order, "batch": _batch, "microbatches": _microbatches, "padding": _padding, "cache": _cache, "prefill": _prefill,
    "position": _position, "threads": _threads, "checkpointing": _checkpointing, "dropout": _dropout,
    "packing": _packing, "ranks": _ranks,
}  # fmt: skip
