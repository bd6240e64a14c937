"""Explains why compiled code loses accuracy: whether it also does with eager code's roundings, and which fused kernel makes the difference.

Inductor keeps in float32 what eager code would store in a lower format between two ops of one kernel. That is more exact, except where the stored
value and a value computed from it have to agree. With `emulate_precision_casts` it rounds as eager code does. So `other` is compiled again with that
option, and judged again. Then the kernels of the first compilation are replaced one by one by those of the second. Last, the first decision that the
option changes is looked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from precheck.observe.listeners import doing
from precheck.observe.models.functions import Called
from precheck.pairs.callables import Hosted
from precheck.pairs.comparison import Comparison
from precheck.pairs.compiled_decisions import first_changed
from precheck.pairs.sides import Side
from precheck.torch_internals import generated_modules
from precheck.words import counted

OPTION = "emulate_precision_casts"
MOST = 16
"""Kernels that are replaced one by one. Each takes a run of the compiled model."""
_CASTS = re.compile(r"convert<[^>]*(?:BFloat16|Half)|tl\.(?:bfloat16|float16)")


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that both compilations have, with different code. `first`: the modules of the first compilation that contain it."""

    name: str
    first: tuple[Any, ...]
    second: Any
    casts: tuple[int, int]

    @property
    def words(self) -> str:
        before, after = self.casts
        what = "leaves out a rounding that eager code makes" if before < after else "rounds where eager code does not" if before > after else ""
        return f"its fused kernel {self.name} {what or 'rounds otherwise than eager code'}"

    @contextlib.contextmanager
    def exchanged(self) -> Iterator[None]:
        kept = [vars(each)[self.name] for each in self.first]
        for each in self.first:
            setattr(each, self.name, vars(self.second)[self.name])
        try:
            yield
        finally:
            for each, kernel in zip(self.first, kept, strict=True):
                setattr(each, self.name, kernel)


def explanation(comparison: Comparison) -> str:
    """The explanation in words, or "" if Inductor did not make `other`, or only parts of it."""
    again, before = _compiled_again(comparison.other.job.model), generated_modules()
    if again is None:
        return ""
    with doing(f"compiling other again, with {OPTION}"):
        try:
            kept = _accurate(comparison, again)
        except Exception as error:  # a compiler may raise anything; the finding is valid without this explanation
            return f"compiled with torch._inductor.config.{OPTION} it does not run ({type(error).__name__})"
    if not kept:
        return f"compiled with torch._inductor.config.{OPTION} it loses accuracy too"
    cured = f"compiled with torch._inductor.config.{OPTION} it does not"
    return cured + _kernel(comparison, before) + _decision(comparison)


def _kernel(comparison: Comparison, before: list[Any]) -> str:
    """Which fused kernel makes the difference, in words."""
    others = list(kernels(before, [each for each in generated_modules() if each not in before]))
    with doing("exchanging kernels of other"):
        for each in others[:MOST]:
            with each.exchanged():
                alone = _accurate(comparison, comparison.other.job.model)
            if alone:
                return f": {each.words}"
    return f"; none alone makes the difference, of {counted(len(others), 'kernel')} with another text" if others else ""


def _decision(comparison: Comparison) -> str:
    """The first decision that the rounding changes, in words."""

    def run(backend: Callable[..., Any]) -> None:
        model = _compiled_again(comparison.other.job.model, backend=backend)
        assert model is not None
        Side(dataclasses.replace(comparison.other.job, model=model), comparison.precision, around=comparison.other.around).low()

    with doing("looking for decisions that come out otherwise"):
        try:
            found = first_changed(run, OPTION)
        except Exception:  # a compiler may raise anything; the finding is valid without this explanation
            return ""
    return f"; so {found}" if found else ""


def _compiled_again(model: torch.nn.Module, **how: Any) -> torch.nn.Module | None:
    how = how or {"options": {OPTION: True}}
    compiled = model.__dict__.get("compiled" if isinstance(model, Hosted) else "function")
    if getattr(getattr(compiled, "forward", compiled), "get_compiler_config", lambda: None)() is None:
        return None  # only Inductor has a configuration
    if isinstance(model, Hosted):
        original = model.__dict__["original"]
        return Hosted(original, torch.compile(original, **how))  # type: ignore[arg-type]
    if isinstance(model, Called):
        function = getattr(model.__dict__["function"], "_torchdynamo_orig_callable", None)
        return None if function is None else Called(torch.compile(function, **how))
    return None


def _accurate(comparison: Comparison, model: torch.nn.Module) -> bool:
    """Whether `other`, run as this model, computes the same function and is not less accurate."""
    side = Side(dataclasses.replace(comparison.other.job, model=model), comparison.precision, around=comparison.other.around)
    alike = {"aligned": comparison.aligned, "hidden": comparison.hidden}
    rows = Comparison(comparison.model, side, comparison.matching, comparison.precision, **alike).judged()
    return all(row.verdict not in ("less accurate", "different") for row in rows)


def kernels(first: Sequence[Any], second: Sequence[Any]) -> Iterator[Kernel]:
    """Kernels with different code, from modules that call kernels of the same names in the same way."""
    known = [(each, *_parts(each)) for each in first]
    for module in second:
        texts, calls = _parts(module)
        alike = [(each, theirs) for each, theirs, there in known if there == calls and theirs.keys() == texts.keys()]
        for name, text in texts.items():
            unlike = [(each, theirs[name]) for each, theirs in alike if theirs[name] != text]
            if unlike:
                casts = (len(_CASTS.findall(unlike[-1][1])), len(_CASTS.findall(text)))
                yield Kernel(name, tuple(each for each, _ in unlike), module, casts)


def _parts(module: Any) -> tuple[dict[str, str], str]:
    """The code of each kernel in a generated module, and the code that calls them."""
    try:
        text = Path(module.__file__).read_text(encoding="utf8")
    except (OSError, AttributeError, TypeError):
        return {}, ""
    definitions, _, calls = text.partition("async_compile.wait(globals())")
    _, *found = re.split(r"^(\w+) = async_compile\.", definitions, flags=re.MULTILINE)
    return {name: re.sub(r"^# kernel path:.*$", "", body, flags=re.MULTILINE) for name, body in zip(found[::2], found[1::2], strict=True)}, calls
