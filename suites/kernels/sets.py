"""Every set of kernels, read from the folders `broken` and `rewrites`: a file there is in the set that its name begins with.

Set 0 was there while the judge was written. Each later set was committed before the judge was tried on it.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from cases import BROKEN, REWRITES, Case, Rewrite

for _path in sorted(Path(__file__).parent.glob("*/set*.py")):
    importlib.import_module(f"{_path.parent.name}.{_path.stem}")

NUMBERS = sorted(BROKEN)
BROKEN_BY_NAME: dict[str, Case] = {name: each for number in NUMBERS for name, each in BROKEN[number].items()}
REWRITES_BY_NAME: dict[str, Rewrite] = {name: each for number in NUMBERS for name, each in REWRITES[number].items()}
