"""One report for a run of many ranks: equal findings are one, which names its ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from precheck.findings import Finding


def merged(heard: Mapping[int, Sequence[Finding]], size: int) -> list[Finding]:
    """The findings of all ranks: those of the same rule and line are one, as they are within a rank, worded as on the first."""
    by_place: dict[tuple[object, ...], dict[int, Finding]] = {}
    for rank in sorted(heard):
        for finding in heard[rank]:
            by_place.setdefault(_place(finding), {}).setdefault(rank, finding)
    return [_named(found, size) for found in by_place.values()]


def _place(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.severity, finding.phase, finding.source, finding.via


def _named(found: dict[int, Finding], size: int) -> Finding:
    ranks, first = tuple(found), next(iter(found.values()))
    head, *rest = first.message.split("\n")
    return dataclasses.replace(first, ranks=ranks, message="\n".join([f"{head} ({_words(ranks, size)})", *rest]))


def _words(ranks: tuple[int, ...], size: int) -> str:
    if len(ranks) == size:
        return f"on all {size} ranks" if size > 2 else "on both ranks"
    return f"on rank {ranks[0]}" if len(ranks) == 1 else f"on ranks {', '.join(map(str, ranks))}"
