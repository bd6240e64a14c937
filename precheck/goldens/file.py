"""The golden file: safetensors, stacked, checked byte for byte, written whole or not at all.

Per tensor 127 float32 numbers of sketch (times a power of two of its own), five float64 (norm, amax, norm of the weight, noise
floor of either placement), and an entry in one compressed index (kind, name, step, shape, dtype, counts). No pickle, no torch:
any safetensors reader opens it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import secrets
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import safetensors.numpy
from safetensors import SafetensorError, deserialize

from precheck.observe.records import Record

SCHEMA = 1
PLACEMENTS = ("mixed", "true")
_INDEXED = ("kind", "name", "step", "shape", "dtype", "nan", "posinf", "neginf", "zeros", "roundings", "is_result")
_HINT = "record it again with pytest --golden-refresh=all"
_TEMPORARY = ".tmp"

Provenance = dict[str, str | int | float | bool]


class GoldenError(Exception):
    """A golden cannot be used or written; the message says which, why, and what to type."""


class GoldenMissing(GoldenError):
    """There is no golden at that path."""


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenRecord:
    """A record with its noise floors: the spread (Euclidean) that noise of one unit roundoff causes, by placement; NaN: unknown."""

    record: Record
    floors: dict[str, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Golden:
    """The records of a float32 reference in the order of the run, and where they come from."""

    records: list[GoldenRecord]
    provenance: Provenance


def read(path: Path) -> Golden:
    """The golden at `path`. Raises GoldenMissing if there is none, GoldenError if it is damaged or of another schema."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise GoldenMissing(f"no golden at {path}; record it with pytest --golden-refresh=missing") from None
    except OSError as error:
        raise GoldenError(f"golden {path} cannot be read: {error.strerror or error}") from None
    return decode(data, str(path))


def write(path: Path, golden: Golden) -> bool:
    """Writes `golden`, or returns False if those very bytes are there. Raises GoldenError for NaN, or where it cannot write.

    Atomic: a reader, a crash or another worker sees the old file or the new one.
    """
    _refuse_nonfinite(golden, path)
    data = encode(golden)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{_TEMPORARY}")
    try:
        if path.is_file() and path.read_bytes() == data:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise GoldenError(f"golden {path} cannot be written: {error.strerror or error}") from None
    _sync_folder(path.parent)
    return True


def _sync_folder(folder: Path) -> None:
    """So that the rename itself survives a loss of power; folders cannot be opened everywhere (Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refuse_nonfinite(golden: Golden, path: Path) -> None:
    """Masks hold -Inf in healthy outputs, so outputs and inputs may; a NaN, or a gradient that is not finite, is no reference."""
    for each in golden.records:
        record = each.record
        counted = record.nan if record.kind in ("output", "input") else record.nonfinite
        if counted or not math.isfinite(record.norm) or not numpy.isfinite(record.sketch).all():
            what = "NaN" if record.nan else "Inf"
            raise GoldenError(
                f"golden {path} is refused: in float32 the {record.kind} {record.name} of step {record.step} holds {counted} {what} in "
                f"{record.numel} elements; mend the model or its inputs first"
            )


def encode(golden: Golden) -> bytes:
    """The bytes of the file: the same for equal content."""
    records = [each.record for each in golden.records]
    exponents = [math.frexp(float(numpy.abs(record.sketch).max(initial=0.0)))[1] for record in records]
    sketches = [numpy.ldexp(record.sketch, -exponent) for record, exponent in zip(records, exponents, strict=True)]
    floats = [
        [each.record.norm, each.record.amax, each.record.weight_norm, *(each.floors.get(place, math.nan) for place in PLACEMENTS)]
        for each in golden.records
    ]
    index: dict[str, list[Any]] = {name: [getattr(record, name) for record in records] for name in _INDEXED}
    index["floors"] = [sorted(each.floors) for each in golden.records]
    index["exponent"] = exponents
    tensors: dict[str, numpy.ndarray] = {
        "sketches": numpy.array(sketches, numpy.float32).reshape(len(records), -1),
        "floats": numpy.array(floats, numpy.float64).reshape(len(records), -1),
        "index": numpy.frombuffer(zlib.compress(json.dumps(index, separators=(",", ":")).encode(), 9), numpy.uint8),
    }
    provenance = json.dumps(golden.provenance, sort_keys=True)
    sealed = {"schema": SCHEMA, "provenance": provenance, "checksum": _checksum(provenance, tensors.items())}
    return safetensors.numpy.save(tensors, {"precheck": json.dumps(sealed, sort_keys=True)})


def _checksum(provenance: str, tensors: Iterable[tuple[str, numpy.ndarray]]) -> str:
    digest = hashlib.blake2b(provenance.encode(), digest_size=16)
    for name, array in sorted(tensors):
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(numpy.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def decode(data: bytes, name: str) -> Golden:
    """The golden in `data`; `name` is what an error calls it. Raises GoldenError for bytes that are not a whole, intact golden."""
    sealed = _sealed(data, name)
    if sealed.get("schema") != SCHEMA:
        raise GoldenError(f"golden {name} has schema {sealed.get('schema')!r}, and this precheck reads schema {SCHEMA}; {_HINT}")
    try:
        tensors = _tensors(data)
        if sealed["checksum"] != _checksum(sealed["provenance"], tensors.items()):
            raise GoldenError(f"golden {name} is damaged: its checksum does not match; {_HINT}")
        return Golden(_records(tensors), json.loads(sealed["provenance"]))
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise GoldenError(f"golden {name} is damaged: {type(error).__name__}: {error}; {_HINT}") from None


def _sealed(data: bytes, name: str) -> dict[str, Any]:
    """precheck's own metadata, from the safetensors header: eight bytes of length, then JSON."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        sealed = json.loads(json.loads(data[8 : 8 + length].decode())["__metadata__"]["precheck"])
    except (struct.error, ValueError, KeyError, TypeError, RecursionError):
        raise GoldenError(f"golden {name} is damaged, or not one of precheck's: its header cannot be read; {_HINT}") from None
    if not isinstance(sealed, dict):
        raise GoldenError(f"golden {name} is damaged: its header holds no object; {_HINT}")
    return sealed


def _tensors(data: bytes) -> dict[str, numpy.ndarray]:
    kinds = {"F32": numpy.float32, "F64": numpy.float64, "U8": numpy.uint8}
    return {
        name: numpy.frombuffer(bytes(content["data"]), kinds[content["dtype"]]).reshape(content["shape"]) for name, content in deserialize(data)  # type: ignore[no-untyped-call]
    }


def _records(tensors: dict[str, numpy.ndarray]) -> list[GoldenRecord]:
    index = json.loads(zlib.decompress(tensors["index"].tobytes()))
    records = []
    for place, (norm, amax, weight_norm, *floors) in enumerate(tensors["floats"].tolist()):
        facts = {name: index[name][place] for name in _INDEXED}
        facts["shape"] = tuple(facts["shape"])
        sketch = numpy.ldexp(tensors["sketches"][place].astype(numpy.float64), index["exponent"][place])
        record = Record(sketch=sketch, norm=norm, amax=amax, weight_norm=weight_norm, **facts)
        held = dict(zip(PLACEMENTS, floors, strict=True))
        records.append(GoldenRecord(record, {placement: held[placement] for placement in index["floors"][place]}))
    return records
