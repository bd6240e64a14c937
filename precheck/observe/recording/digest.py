"""Takes the bits of every tensor at a boundary into a digest, so that two runs can be told to have given the same numbers."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

from precheck.torch_internals import no_dispatch

if TYPE_CHECKING:
    from precheck.observe.recording.recorder import Moved, Witness
    from precheck.observe.records import Trace

_FEW = 1 << 14
"""Bytes of a tensor on a CPU that are hashed one by one. Of others the integers that their bits make are added up, 4096 at a time: ten times as
fast, and a change of one element always shows."""
_TOGETHER = 1 << 12
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True, slots=True)
class Numbers:
    """What a run has given. `files` are those of the code that its forward pass and its loss have run, without torch's, precheck's and Python's.
    `draws` says whether it recorded random draws. Then dropout ran the substitute of `kernel_fixes`, as it does where decisions are recorded."""

    digest: str
    files: frozenset[str]
    draws: bool


class Digest:
    """A witness of one run. It passes each tensor on to the witness `beside` it, if there is one. The last pass of a repeated step counts."""

    def __init__(self, beside: Witness | None = None) -> None:
        self.beside = beside
        self.found: dict[str, bytes | list[torch.Tensor]] = {}  # by what the tensor is
        self.whole = True  # whether it could read every tensor

    def boundary(self, kind: str, name: str, step: int, tensor: torch.Tensor) -> None:
        if self.beside is not None:
            self.beside.boundary(kind, name, step, tensor)
        if kind == "returned":  # not every run records what functions return; it goes into other results
            return
        with no_dispatch(), torch.no_grad():
            self.add(f"{kind}:{name}@{step}", tensor)

    def moves(self, step: int, moved: Sequence[Moved]) -> None:
        if self.beside is not None:
            self.beside.moves(step, moved)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Takes a tensor into the digest, under a name."""
        own = tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not own or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
            self.whole = False
            return
        values = tensor.detach().resolve_conj().resolve_neg().contiguous()
        bits = (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)
        bits = bits if bits.dtype is torch.bool else bits.view(_INTEGERS[bits.element_size()])
        name = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        if bits.is_cpu and bits.nbytes <= _FEW:
            self.found[name] = hashlib.sha256(bits.numpy().tobytes()).digest()
            return
        even = bits.numel() // _TOGETHER * _TOGETHER
        self.found[name] = [bits[:even].view(-1, _TOGETHER).sum(1, dtype=torch.int64), bits[even:].sum(dtype=torch.int64).reshape(1)]

    def finish(self) -> str:
        """The digest. "" if a tensor could not be read."""
        whole = hashlib.sha256()
        for name, found in sorted(self.found.items()):
            whole.update(name.encode("utf8", "surrogatepass"))  # names may hold half a character
            for part in [found] if isinstance(found, bytes) else [each.cpu().numpy().tobytes() for each in found]:
                whole.update(part)
        return whole.hexdigest() if self.whole else ""


def numbers(digest: Digest, trace: Trace, *, draws: bool) -> Numbers | None:
    """The numbers of a run that has ended. None if a tensor could not be read, or the files are not known, as under a profiler written in C."""
    found = digest.finish()
    return Numbers(found, frozenset(trace.files), draws) if found and trace.files is not None else None


class Wish:
    """Notes the numbers of the watched runs of a block."""

    def __init__(self) -> None:
        self.seen: list[Numbers | None] = []

    @property
    def numbers(self) -> Numbers | None:
        """What all of them gave. None if there were none, if two of them differ, or if one is not known."""
        known = [each for each in self.seen if each is not None]
        if not known or len(known) < len(self.seen) or len({each.digest for each in known}) > 1:
            return None
        return Numbers(known[0].digest, frozenset().union(*(each.files for each in known)), any(each.draws for each in known))


_wish: ContextVar[Wish | None] = ContextVar("precheck_numbers", default=None)


@contextlib.contextmanager
def noted() -> Iterator[Wish]:
    """Inside the block, the numbers of watched runs are noted."""
    token = _wish.set(wish := Wish())
    try:
        yield wish
    finally:
        _wish.reset(token)


def wished() -> Wish | None:
    return _wish.get()
