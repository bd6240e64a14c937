"""Says what is wrong with a call of a function of precheck whose arguments do not fit, and what to write instead."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])
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
    return f"{name}(): {wrong}; write {shown}, and name what follows"
