"""Reads and writes golden files: safetensors with a checksum, written atomically.

For each tensor a golden has a sketch (127 float32 numbers and a power of two), five float64 numbers (norm, amax, norm of the weight, noise floors of
both placements), and an entry in one compressed index (kind, name, step, shape, dtype, counts). It needs neither pickle nor torch: any reader of
safetensors can open it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy
import safetensors.numpy
from safetensors import SafetensorError, deserialize

from precheck.files import replace
from precheck.observe.records import Kind, Record
from precheck.words import one_line

SCHEMA = 2
PLACEMENTS = ("mixed", "true")
_FIELDS = {
    "kind": str, "name": str, "step": int, "shape": list, "dtype": str, "nan": int, "posinf": int, "neginf": int, "zeros": int,
    "roundings": int, "is_result": bool, "sampled": bool,
}  # fmt: skip
_WIDTH = 127  # of a sketch; as in precheck.observe.recording.sketch, which imports torch
_STORED = {"F32": "<f4", "F64": "<f8", "U8": "u1"}  # safetensors is little-endian everywhere
_JUDGED_BY = {"seed": int, "steps": int, "loss": bool, "optimizer": str, "weights": str, "inputs": str}  # fields of the provenance that a check needs
_LARGEST_COUNT = (1 << 63) - 1  # elements, which torch counts in int64
_LARGEST_INDEX = 1 << 26  # bytes; ten times the index of 50 000 tensors, so that a forged file cannot fill the memory
_HINT = "record it again with pytest --golden-refresh=changed"

Provenance = dict[str, str | int | float | bool]


class GoldenError(Exception):
    """A golden cannot be used or written. The message says which one, why, and what to do."""


class GoldenMissing(GoldenError):
    """There is no golden at that path."""


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenRecord:
    """A record with its noise floors by placement: the Euclidean error that noise of one unit roundoff causes. NaN if unknown."""

    record: Record
    floors: dict[str, float]

    @property
    def spread(self) -> float:
        """The noise floor by which float32 itself is judged: that of the first placement that is known, or 0."""
        return next((self.floors[place] for place in PLACEMENTS if not math.isnan(self.floors.get(place, math.nan))), 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Golden:
    """The records of a float32 run in its order, and their provenance (versions, device, settings, digests)."""

    records: list[GoldenRecord]
    provenance: Provenance


def read(path: Path) -> Golden:
    """Reads the golden at `path`. Raises GoldenMissing if there is none, GoldenError if it is damaged or of another schema."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise GoldenMissing(f"no golden at {path}; record it with pytest --golden-refresh=missing") from None
    except OSError as error:
        raise GoldenError(f"golden {path} cannot be read: {error.strerror or error}; mend that, or {_HINT}") from None
    return decode(data, str(path))


def write(path: Path, golden: Golden) -> bool:
    """Writes `golden`. Returns False if the file has the same bytes already. Raises GoldenError for NaN, or if it cannot write.

    Writing is atomic: other processes see the old file or the new one.
    """
    _refuse_nonfinite(golden, path)
    data = encode(golden)
    try:
        if path.is_file() and path.read_bytes() == data:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data)
    except OSError as error:
        raise GoldenError(f"golden {path} cannot be written: {error.strerror or error}") from None
    return True


def _refuse_nonfinite(golden: Golden, path: Path) -> None:
    """Raises GoldenError for NaN, and for non-finite gradients or losses. Inputs and results may hold Inf, since masks hold -Inf."""
    for each in golden.records:
        record = each.record
        counted = record.nan if record.kind in ("input", "output", "returned") else record.nonfinite
        if counted or not math.isfinite(record.norm) or not numpy.isfinite(record.sketch).all():
            counts = ((record.nan, "NaN"), (record.posinf, "+Inf"), (record.neginf, "-Inf"))
            what = " and ".join(f"{count} {name}" for count, name in counts if count)
            raise GoldenError(
                f"golden {path} is refused: in float32 {_called(record)} in step {record.step} "
                + (f"holds {what} in {record.numel} elements" if what else f"is too large for its norm to be finite ({record.norm:g})")
                + "; mend the model or its inputs first"
            )


