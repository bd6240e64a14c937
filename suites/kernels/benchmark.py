"""What is found of the broken kernels, and who else would have seen them: python suites/kernels/benchmark.py [--write docs/kernels.md]."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import broken_first  # noqa: F401
import broken_second  # noqa: F401
from broken_cases import ALL

import precheck


def main() -> None:
    chosen = [each for each in ALL.values() if len(sys.argv) < 2 or sys.argv[1] in each.name]
    for each in chosen:
        for wrong in (True, False):
            begun = time.monotonic()
            report = precheck.compare_kernels(each.kernel(wrong), each.reference, each.inputs(), budget=10 if wrong else 6)
            errors = [finding.rule for finding in report.errors]
            rules = errors or [finding.rule for finding in report.findings]
            good = (each.rule in rules) if wrong else not errors
            mark = "ok  " if good else "MISS" if wrong and not rules else "BAD "
            print(f"{mark} {'broken' if wrong else 'fixed '} {time.monotonic() - begun:5.1f} s  {each.name}: {each.rule} {rules}")
            if not good:
                print("      ", [str(finding)[:300] for finding in report.findings])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
