"""Merges the findings of all ranks of a distributed run. Equal findings become one that names its ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from precheck.findings import Finding


def merged(findings: Mapping[int, Sequence[Finding]], size: int) -> list[Finding]:
    """Returns the findings of all ranks. Those of the same rule and line become one, with the words of the first rank."""
    by_place: dict[tuple[object, ...], dict[int, Finding]] = {}
    for rank in sorted(findings):
        for finding in findings[rank]:
            place = finding.rule, finding.severity, finding.phase, finding.source, finding.via
            by_place.setdefault(place, {}).setdefault(rank, finding)
    return [_named(found, size) for found in by_place.values()]


def _named(found: dict[int, Finding], size: int) -> Finding:
    ranks, first = tuple(found), next(iter(found.values()))
    head, *rest = first.message.split("\n")
    return dataclasses.replace(first, ranks=ranks, message="\n".join([f"{head} ({_words(ranks, size)})", *rest]))


def _words(ranks: tuple[int, ...], size: int) -> str:
    if len(ranks) == size:
        return f"on all {size} ranks" if size > 2 else "on both ranks"
    return f"on rank {ranks[0]}" if len(ranks) == 1 else f"on ranks {', '.join(map(str, ranks))}"
