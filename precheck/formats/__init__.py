"""Number formats and casts to them: floats, blocks of floats with a common scale, integers.

`floats` has exact arithmetic for single numbers and needs no torch; this package exports its names. The others work on tensors:
`casting` rounds to a float format, `mx` and `nvfp4` cast blocks with a scale, `scaled` casts tensors, rows and tiles with a float32
scale, `integers` casts to int8 and int4. Casts return float32 tensors and the scales that they chose.
"""

from __future__ import annotations

from precheck.formats.floats import BF16, E2M1, E2M3, E3M2, E4M3FN, E5M2, FORMATS, FP16, FP32, FP64, ONE_ROUNDING, TF32, Format, of_dtype

__all__ = ["BF16", "E2M1", "E2M3", "E3M2", "E4M3FN", "E5M2", "FORMATS", "FP16", "FP32", "FP64", "ONE_ROUNDING", "TF32", "Format", "of_dtype"]
