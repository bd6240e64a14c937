"""Warns of values that are close to the largest float16 number.

The largest magnitude of each module's output is compared with 65504.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from precheck import formats
from precheck.analysis.labels import label
from precheck.analysis.limit import Limit
from precheck.findings import Finding
from precheck.rules.rule import Compared, Rule, at
from precheck.words import digits

HEADROOM_BITS = Limit(3.0, "bits")
"""The smallest safe distance between the largest value and 65504. Healthy float16 models keep 11.0 to 14.2 bits. Models that were at risk kept 3 to
9.8. With less than 3 bits, values eight times as large (another batch, a few more steps) overflow."""


class Headroom(Rule):
    limits = (HEADROOM_BITS,)

    def beside(self, run: Compared) -> Iterator[Finding]:
        """A warning on the forward tensor that is closest to float16's maximum, if few bits are left."""
        if run.precision.compute is not formats.FP16:
            return
        outputs = [record for record in run.low.records.values() if record.kind == "output" and record.dtype == "float16" and record.amax > 0]
        closest = max(outputs, key=lambda record: record.amax, default=None)
        bits = math.inf if closest is None else math.log2(formats.FP16.max / closest.amax)
        if closest is not None and bits < HEADROOM_BITS:
            text = f"{label('output', closest.name)}: magnitudes reach {digits(closest.amax)}; float16 ends at 65504, {2**bits:.2g} times as much"
            yield at(closest, "headroom", "warning", text, measured=bits, limit=HEADROOM_BITS)
