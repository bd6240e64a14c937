"""Says what is wrong with a call of a function of precheck whose arguments do not fit, and what to write instead."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Given = TypeVar("_Given")
_TOLERANCES = ("atol", "rtol", "tol", "tolerance")
NO_TOLERANCE = dict.fromkeys(_TOLERANCES, "you set no tolerance, since noise runs measure what rounding explains")
"""Arguments that users expect and no function of precheck has, with the reason."""
_CALLED_ELSEWISE = {**NO_TOLERANCE, "dtype": 'name a precision, as in precision="bf16-mixed"'}


def explained(function: _Function) -> _Function:
    """Decorates a function: a call whose arguments do not fit raises a TypeError that says which argument is meant."""

    @functools.wraps(function)
    def called(*values: Any, **given: Any) -> Any:
        __tracebackhide__ = True
        if wrong := misused(function.__name__, inspect.signature(function), values, given, _CALLED_ELSEWISE):
            raise TypeError(wrong)
        return function(*values, **given)

    return cast(_Function, called)


def misused(name: str, signature: inspect.Signature, values: Sequence[Any], given: Mapping[str, Any], elsewhere: Mapping[str, str]) -> str:
    """What is wrong with a call of `name`, and what to write. "" if nothing is.

    `elsewhere`: arguments that users expect and `name` has not, and what to do instead. It is read for arguments without a match in the signature.
    """
    try:
        signature.bind(*values, **given)
    except TypeError as error:
        wrong = str(error)
    else:
        return ""
    known = [each for each, parameter in signature.parameters.items() if parameter.kind is not parameter.VAR_POSITIONAL]
    needed = [each for each in known if signature.parameters[each].default is inspect.Parameter.empty]
    for unknown in given:
        if unknown not in known:
            close = difflib.get_close_matches(unknown, known, n=1)
            listed = f"do you mean {close[0]}?" if close else f"it has {', '.join(known)}"
            return f"{name}() has no argument {unknown!r}: {elsewhere.get(unknown, listed)}"
    missing = [each for each in needed[len(values) :] if each not in given]
    shown = f"{name}({', '.join(needed)})"
    if missing:
        return f"{name}() needs {' and '.join(missing)} too: {shown}"
    if needed and needed[-1] == "inputs" and len(values) > len(needed):
        return f"{name}(): {wrong}; several inputs are one tuple: {shown.removesuffix('inputs)')}(first, second))"
    placed = [each for each in known if signature.parameters[each].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return f"{name}(): {wrong}; write {name}({', '.join(placed)}), and name what follows"


class Block(contextlib.AbstractContextManager[_Given], Generic[_Given]):
    """What a verb for `with` returns, as a `NewBlock`. Entered it is the block of `make`. Any other use raises an error that says how to write it.

    `written`: the line to write, as in "with precheck.watch() as report:".
    """

    def __init__(self, written: str, make: Callable[[], contextlib.AbstractContextManager[_Given]]) -> None:
        self._written, self._make = written, make
        self._inner: contextlib.AbstractContextManager[_Given] | None = None

    def __enter__(self) -> _Given:
        __tracebackhide__ = True
        if self._inner is not None:
            raise RuntimeError(f"this block has been entered before; make a new one for each: `{self._written}`")
        self._inner = self._make()
        self.__class__ = Block  # Python drops an interrupt that arrives within `__del__`, so a block that has been entered has none
        return self._inner.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        __tracebackhide__ = True
        assert self._inner is not None
        return self._inner.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._verb} returns a block to enter, which has no {name!r}; write `{self._written}`, and your code in it")

    def __call__(self, *values: Any, **given: Any) -> NoReturn:
        __tracebackhide__ = True
        raise TypeError(f"{self._verb} is no decorator, and calls nothing; write `{self._written}`, and your code in it")

    def __iter__(self) -> NoReturn:
        self.__next__()

    def __next__(self) -> NoReturn:
        __tracebackhide__ = True
        raise TypeError(f"{self._verb} gives nothing to iterate over; write `{self._written}`, and your loop in it")

    @property
    def _verb(self) -> str:
        return self._written.removeprefix("with ").partition("(")[0] + "()"


class NewBlock(Block[_Given]):
    """A block that has not been entered. If it never is, it warns, since nothing has been watched then."""

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if self.__dict__.get("_inner", self) is None:
            warn(f"{self._verb} was called without `with`, so nothing was watched; write `{self._written}`", RuntimeWarning, stacklevel=2)


class BlockFunction:
    """A function that returns a Block. `with` on the function itself, without parentheses, raises an error that says so."""

    def __init__(self, function: Callable[..., Any], written: str) -> None:
        functools.update_wrapper(self, function)
        self._function, self._name, self._written = explained(function), function.__name__, written

    def __call__(self, *values: Any, **given: Any) -> Any:
        __tracebackhide__ = True
        return self._function(*values, **given)

    def __enter__(self) -> NoReturn:
        __tracebackhide__ = True
        raise TypeError(f"{self._name} stands in a `with` without its parentheses; write `{self._written}`")

    def __exit__(self, *raised: object) -> None: ...


def entered(written: str) -> Callable[[_Function], _Function]:
    """Decorates a function that returns a Block: as `explained`, and a function without parentheses in a `with` is explained too."""

    def decorated(function: _Function) -> _Function:
        return cast(_Function, BlockFunction(function, written))

    return decorated
