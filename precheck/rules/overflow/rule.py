"""Finds Inf and NaN where the reference is finite, from numbers beyond the format's range.

They are errors if they do harm: NaN or a wrong result follows, Python or the backward pass reads them, or nothing reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from precheck.analysis.facts import Fact, Readers
from precheck.analysis.noise_floor.boundaries import NEAR
from precheck.analysis.unrepresentable.exceptions import Unstorable
from precheck.analysis.unrepresentable.nonfinite import FILLS, HARMED, Broken
from precheck.findings import Finding
from precheck.rules.advice import rescaled
from precheck.rules.better_forms import better_form, in_range
from precheck.rules.rule import Candidate, Compared, Rule, broken_boundary
from precheck.words import digits


class Overflow(Rule):
    limits = (HARMED, FILLS, NEAR)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Broken) and fact.how == "beyond the format":
            text = f"{digits(fact.root.beyond)} in the reference is beyond the largest {fact.root.dtype}, {fact.limit:.5g}"
            return f"{text}; other elements overflow in the reference too" if _everywhere(fact) else text
        if isinstance(fact, Broken) and fact.how == "infinite":
            return f"{'NaN' if fact.root.nans else 'Inf'} where the reference has {digits(fact.root.beyond)}"
        if isinstance(fact, Unstorable):
            return f"{digits(fact.scalar)} is beyond the largest {fact.dtype}, {fact.limit:.5g}, and torch raises instead of storing it"
        return super().words(fact)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        if isinstance(candidate.fact, Unstorable):
            fact = candidate.fact
            return f"give a number that {fact.dtype} holds, such as torch.finfo(torch.{fact.dtype}).{'min' if fact.scalar < 0 else 'max'}"
        if isinstance(candidate.fact, Broken) and _everywhere(candidate.fact):
            way = better_form(candidate.operation, readers) or rescaled(candidate.operation, "down") or "rewrite the formula"
            return f"{way}: {wide} overflows here too"
        return in_range(candidate.operation, readers, wide, "down")

    def beside(self, run: Compared) -> Iterator[Finding]:
        """The first boundary that is not finite, in the order of the run."""
        yield from broken_boundary(self, run)


def _everywhere(fact: Broken) -> bool:
    """Whether the op overflows in the reference too: elements are Inf there, and all that it reads is finite."""
    root = fact.root
    return fact.how == "beyond the format" and root.unheld > 0 and root.maker is not None and not any(each.unheld for each in root.maker.inputs)
