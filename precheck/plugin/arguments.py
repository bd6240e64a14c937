"""Fails a test with one line if it calls a fixture with arguments that the fixture does not take."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from precheck.plugin.verdicts import Verdicts

_Call = TypeVar("_Call", bound=Callable[..., Any])
_SET_ELSEWHERE = {
    "precision": 'type pytest --precision=bf16, or mark the test: @pytest.mark.precision("bf16-mixed")',
    **dict.fromkeys(("atol", "rtol", "tol", "tolerance"), "you set no tolerance, since noise runs measure what rounding explains"),
}
"""Arguments that users expect, and where what they would say comes from."""


def taking(verb: Callable[..., Any] | None = None) -> Callable[[_Call], _Call]:
    """Decorates the call of a fixture's object, which takes the arguments of `verb`, or those that it declares itself."""

    def decorated(call: _Call) -> _Call:
        @functools.wraps(call)
        def checked(self: Verdicts, *values: Any, **given: Any) -> Any:
            __tracebackhide__ = True
            arguments = list(inspect.signature(verb or call).parameters.values())[0 if verb else 1 :]
            if wrong := misused(self.name, inspect.Signature(arguments), values, given):
                self.misuse(wrong)
            return call(self, *values, **given)

        return cast(_Call, checked)

    return decorated


def misused(name: str, signature: inspect.Signature, values: Sequence[Any], given: Mapping[str, Any]) -> str:
    """What is wrong with a call of `name`, and what to write. "" if nothing is."""
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
            return f"{name}() has no argument {unknown!r}: {_SET_ELSEWHERE.get(unknown, listed)}"
    missing = [each for each in needed[len(values) :] if each not in given]
    shown = f"{name}({', '.join(needed)})"
    return f"{name}() needs {' and '.join(missing)} too: {shown}" if missing else f"{name}(): {wrong}; write {shown}, and name what follows"
