"""The settings of a processor between which goldens travel: caps on what torch, oneDNN and MKL may use, threads, other interpreters."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Circumstance:
    """One way to run the same tests. `caps`: the feature of the processor that this setting takes away, without which it changes nothing."""

    name: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    caps: str = ""
    python: str = sys.executable

    @property
    def folder(self) -> str:
        return "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in self.name)

    @property
    def told(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.environment.items()) or "nothing"


ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
TWO_THREADS = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}  # which only says how threads wait
PLAIN = "as it is"
_OLDEST = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
SETTINGS = (
    Circumstance(PLAIN),
    Circumstance("two threads", TWO_THREADS, caps="2 processors"),
    Circumstance("torch: AVX2", {"ATEN_CPU_CAPABILITY": "avx2"}, caps="avx512f"),
    Circumstance("torch: no vectors", {"ATEN_CPU_CAPABILITY": "default"}, caps="avx2"),
    Circumstance("oneDNN: SSE4.1", {"ONEDNN_MAX_CPU_ISA": "SSE41"}, caps="avx"),
    Circumstance("oneDNN: AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, caps="avx512f"),
    Circumstance("oneDNN: AVX-512", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, caps="avx512_bf16"),
    Circumstance("oneDNN: no AMX", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, caps="amx_bf16"),
    Circumstance("MKL: compatible", {"MKL_CBWR": "COMPATIBLE"}, caps="sse4_1"),
    Circumstance("MKL: AVX2", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, caps="avx512f of an Intel processor"),
    Circumstance("all of the oldest", {**_OLDEST, **TWO_THREADS}, caps="avx2"),
)
"""MKL heeds MKL_ENABLE_INSTRUCTIONS on Intel's processors alone; on others MKL_CBWR=COMPATIBLE is what changes its products."""


def features() -> frozenset[str]:
    """What this processor has, in the words of its system; on one of Intel's each again as such."""
    import cpuinfo

    told = cpuinfo.get_cpu_info()
    flags = set(told.get("flags", ()))
    intel = {f"{flag} of an Intel processor" for flag in flags if told.get("vendor_id_raw") == "GenuineIntel"}
    return frozenset(flags | intel | ({"2 processors"} if (os.cpu_count() or 1) > 1 else set()))


def available(settings: Sequence[Circumstance], has: frozenset[str]) -> tuple[list[Circumstance], list[str]]:
    """Those that change something on a processor that has these features; and a line for each of the others."""
    left = [each for each in settings if each.caps and each.caps not in has]
    lines = [f"skipped: {each.name}, since there is no {each.caps} here to be taken away" for each in left]
    return [each for each in settings if each not in left], lines


def interpreters(paths: Sequence[str]) -> Iterator[Circumstance]:
    """Other interpreters, each as it is, called by the torch that they have. Raises ValueError for one that cannot be used."""
    for path in paths:
        try:
            done = subprocess.run([path, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
        except OSError as error:
            raise ValueError(f"--python={path}: {error.strerror}") from None
        if done.returncode:
            raise ValueError(f"--python={path}: it has no torch to import: {done.stderr.strip().splitlines()[-1]}")
        yield Circumstance(f"torch {done.stdout.strip()}", python=path)
