"""Writes tensors and containers of tensors as Python code that rebuilds them bit for bit."""

from __future__ import annotations

import base64
import dataclasses
import keyword
import math
import textwrap
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from precheck.observe.containers import tensors
from precheck.observe.job import InputError

FEW = 8
"""Up to this many elements may differ from 0 (True in masks) before the tensor's most frequent number is used as its base."""
_LINES = 16
"""The most lines for single elements. If there are more, the whole tensor is written."""
_LISTED = 64
"""Tensors of up to this many elements are written as lists of numbers, larger ones as packed bytes."""
Span = tuple[int, int, float]
"""A range of equal elements in the flattened tensor: first index, end, and value."""
_ASSIGNABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PLAIN = (bool, int, str, bytes, type(None))
_WIDTH = 100  # characters of packed bytes in a line


def code(value: Any, name: str = "inputs", *, taken: Collection[str] = ()) -> str:
    """Returns lines of Python that assign an equal value to `name`: the same bits and dtype, contiguous.

    Other variables do not use the names in `taken`. Raises InputError for a value that is no tensor, number or text, nor a tuple,
    list, dict or dataclass of such.
    """
    body = _Body(name, taken)
    expression = body.expression(value, "")
    last = [] if expression == name else [f"{name} = {expression}"]
    imports = sorted({"import torch", *body.imports}, key=lambda line: (line.startswith("from"), line))
    return "\n".join([*imports, "", *body.lines, *last]) + "\n"


class _Body:
    """Collects the assignments and imports that an expression needs."""

    def __init__(self, name: str, taken: Collection[str]) -> None:
        self.name, self.lines, self.imports = name, list[str](), set[str]()
        self.taken: set[str] = {"torch", "zlib", "base64", name, *taken}

    def expression(self, value: Any, path: str) -> str:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, self._variable(path))
        if isinstance(value, float):
            return _number(value)
        if isinstance(value, _PLAIN):
            return repr(value)
        if type(value) in (tuple, list):
            parts = [self.expression(item, f"{path}_{place}") for place, item in enumerate(value)]
            inner = ", ".join(parts)
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(parts) == 1 else f"({inner})"
        if isinstance(value, Mapping) and type(value) is dict:
            return "{" + ", ".join(f"{key!r}: {self.expression(item, f'{path}_{key}')}" for key, item in value.items()) + "}"
        return self._record(value, path)

    def _record(self, value: Any, path: str) -> str:
        """The expression for a named tuple or a dataclass."""
        names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if field.init]
        kind = type(value)
        if names is None or "." in kind.__qualname__ or kind.__module__ == "__main__":
            where = "" if names is None else ", which cannot be imported"
            raise InputError(f"input{path} is a {kind.__qualname__}{where}, and no code is known that rebuilds it; give the model tensors, "
                             "tuples, lists, dicts or dataclasses")  # fmt: skip
        self.imports.add(f"from {kind.__module__} import {kind.__qualname__}")
        parts = [f"{each}={self.expression(getattr(value, each), f'{path}_{each}')}" for each in names]
        return f"{kind.__qualname__}({', '.join(parts)})"

    def _variable(self, path: str) -> str:
        """A variable name: `inputs` for a bare tensor, `x0` for the first of a tuple, the key for an item of a dict."""
        wanted = path.strip("_")
        if not wanted:
            return self.name
        name = f"x{wanted}" if wanted[0].isdigit() else wanted
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"x{len(self.lines)}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _tensor(self, value: torch.Tensor, name: str) -> str:
        if value.layout is not torch.strided:
            raise InputError(f"{name} is a tensor of {value.layout}, and no code is known that rebuilds it; give the model dense tensors")
        host = value.detach().cpu()
        flat, shape = host.clone(memory_format=torch.contiguous_format).view(-1), tuple(value.shape)
        fill, which = base(host)
        spans = [] if flat.is_complex() else _spans(flat, which)
        if len(spans) == 1 and len(which) == len(flat):
            fill, spans = spans[0][2], []
        if len(spans) <= _LINES and not flat.is_complex():
            self.lines += _sparse(name, flat.dtype, shape, fill, spans)
        elif len(flat) <= _LISTED and flat.dtype in (*_ASSIGNABLE, torch.int64, torch.bool):
            self.lines += _listed(name, flat, shape)
        else:
            self._packed(name, flat, shape)
        if value.device.type != "cpu":
            self.lines.append(f'{name} = {name}.to("{value.device.type}")')
        if value.requires_grad:
            self.lines.append(f"{name}.requires_grad_()")
        return name

    def _packed(self, name: str, flat: torch.Tensor, shape: tuple[int, ...]) -> None:
        self.imports |= {"import base64", "import zlib"}
        text = base64.b85encode(zlib.compress(flat.view(torch.uint8).numpy().tobytes(), 9)).decode()
        lines = [text[start : start + _WIDTH] for start in range(0, len(text), _WIDTH)]
        self.lines += [f"{name} = bytearray(zlib.decompress(base64.b85decode(", *(f'    "{line}"' for line in lines), ")))"]
        self.lines.append(f"{name} = torch.frombuffer({name}, dtype={flat.dtype}).reshape({_sizes(shape)})")


