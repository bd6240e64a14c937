"""Number formats: floats, blocks of them under one scale, integers; and the casts to them.

`floats` is the exact arithmetic of single numbers and needs no torch; its names are this package's. The others work on tensors:
`casting` rounds to a float format, `mx` and `nvfp4` blocks under a scale, `scaled` tensors, rows and tiles under a float32 scale,
`integers` to int8 and int4. A cast gives what the numbers stand for, as float32, and the scales that it chose.
"""

from __future__ import annotations

from precheck.formats.floats import BF16, E2M1, E2M3, E3M2, E4M3FN, E5M2, FORMATS, FP16, FP32, FP64, TF32, Format, of_dtype

__all__ = ["BF16", "E2M1", "E2M3", "E3M2", "E4M3FN", "E5M2", "FORMATS", "FP16", "FP32", "FP64", "TF32", "Format", "of_dtype"]
