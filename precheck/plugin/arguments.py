"""Fails a test with one line if it calls a fixture with arguments that the fixture does not take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from precheck.arguments import NO_TOLERANCE, misused

if TYPE_CHECKING:
    from precheck.plugin.verdicts import Verdicts

_Call = TypeVar("_Call", bound=Callable[..., Any])
_SET_ELSEWHERE = {**NO_TOLERANCE, "precision": 'type pytest --precision=bf16, or mark the test: @pytest.mark.precision("bf16-mixed")'}


def taking(verb: Callable[..., Any] | None = None) -> Callable[[_Call], _Call]:
    """Decorates the call of a fixture's object, which takes the arguments of `verb`, or those that it declares itself."""

    def decorated(call: _Call) -> _Call:
        @functools.wraps(call)
        def checked(self: Verdicts, *values: Any, **given: Any) -> Any:
            __tracebackhide__ = True
            arguments = list(inspect.signature(verb or call).parameters.values())[0 if verb else 1 :]
            if wrong := misused(self.name, inspect.Signature(arguments), values, given, _SET_ELSEWHERE):
                self.misuse(wrong)
            return call(self, *values, **given)

        return cast(_Call, checked)

    return decorated
