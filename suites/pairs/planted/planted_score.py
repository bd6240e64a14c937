"""What `precheck.compare` says of the set, pair by pair.

    python suites/pairs/planted/planted_score.py [--only gpt] [--batch pair_fifth] [--write docs/pairs.md]
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import time
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2])]

import torch  # noqa: E402
from pair_cases import CASES, PRECISIONS, Case  # noqa: E402
from pair_families import FAMILIES  # noqa: E402

import precheck  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Told:
    """What was said of one pair under one precision."""

    case: Case
    precision: str
    verdict: str
    module: str
    message: str
    seconds: float

    @property
    def found(self) -> bool:
        return self.verdict in ("different", "less accurate")

    @property
    def below(self) -> bool:
        """Whether a difference of the functions was seen, which rounding hides under this precision."""
        return self.verdict == "undecidable" or (self.verdict == "bitwise" and self.precision != "32-true")

    @property
    def placed(self) -> bool:
        return self.found and self.module in self.case.modules

    @property
    def worded(self) -> bool:
        return self.found and bool(re.search(self.case.said, self.message))

    @property
    def right(self) -> bool:
        return not self.found if self.case.healthy else (self.placed and self.worded) or (self.below and self.precision != "32-true")


def told(case: Case, precision: str) -> Told:
    torch.manual_seed(0)
    model, other, inputs, given = case.make()
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = precheck.compare(model, other, inputs, precision=precision, **given)
    first = report.errors[0] if report.errors else report.findings[0]
    return Told(case, precision, str(report.verdict), first.module, first.message, time.perf_counter() - begun)


def table(all_told: list[Told]) -> str:
    """The score by precision."""
    rows = ["| precision | healthy accused | broken found | below the noise | first module right |", "|---|---|---|---|---|"]
    for precision in PRECISIONS:
        some = [each for each in all_told if each.precision == precision]
        health, faults = [each for each in some if each.case.healthy], [each for each in some if not each.case.healthy]
        found, below = sum(each.found for each in faults), sum(each.below for each in faults)
        placed = sum(each.placed for each in faults)
        accused = f"{sum(each.found for each in health)} of {len(health)}"
        rows.append(f"| {precision} | {accused} | {found} of {len(faults) - below} | {below} | {placed} of {found} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="what names of pairs contain")
    parser.add_argument("--batch", default="", help="what names of the modules begin with that make the pairs")
    parser.add_argument("--precision", choices=PRECISIONS, help="one alone")
    parser.add_argument("--write", type=Path, help="a page whose table is replaced")
    chosen = parser.parse_args()
    print(f"{len(FAMILIES)} families, {len(CASES)} pairs")
    all_told = []
    for case in CASES.values():
        for precision in (chosen.precision,) if chosen.precision else PRECISIONS:
            if chosen.only in case.name and case.batch.startswith(chosen.batch):
                try:
                    each = told(case, precision)
                except Exception as raised:
                    print(f"NOT {case.name} | {precision} | {type(raised).__name__}: {raised}"[:200], flush=True)
                    continue
                all_told.append(each)
                sign = "ok  " if each.right else "BAD "
                print(f"{sign}{case.name} | {precision} | {each.verdict} | in {each.module!r} not {case.modules} | {each.seconds:.2f} s", flush=True)
                if not each.right:
                    print(f"      {each.message}", flush=True)
    print(table(all_told))
    if chosen.write is not None:
        replaced(chosen.write, table(all_told))


def replaced(page: Path, rows: str) -> None:
    begin, end = "<!-- made by planted_score.py: begin -->", "<!-- made by planted_score.py: end -->"
    before, _, rest = page.read_text(encoding="utf8").partition(begin)
    page.write_text(f"{before}{begin}\n{rows}\n{end}{rest.partition(end)[2]}", encoding="utf8")


if __name__ == "__main__":
    main()
