"""Validates a session or report that was read from a file against report.schema.json.

Implements the keywords of JSON Schema (draft 2020-12) that the file uses, so that the file alone defines the format. Values are as
`json.loads` returns them. 1.0 is no integer.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "object": (dict,), "array": (list,), "boolean": (bool,), "null": (type(None),), "integer": (int,), "number": (int, float),
}  # fmt: skip
_WORDS = {
    "string": "a text", "object": "an object", "array": "a list", "boolean": "true or false", "null": "null", "integer": "a whole number",
    "number": "a number",
}  # fmt: skip
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
_Schema = dict[str, Any]


def fault(name: str, value: Any) -> str:
    """Validates `value` against the definition `name`. Returns the first place that is wrong and what is accepted there, or ""."""
    where, said = next(_faults(_definitions()[name], value), ("", ""))
    return f"{where.lstrip('.') or name} {said}" if said else ""


@functools.cache
def _definitions() -> dict[str, _Schema]:
    content: dict[str, dict[str, _Schema]] = json.loads((files("precheck.report") / "report.schema.json").read_text(encoding="utf8"))
    return content["$defs"]


def _target(schema: _Schema) -> _Schema:
    return _definitions()[schema["$ref"].removeprefix("#/$defs/")]


def _faults(schema: _Schema, value: Any) -> Iterator[tuple[str, str]]:
    """The faults of a value: for each its place in the value, and the words for it."""
    if "$ref" in schema:
        yield from _faults(_target(schema), value)
    elif "anyOf" in schema:
        if all(_wrong(each, value) for each in schema["anyOf"]):
            yield _refused(value, schema)
    elif "enum" in schema or "const" in schema:
        if not any(type(value) is type(each) and value == each for each in schema.get("enum", [schema.get("const")])):
            yield _refused(value, schema)
    elif type(value) not in _TYPES[schema["type"]] or _beyond(value, schema):
        yield _refused(value, schema)
    elif isinstance(value, dict):
        yield from _of_object(schema, value)
    elif isinstance(value, list):
        yield from _of_list(schema, value)


def _wrong(schema: _Schema, value: Any) -> bool:
    return next(_faults(schema, value), None) is not None


def _beyond(value: Any, schema: _Schema) -> bool:
    """Whether a number is outside its bounds, or a text too short."""
    if isinstance(value, str):
        return len(value) < int(schema.get("minLength", 0))
    least, above, most = (schema.get(keyword) for keyword in _BOUNDS)
    return bool((least is not None and not value >= least) or (above is not None and not value > above) or (most is not None and not value <= most))


def _of_object(schema: _Schema, value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    required = schema.get("required", ())
    yield from (("", f"has no {name}; it has to have {', '.join(required)}") for name in required if name not in value)
    needed = [(name, other) for name, others in schema.get("dependentRequired", {}).items() if name in value for other in others]
    yield from (("", f"has {name} and no {other}") for name, other in needed if other not in value)
    named, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name, held in value.items():
        if name in named or others:
            where = f".{name}" if name in named else f"[{json.dumps(name[:40])}]"
            yield from ((where + deeper, said) for deeper, said in _faults(named.get(name, others), held))
    if "oneOf" in schema and sum(name in value for name in _either(schema)) != 1:
        yield "", f"has to have either {' or '.join(_either(schema))}"


def _either(schema: _Schema) -> list[str]:
    """The fields that exclude each other, one of which is required. The file uses `oneOf` only like that."""
    return [each["required"][0] for each in schema["oneOf"]]


def _of_list(schema: _Schema, value: list[Any]) -> Iterator[tuple[str, str]]:
    first, rest = schema.get("prefixItems", []), schema.get("items")
    least, most = schema.get("minItems", 0), len(first) if rest is False else schema.get("maxItems")
    if len(value) < least or (most is not None and len(value) > most):
        yield "", f"has {len(value)} items; accepted are {least}" + (f" to {most}" if most != least else "")
    for place, held in enumerate(value):
        own = first[place] if place < len(first) else rest
        if own:
            yield from ((f"[{place}]{deeper}", said) for deeper, said in _faults(own, held))


def _refused(value: Any, schema: _Schema) -> tuple[str, str]:
    shown = _WORDS["object"] if isinstance(value, dict) else _WORDS["array"] if isinstance(value, list) else json.dumps(value)
    return "", f"is {shown if len(shown) <= 40 else shown[:39] + '…'}; accepted is {_accepted(schema)}"


def _accepted(schema: _Schema) -> str:
    """What a schema accepts, in words."""
    if "$ref" in schema:
        return _accepted(_target(schema))
    if "anyOf" in schema:
        return " or ".join(map(_accepted, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(map(json.dumps, schema.get("enum", [schema.get("const")])))
    bounds = [f"{words} {schema[keyword]}" for keyword, words in _BOUNDS.items() if keyword in schema and abs(schema[keyword]) < sys.float_info.max]
    bounds += ["within float64"] if sys.float_info.max in schema.values() else ["not empty"] if schema.get("minLength") else []
    return " ".join(filter(None, [_WORDS[schema["type"]], " and ".join(bounds)]))
