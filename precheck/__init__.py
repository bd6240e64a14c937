"""precheck checks whether a PyTorch model works in low precision. The public names; one module here for each verb.

Names are loaded at their first use. So `import precheck`, which pytest runs at every start where the plugin is installed, imports neither torch nor
numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precheck import strategies as strategies
    from precheck.benchmarking import Benchmark as Benchmark
    from precheck.benchmarking import benchmark as benchmark
    from precheck.checking import check as check
    from precheck.comparing import compare as compare
    from precheck.comparing_kernels import compare_kernels as compare_kernels
    from precheck.findings import RULES as RULES
    from precheck.findings import Finding as Finding
    from precheck.findings import PrecisionFailure as PrecisionFailure
    from precheck.findings import Report as Report
    from precheck.formats import FORMATS as FORMATS
    from precheck.formats import Format as Format
    from precheck.goldens.file import GoldenError as GoldenError
    from precheck.goldens.file import GoldenMissing as GoldenMissing
    from precheck.input_search.counterexample import Counterexample as Counterexample
    from precheck.layer_selection import Kept as Kept
    from precheck.layer_selection import layers_to_keep as layers_to_keep
    from precheck.measurement import measure as measure
    from precheck.monitoring import Monitor as Monitor
    from precheck.monitoring import monitor as monitor
    from precheck.observe.job import InputError as InputError
    from precheck.observe.models.float32_parts import functions_in_float32 as functions_in_float32
    from precheck.observe.models.float32_parts import in_float32 as in_float32
    from precheck.observe.models.layer_recipes import layers_in as layers_in
    from precheck.precisions import PRECISIONS as PRECISIONS
    from precheck.precisions import Precision as Precision
    from precheck.precisions import PrecisionError as PrecisionError
    from precheck.quantisation import quantised as quantised
    from precheck.recording import record as record
    from precheck.remedies import Remedy as Remedy
    from precheck.remedies import remedy as remedy
    from precheck.searching import search as search
    from precheck.surveying import survey as survey
    from precheck.varying import vary as vary
    from precheck.watching import watch as watch

__version__ = "0.1.0"

_HOMES = {
    name: f"precheck.{module}"
    for module, names in {
        "benchmarking": "benchmark Benchmark", "checking": "check", "comparing": "compare", "comparing_kernels": "compare_kernels",
        "findings": "Finding PrecisionFailure Report RULES", "formats": "FORMATS Format", "goldens.file": "GoldenError GoldenMissing",
        "input_search.counterexample": "Counterexample", "layer_selection": "Kept layers_to_keep", "measurement": "measure",
        "monitoring": "Monitor monitor", "observe.models.float32_parts": "functions_in_float32 in_float32", "observe.job": "InputError",
        "observe.models.layer_recipes": "layers_in", "precisions": "PRECISIONS Precision PrecisionError", "quantisation": "quantised",
        "recording": "record", "remedies": "remedy Remedy", "searching": "search", "surveying": "survey", "varying": "vary", "watching": "watch",
    }.items()
    for name in names.split()
}  # fmt: skip
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name == "strategies":  # a module that needs hypothesis, so `import *` must not load it
        return importlib.import_module("precheck.strategies")
    if name not in _HOMES:
        import difflib

        close = difflib.get_close_matches(name, _HOMES, n=1)
        known = f"do you mean {close[0]}?" if close else f"it has {', '.join(_HOMES)}"
        raise AttributeError(f"module 'precheck' has no attribute {name!r}; {known}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
