"""`python suites/zoo/reseeded.py --seed 1000`: the zoo with other random numbers.

The zoo's programs make weights and data from fixed seeds, and a rule may be right on these by luck. Another seed gives each bug, twin and control
numbers that nobody has seen. `--fetched` judges as on an accelerator, of which samples are fetched. `--lines FILE` writes a line of JSON for each
program. A twin or control that is accused is printed: its numbers may really be wrong with that seed, so each is to be judged.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # it wraps torch.manual_seed when it is first imported, which would undo what `reseed` does

import precheck
from precheck.observe.shadow.comparing import fetching

HERE = str(Path(__file__).parent)
PATIENCE = 60  # seconds for one program


class LateError(BaseException):
    """A program took too long. The zoo's programs catch exceptions, and not this one."""


def _late(*_: object) -> None:
    raise LateError


def _own() -> bool:
    """Whether a program of the zoo is the caller."""
    return sys._getframe(2).f_code.co_filename.startswith(HERE)


def reseed(offset: int) -> None:
    """Adds `offset` to each seed that a program of the zoo sets from now on. Other code's seeds stay."""
    plain, seeded = torch.Generator, torch.manual_seed

    class Moved(plain):  # type: ignore[misc, valid-type]
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed(seed + offset)

    class Made(type):
        def __instancecheck__(cls, other: object) -> bool:
            return isinstance(other, plain)

        def __call__(cls, device: Any = "cpu") -> torch.Generator:
            return Moved(device) if _own() else plain(device)

    class Generator(metaclass=Made):
        """Stands for torch.Generator."""

    def manual_seed(seed: int) -> torch.Generator:
        return seeded(seed + offset if _own() else seed)

    torch.Generator = Generator  # type: ignore[assignment, misc]
    torch.manual_seed = torch.random.manual_seed = manual_seed
    seeded(offset)


def watched(code: Callable[[], Any], precision: str | None, raises: type[Exception] | None = None) -> list[precheck.Finding]:
    """What `watch` finds in a program. An error that a bug raises is its own; any other is raised."""
    try:
        with precheck.watch(precision=precision) as report:
            kept = code()  # what a program returns, its user keeps
        del kept
    except Exception as error:
        if raises is None or type(error) is not raises:
            raise
    return report.findings


def programs(names: list[str]) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """Kind and name of each program, and what judges it."""
    from bugs import ALL, AT_FAULT  # imported after the seeds were moved: some modules draw when they are imported
    from healthy import ACCUSED, EXACT, IDIOMS

    def bug(each: Any) -> dict[str, Any]:
        first = watched(each.bug, each.precision or None, each.raises)[:1]
        path, lines = AT_FAULT[each.name]
        places = [finding.source.rpartition(":") for finding in first]
        here = any(Path(file).resolve() == path and line.isdigit() and int(line) in lines for file, _, line in places)
        found = any(finding.severity == each.severity for finding in first)
        return {"found": found, "line": found and here, "missed_before": bool(each.expected_miss),
                "accused": told(watched(each.fixed, each.precision or None, each.raises))}  # fmt: skip

    def control(each: Any) -> dict[str, Any]:
        return {"accused": told(watched(each, "32-true" if each.__name__ in EXACT else None)), "accused_before": each.__name__ in ACCUSED}

    for kind, judge, every in (("bug", bug, ALL), ("control", control, IDIOMS)):
        for each in every:
            name = each.name if kind == "bug" else each.__name__
            if not names or name in names:
                yield kind, name, lambda each=each, judge=judge: judge(each)  # type: ignore[misc]


def told(findings: list[precheck.Finding]) -> list[str]:
    return [f"{finding.rule}: {finding.message}" for finding in findings if finding.severity == "error"]


def judged(judge: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a program's judge says, or why there is nothing to say: some of the zoo's programs fail with other numbers."""
    signal.alarm(PATIENCE)
    try:
        return judge()
    except (Exception, LateError) as error:
        return {"raised": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    finally:
        signal.alarm(0)


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """How many bugs are found, and each twin and control that is accused but is not with the zoo's own seeds."""
    ran = [row for row in rows if "raised" not in row]
    bugs, controls = ([row for row in ran if row["kind"] == kind] for kind in ("bug", "control"))
    twins, healthy = ([row for row in some if row["accused"] and not row.get("accused_before")] for some in (bugs, controls))
    lines = [f"bugs {len(bugs)}: found {sum(row['found'] for row in bugs)}, on the line {sum(row['line'] for row in bugs)}, "
             f"twins accused {len(twins)}; controls accused {len(healthy)} of {len(controls)}"]  # fmt: skip
    lines += [f"{kind} {row['name']}: {row['accused'][0][:250]}" for kind, some in (("twin of", twins), ("control", healthy)) for row in some]
    lines += [f"missed: {', '.join(row['name'] for row in bugs if not row['found'] and not row['missed_before'])}"]
    return lines + [f"not judged: {row['name']}: {row['raised']}" for row in rows if "raised" in row]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python suites/zoo/reseeded.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="bugs and controls (default: all)")
    parser.add_argument("--seed", type=int, default=1000, help="is added to each seed (default: %(default)s)")
    parser.add_argument("--fetched", action="store_true", help="fetch samples, as from an accelerator")
    parser.add_argument("--lines", type=Path, help="record, one JSON object a line")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    if asked.fetched:
        fetching.elsewhere = lambda tensor: True  # type: ignore[assignment]
    reseed(asked.seed)
    rows = []
    for kind, name, judge in programs(asked.names):
        rows.append({"kind": kind, "name": name, **judged(judge)})
        if asked.lines:
            with asked.lines.open("a") as file:
                print(json.dumps(rows[-1]), file=file)
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