def _listed(name: str, flat: torch.Tensor, shape: tuple[int, ...]) -> Iterator[str]:
    yield f"{name} = torch.tensor(["
    numbers = ", ".join(_number(each, flat.dtype) for each in flat.tolist())
    yield from textwrap.wrap(numbers, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    yield f"]{_dtype(flat.dtype)}).reshape({_sizes(shape)})"


def _sparse(name: str, kind: torch.dtype, shape: tuple[int, ...], fill: float, spans: list[Span]) -> Iterator[str]:
    narrow = kind.is_floating_point and kind not in _ASSIGNABLE  # float8 takes no index
    dtype = "" if narrow else _dtype(kind)
    exact = torch.float32 if narrow else kind
    if fill == 0 and math.copysign(1.0, fill) > 0 and kind is not torch.bool:
        yield f"{name} = torch.zeros({_sizes(shape)}{dtype})"
    elif kind is torch.bool:
        yield f"{name} = torch.{'ones' if fill else 'zeros'}({_sizes(shape)}{dtype})"
    else:
        yield f"{name} = torch.full({shape}, {_number(fill, exact)}{dtype})"
    for start, end, number in spans:
        yield f"{name}{_index(start, end, shape)} = {_number(number, exact)}"
    if narrow:
        yield f"{name} = {name}.to({kind})"


def _spans(flat: torch.Tensor, which: torch.Tensor) -> list[Span]:
    """The ranges of equal neighbours in the flattened tensor. NaN counts as equal to NaN."""
    numbers = (flat.float() if flat.is_floating_point() and flat.dtype not in _ASSIGNABLE else flat)[which].tolist()
    spans: list[Span] = []
    for place, number in zip(which.tolist(), numbers, strict=True):
        if spans and spans[-1][1] == place and repr(spans[-1][2]) == repr(number):
            spans[-1] = spans[-1][0], place + 1, number
        else:
            spans.append((place, place + 1, number))
    return spans


def _index(start: int, end: int, shape: tuple[int, ...]) -> str:
    """The index expression for elements `start` to `end` of the flattened tensor."""
    last = shape[-1]
    if start // last != (end - 1) // last:
        return f".view(-1)[{start}:{end}]"
    *rows, first = unravelled(start, shape)
    within = str(first) if end == start + 1 else ":" if end - start == last else f"{first}:{first + end - start}"
    return f"[{', '.join(map(str, [*rows, within]))}]"


def unravelled(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The multi-dimensional index of an element of the flattened tensor."""
    index: list[int] = []
    for size in reversed(shape):
        place, rest = divmod(place, size)
        index.insert(0, rest)
    return tuple(index)


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape)) if shape else "()"


def _dtype(dtype: torch.dtype) -> str:
    return "" if dtype is torch.float32 else f", dtype={dtype}"


def _number(value: float, dtype: torch.dtype = torch.float64) -> str:
    """The shortest text that gives the same bits in that dtype."""
    if isinstance(value, (bool, int)):
        return repr(value)
    if not math.isfinite(value):
        return f'float("{value}")'
    for digits in range(1, 18):
        text = repr(float(f"{value:.{digits}g}"))
        if torch.tensor(float(text), dtype=dtype).item() == value:
            return text
    return repr(value)


def base(value: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The base number of a tensor, and the flat indices of elements that differ from it. It is 0 (True in masks) if at most FEW differ."""
    simple: float = value.dtype is torch.bool
    which = differing(value, simple)
    if len(which) <= FEW or not value.numel():
        return simple, which
    if value.is_complex():
        return simple, which
    numbers, counts = value.detach().double().reshape(-1).unique(return_counts=True)
    common = value.detach().double().new_tensor(float(numbers[counts.argmax()])).to(value.dtype).item()
    if math.isnan(common):
        return simple, which
    return common, differing(value, common)


def differing(value: torch.Tensor, number: float) -> torch.Tensor:
    """The flat indices of elements that differ from `number`. Zeros of different sign differ."""
    flat = value.detach().reshape(-1)
    wide = flat.double() if flat.is_floating_point() else flat
    other = wide != number  # NaN is never any number
    if number == 0 and flat.is_floating_point():
        other |= wide.signbit()
    return other.nonzero().view(-1)


def elements(value: Any) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Path, index and value of all elements in `value` that differ from the base number of their tensor."""
    for path, tensor in tensors(value):
        _, which = base(tensor)
        numbers = tensor.detach().reshape(-1)
        numbers = numbers.float() if numbers.is_floating_point() and numbers.dtype not in _ASSIGNABLE else numbers
        for place in which.tolist():
            yield path, unravelled(place, tuple(tensor.shape)), numbers[place].item()