def _called(record: Record) -> str:
    """ "the gradient of head.bias", "what turned() returns", or only the kind where the tensor has no other name: "the output", "the
    loss"."""
    name = one_line(record.name)
    if record.kind == "returned":
        return f"what {name} returns"
    kind = record.kind.removeprefix("parameter-")
    return f"the {kind}" if name in ("", record.kind) else f"the {kind} of {name}"


def encode(golden: Golden) -> bytes:
    """The bytes of the file; equal content gives equal bytes. A floor that is not finite is stored as NaN, which means unknown."""
    records = [each.record for each in golden.records]
    mantissas, exponents = _scaled([record.sketch for record in records])
    index: dict[str, list[Any]] = {name: [getattr(record, name) for record in records] for name in _FIELDS}
    index["floors"] = [sorted(each.floors) for each in golden.records]
    index["exponent"] = exponents
    floats = [[each.record.norm, each.record.amax, each.record.weight_norm, *_floors(each)] for each in golden.records]
    tensors: dict[str, numpy.ndarray] = {
        "sketches": mantissas,
        "floats": numpy.array(floats, _STORED["F64"]).reshape(len(records), 3 + len(PLACEMENTS)),
        "index": numpy.frombuffer(zlib.compress(json.dumps(index, separators=(",", ":")).encode(), 9), numpy.uint8),
    }
    provenance = json.dumps(golden.provenance, sort_keys=True)
    sealed = {"schema": SCHEMA, "provenance": provenance, "checksum": _checksum(provenance, tensors)}
    return safetensors.numpy.save(tensors, {"precheck": json.dumps(sealed, sort_keys=True)})


def _scaled(sketches: Sequence[numpy.ndarray]) -> tuple[numpy.ndarray, list[int]]:
    """Writes each sketch as float32 numbers below 1 times a power of two, since its numbers may leave the range of float32."""
    exponents = [math.frexp(float(numpy.abs(sketch).max(initial=0.0)))[1] for sketch in sketches]
    below_one = numpy.nextafter(numpy.float32(1), numpy.float32(0))  # rounding up to 1 would turn the largest float64 into Inf
    with numpy.errstate(under="ignore"):
        scaled = [numpy.ldexp(sketch, -exponent).clip(-below_one, below_one) for sketch, exponent in zip(sketches, exponents, strict=True)]
        return numpy.array(scaled, _STORED["F32"]).reshape(len(scaled), _WIDTH), exponents


def _floors(each: GoldenRecord) -> list[float]:
    strange = each.floors.keys() - set(PLACEMENTS)
    if strange:
        raise ValueError(f"a golden holds floors for {', '.join(PLACEMENTS)}, not for {', '.join(sorted(strange))}")
    floors = [each.floors.get(placement, math.nan) for placement in PLACEMENTS]
    return [floor if math.isfinite(floor) else math.nan for floor in floors]


def _checksum(provenance: str, tensors: dict[str, numpy.ndarray]) -> str:
    digest = hashlib.blake2b(provenance.encode(), digest_size=16)
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype.name} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def decode(data: bytes, name: str) -> Golden:
    """Decodes the bytes of a golden. `name` is for error messages. Raises GoldenError if the bytes are not an intact golden."""
    sealed = _sealed(data, name)
    if sealed.get("schema") != SCHEMA:
        raise GoldenError(f"golden {name} has schema {sealed.get('schema')!r}, and this precheck reads schema {SCHEMA}; {_HINT}")
    try:
        tensors = _tensors(data)
        if sealed["checksum"] != _checksum(sealed["provenance"], tensors):
            raise GoldenError(f"golden {name} is damaged: its checksum does not match; {_HINT}")
        return Golden(_records(tensors), _provenance(json.loads(sealed["provenance"])))
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError, zlib.error) as error:
        raise GoldenError(f"golden {name} is damaged: {type(error).__name__}: {error}; {_HINT}") from None


