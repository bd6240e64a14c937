"""Writes and reads recordings: the tensors of a run in another process or engine, in one safetensors file.

A file is written completely or not at all, and read without pickle. A tensor with more elements than `WHOLE` is kept as a sketch of 127 numbers and
its norm, and is compared as a whole. Smaller ones are compared bit for bit and by block.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from precheck import files
from precheck.observe.job import InputError
from precheck.observe.recording.sketch import sketch
from precheck.pairs.capture import COMPARED, Captured, Key
from precheck.pairs.module_dataflow import Passage, sketched
from precheck.words import described

VERSION = 1
WHOLE = 1 << 20
"""Elements up to which a whole tensor is kept, 4 MB in float32: all results of a typical test model, and most gradients."""
NAMES = {"output": "result", "loss": "loss", "input-gradient": "input-gradient", "gradient": "parameter-gradient", "update": "update"}
"""Kinds of tensors by the names in a user's mapping: "output", "output[logits]", "loss", "gradient:head.weight", "input-gradient[0]"."""
MODULE = "module:"
"""Prefix of the name of a module's result in a user's mapping: "module:layers.0"."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """One recorded tensor: its values or its sketch, its shape, and the digest of its bytes."""

    shape: tuple[int, ...]
    dtype: str
    digest: str
    nonfinite: int
    whole: torch.Tensor | None
    sketch: torch.Tensor | None


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """The contents of a file: tensors by their keys, their origin, and sketches of what passed between the modules."""

    kept: dict[Key, Kept]
    origin: dict[str, str]
    passages: tuple[Passage, ...] = ()


def digest(tensor: torch.Tensor) -> str:
    """A hash of dtype, shape and bytes."""
    raw = tensor.detach().cpu().contiguous()
    found = hashlib.sha256(f"{raw.dtype} {tuple(raw.shape)} ".encode())
    found.update(raw.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def captured(given: Mapping[str, Any]) -> tuple[Captured, list[Passage]]:
    """Tensors (or what torch.as_tensor takes) by the names that users give them, and results of modules. Raises InputError for an unknown name."""
    found, passages = Captured(), list[Passage]()
    for name, value in given.items():
        kind = next((each for each in sorted(NAMES, key=len, reverse=True) if name == each or name.startswith((f"{each}:", f"{each}["))), None)
        if kind is None and not name.startswith(MODULE):
            known = "output, output[name], loss, gradient:name, input-gradient[name], update:name, module:name"
            raise InputError(f"{name!r} is no name of a recorded tensor; there are {known}")
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"{name} is {described(value)}, which is no tensor; pass one, or what torch.as_tensor takes") from None
        if kind is None:
            module = name.removeprefix(MODULE)
            passages.append(Passage("out", module, 1, 0, sketched(tensor), module, shape=tuple(tensor.shape)))
            continue
        found.tensors[NAMES[kind], name if kind == "loss" else name.removeprefix(kind).removeprefix(":"), 1] = tensor.detach()
    return found, passages


def write(path: Path, seen: Captured, origin: Mapping[str, str], *, passages: Sequence[Passage] = (), whole: int = WHOLE) -> None:
    """Writes a recording. Raises InputError if there is nothing to keep, and OSError if the file cannot be written."""
    if not seen.tensors:
        raise InputError("nothing to record: no output, loss or gradient")
    stored: dict[str, torch.Tensor] = {}
    entries = []
    for place, ((kind, name, step), tensor) in enumerate(seen.tensors.items()):
        assert kind in COMPARED
        short = tensor.numel() <= whole
        floating = tensor.is_floating_point()
        stored[str(place)] = tensor.detach().cpu().contiguous().clone() if short or not floating else torch.from_numpy(sketch(tensor, finite=False))
        entries.append({
            "kind": kind, "name": name, "step": step, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."),
            "digest": digest(tensor), "whole": short or not floating, "nonfinite": int((~tensor.isfinite()).sum()) if floating else 0,
        })  # fmt: skip
    rows: dict[bytes, tuple[int, torch.Tensor]] = {}  # what a module returns and another reads is kept once
    told_passages = []
    for each in passages:
        row, _ = rows.setdefault(each.tensor.numpy().tobytes(), (len(rows), each.tensor))
        told_passages.append([each.kind, each.module, each.call, each.place, each.maker, each.given, each.caller, list(each.shape), row])
    if rows:
        stored["passages"] = torch.stack([tensor for _, tensor in rows.values()])
    told = json.dumps({"version": VERSION, "origin": dict(origin), "tensors": entries, "passages": told_passages})
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, safetensors.torch.save(stored, {"precheck_recording": told}))


def read(path: Path) -> Recording:
    """Reads a recording. Raises InputError if the file does not exist or is no recording."""
    try:
        with safe_open(path, "pt") as file:
            told = json.loads((file.metadata() or {})["precheck_recording"])
            if told["version"] != VERSION:
                raise InputError(f"{path} is a recording of version {told['version']}, and this precheck reads {VERSION}; record it again")
            kept = {}
            for place, each in enumerate(told["tensors"]):
                tensor = file.get_tensor(str(place))
                key = str(each["kind"]), str(each["name"]), int(each["step"])
                values = (tensor, None) if each["whole"] else (None, tensor)
                kept[key] = Kept(tuple(each["shape"]), str(each["dtype"]), str(each["digest"]), int(each["nonfinite"]), *values)
            rows = file.get_tensor("passages") if told.get("passages") else torch.zeros(0, device="cpu")  # not in recordings of older versions
            passages = [
                Passage(kind, module, call, place, rows[row], maker, given, caller, shape=tuple(shape))
                for kind, module, call, place, maker, given, caller, shape, row in told.get("passages", ())
            ]
            return Recording(kept, {str(name): str(value) for name, value in told["origin"].items()}, tuple(passages))
    except FileNotFoundError:
        raise InputError(f"{path} is not there; write it with precheck.record(path, model, inputs)") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no recording of precheck.record ({type(error).__name__}: {error})") from None
