"""Validates a session or report that was read from a file against report.schema.json.

Implements the keywords of JSON Schema (draft 2020-12) that the file uses, so that the file alone defines the format. Values are as
`json.loads` returns them. 1.0 is no integer.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "object": (dict,), "array": (list,), "boolean": (bool,), "null": (type(None),), "integer": (int,), "number": (int, float),
}  # fmt: skip
_WORDS = {
    "string": "a text", "object": "an object", "array": "a list", "boolean": "true or false", "null": "null", "integer": "a whole number",
    "number": "a number",
}  # fmt: skip
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
_NUMBERS = (int, float)


class _Fault(NamedTuple):
    """What is wrong with a value: its place in the enclosing object, and the words for it."""

    where: str
    said: str


_Check = Callable[[Any], "_Fault | None"]
_Schema = dict[str, Any]


def fault(name: str, value: Any) -> str:
    """Validates `value` against the definition `name`. Returns the first place that is wrong and what is accepted there, or ""."""
    found = _named(name)(value)
    return f"{found.where.lstrip('.') or name} {found.said}" if found else ""


@functools.cache
def _definitions() -> dict[str, _Schema]:
    content: dict[str, dict[str, _Schema]] = json.loads((files("precheck.report") / "report.schema.json").read_text(encoding="utf8"))
    return content["$defs"]


@functools.cache
def _named(name: str) -> _Check:
    return _check(_definitions()[name])


def _check(schema: _Schema) -> _Check:
    """Makes a function that takes a value and returns its first fault, or None."""
    makers = dict.fromkeys(_KEYWORDS[keyword] for keyword in schema if keyword in _KEYWORDS)  # each once, since one maker may handle several keywords
    checks = [maker(schema) for maker in makers]

    def checked(value: Any) -> _Fault | None:
        for check in checks:
            found = check(value)
            if found:
                return found
        return None

    return checks[0] if len(checks) == 1 else checked


def _refused(value: Any, schema: _Schema) -> _Fault:
    shown = _WORDS["object"] if isinstance(value, dict) else _WORDS["array"] if isinstance(value, list) else json.dumps(value)
    return _Fault("", f"is {shown if len(shown) <= 40 else shown[:39] + '…'}; accepted is {_accepted(schema)}")


def _accepted(schema: _Schema) -> str:
    """What a schema accepts, in words."""
    if "$ref" in schema:
        return _accepted(_definitions()[_target(schema)])
    if "anyOf" in schema:
        return " or ".join(map(_accepted, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(map(json.dumps, schema.get("enum", [schema.get("const")])))
    bounds = [f"{words} {schema[keyword]}" for keyword, words in _BOUNDS.items() if keyword in schema and abs(schema[keyword]) < sys.float_info.max]
    bounds += ["within float64"] if sys.float_info.max in schema.values() else ["not empty"] if schema.get("minLength") else []
    return " ".join(filter(None, [_WORDS[schema["type"]], " and ".join(bounds)]))


def _target(schema: _Schema) -> str:
    name: str = schema["$ref"]
    return name.removeprefix("#/$defs/")


def _type(schema: _Schema) -> _Check:
    kinds = _TYPES[schema["type"]]
    return lambda value: None if type(value) in kinds else _refused(value, schema)


def _constant(schema: _Schema) -> _Check:
    values = schema.get("enum", [schema.get("const")])
    return lambda value: None if any(type(value) is type(each) and value == each for each in values) else _refused(value, schema)


def _bounds(schema: _Schema) -> _Check:
    least, above, most = (schema.get(keyword) for keyword in _BOUNDS)

    def check(value: Any) -> _Fault | None:
        if type(value) not in _NUMBERS:
            return None
        inside = (least is None or value >= least) and (above is None or value > above) and (most is None or value <= most)
        return None if inside else _refused(value, schema)

    return check


def _longer(schema: _Schema) -> _Check:
    return lambda value: None if not isinstance(value, str) or len(value) >= schema["minLength"] else _refused(value, schema)


def _any(schema: _Schema) -> _Check:
    checks = [_check(each) for each in schema["anyOf"]]
    return lambda value: None if any(check(value) is None for check in checks) else _refused(value, schema)


def _one(schema: _Schema) -> _Check:
    """`oneOf` for required fields that exclude each other. The file uses it only like that."""
    checks = [_check(each) for each in schema["oneOf"]]
    names = " or ".join(each["required"][0] for each in schema["oneOf"])
    return lambda value: None if sum(check(value) is None for check in checks) == 1 else _Fault("", f"has to have either {names}")


def _required(schema: _Schema) -> _Check:
    names: Sequence[str] = schema["required"]

    def check(value: Any) -> _Fault | None:
        missing = next((name for name in names if name not in value), None) if isinstance(value, dict) else None
        return _Fault("", f"has no {missing}; it has to have {', '.join(names)}") if missing else None

    return check


def _dependent(schema: _Schema) -> _Check:
    needed: dict[str, list[str]] = schema["dependentRequired"]

    def check(value: Any) -> _Fault | None:
        given = [(name, other) for name, others in needed.items() if isinstance(value, dict) and name in value for other in others]
        return next((_Fault("", f"has {name} and no {other}") for name, other in given if other not in value), None)

    return check


def _properties(schema: _Schema) -> _Check:
    checks = {name: _check(each) for name, each in schema.get("properties", {}).items()}
    others = _check(schema["additionalProperties"]) if "additionalProperties" in schema else None

    def check(value: Any) -> _Fault | None:
        for name, held in value.items() if isinstance(value, dict) else ():
            own = checks.get(name, others)
            found = own(held) if own else None
            if found:
                where = f".{name}" if name in checks else f"[{json.dumps(name[:40])}]"
                return _Fault(where + found.where, found.said)
        return None

    return check


def _items(schema: _Schema) -> _Check:
    first = [_check(each) for each in schema.get("prefixItems", ())]
    rest = _check(schema["items"]) if schema.get("items") else None
    least, most = schema.get("minItems", 0), len(first) if schema.get("items") is False else schema.get("maxItems")

    def check(value: Any) -> _Fault | None:
        if not isinstance(value, list):
            return None
        if len(value) < least or (most is not None and len(value) > most):
            return _Fault("", f"has {len(value)} items; accepted are {least}" + (f" to {most}" if most != least else ""))
        for place, held in enumerate(value):
            own = first[place] if place < len(first) else rest
            found = own(held) if own else None
            if found:
                return _Fault(f"[{place}]{found.where}", found.said)
        return None

    return check


def _reference(schema: _Schema) -> _Check:
    return _named(_target(schema))


_KEYWORDS: dict[str, Callable[[_Schema], _Check]] = {
    "$ref": _reference, "type": _type, "enum": _constant, "const": _constant, "minimum": _bounds, "exclusiveMinimum": _bounds, "maximum": _bounds,
    "minLength": _longer, "anyOf": _any, "oneOf": _one, "required": _required, "dependentRequired": _dependent, "properties": _properties,
    "additionalProperties": _properties, "items": _items, "prefixItems": _items, "minItems": _items, "maxItems": _items,
}  # fmt: skip