def _sealed(data: bytes, name: str) -> dict[str, Any]:
    """Reads precheck's metadata from the safetensors header, which is eight bytes of length and then JSON."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        sealed = json.loads(json.loads(data[8 : 8 + length].decode())["__metadata__"]["precheck"])
    except (struct.error, ValueError, KeyError, TypeError, RecursionError):
        raise GoldenError(f"golden {name} is damaged, or not one of precheck's: its header cannot be read; {_HINT}") from None
    if not isinstance(sealed, dict):
        raise GoldenError(f"golden {name} is damaged: its header holds no object; {_HINT}")
    return sealed


def _tensors(data: bytes) -> dict[str, numpy.ndarray]:
    found = deserialize(data)  # type: ignore[no-untyped-call]
    return {name: numpy.frombuffer(bytes(held["data"]), _STORED[held["dtype"]]).reshape(held["shape"]) for name, held in found}


def _provenance(found: Any) -> Provenance:
    """Validates a provenance: plain values only, and all fields that a check needs."""
    provenance: Provenance = _typed(found, dict)
    for name, kind in _JUDGED_BY.items():
        _typed(provenance[name], kind)
    odd = [name for name, value in provenance.items() if type(value) not in (str, int, float, bool)]
    if odd:
        raise TypeError(f"its provenance has {odd[0]!r:.40}, which is no text and no number")
    return provenance


def _records(tensors: dict[str, numpy.ndarray]) -> list[GoldenRecord]:
    index = _index(tensors["index"].tobytes())
    records = []
    for place, (norm, amax, weight_norm, *floors) in enumerate(tensors["floats"].tolist()):
        facts = {name: _typed(index[name][place], kind) for name, kind in _FIELDS.items()}
        facts["shape"] = tuple(_typed(size, int) for size in facts["shape"])
        sketch = _unscaled(tensors["sketches"][place], _typed(index["exponent"][place], int))
        record = Record(sketch=sketch, norm=norm, amax=amax, weight_norm=weight_norm, **facts)
        held = dict(zip(PLACEMENTS, floors, strict=True))
        _refuse_impossible(record, held)
        records.append(GoldenRecord(record, {placement: held[placement] for placement in index["floors"][place]}))
    return records


def _refuse_impossible(record: Record, floors: dict[str, float]) -> None:
    """Raises ValueError for numbers that no tensor has, as in a forged file. A floor may be NaN, which means unknown."""
    sizes = {"norm": record.norm, "amax": record.amax, "norm of the weight": record.weight_norm}
    sizes |= {f"{placement} floor": floor for placement, floor in floors.items() if not math.isnan(floor)}
    counts = {"number of elements": record.numel, "smallest size": min(record.shape, default=0)}
    counts |= {name: getattr(record, name) for name in ("nan", "posinf", "neginf", "zeros", "roundings")}
    if record.kind not in get_args(Kind):
        raise ValueError(f"a tensor is of kind {record.kind!r:.40}; there are {', '.join(get_args(Kind))}")
    if not 1 <= record.step <= _LARGEST_COUNT:
        raise ValueError(f"{_called(record)} is of step {record.step!s:.24}; steps are counted from 1")
    for name, size in sizes.items():
        if not 0 <= size < math.inf:
            raise ValueError(f"{_called(record)} has {size} as its {name}; it is finite and at least 0")
    for name, count in counts.items():
        if not 0 <= count <= _LARGEST_COUNT:
            raise ValueError(f"{_called(record)} has {count!s:.24} as its {name}; it is from 0 to 2^63 - 1")


def _unscaled(mantissas: numpy.ndarray, exponent: int) -> numpy.ndarray:
    if mantissas.shape != (_WIDTH,) or not -1073 <= exponent <= 1024 or not (abs(mantissas) < 1).all():  # the range of frexp for float64
        raise ValueError("it holds what is no sketch")
    unscaled: numpy.ndarray = numpy.ldexp(mantissas.astype(numpy.float64), exponent)
    return unscaled


def _index(compressed: bytes) -> dict[str, list[Any]]:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(compressed, _LARGEST_INDEX)
    if not unpacking.eof:
        raise ValueError("its index is cut off, or larger than any golden's")
    return _typed(json.loads(text), dict)  # type: ignore[no-any-return]


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"its index holds {value!r:.40} where {kind.__name__} is due")
    return value
