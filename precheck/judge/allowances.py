"""The argument `allow`: errors of the rules that a user allows become notes with the user's reason. Allowances that were not needed are reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from precheck.findings import RULES, Finding, Report
from precheck.observe.job import InputError
from precheck.words import described, suggestion

EXAMPLE = 'allow={"lost-update": "the weights are rounded once, at the end"}'


def checked(allow: Mapping[str, str] | None) -> dict[str, str]:
    """Returns `allow` as a dict from rule to reason. Raises InputError for an unknown rule and for a rule without a reason."""
    if allow is None:
        return {}
    if not isinstance(allow, Mapping):
        raise InputError(f"allow is {described(allow)}; pass a dict of rules, each with the reason, as in {EXAMPLE}")
    for rule, reason in allow.items():
        if rule not in RULES:
            raise InputError(f"allow: there is no rule {rule!r}; {suggestion(rule, RULES)}")
        if not isinstance(reason, str) or not reason.strip():
            raise InputError(f"allow: {rule} is allowed without a reason ({reason!r}); say why in words, as in {EXAMPLE}")
    return {rule: " ".join(reason.split()) for rule, reason in allow.items()}


def apply(report: Report, allow: Mapping[str, str], *, judged: bool = True) -> None:
    """Turns the findings that `allow` names into notes. Writes into `report.facts` which allowances were needed and which were not.

    `judged`: whether the run was judged in a low precision. A check of float32 or of a stale golden finds no such rule, so it needs no allowance and
    says nothing of them.
    """
    if not allow:
        return
    needed = {finding.rule for finding in report.findings if finding.severity != "note" and finding.rule in allow}
    findings, report.findings = report.findings, []
    report.add(_with_notes(findings, allow))
    for name, rules in (("allowed", needed), ("not_needed", allow.keys() - needed)):
        if rules and (judged or name == "allowed"):
            report.facts[name] = {rule: reason for rule, reason in allow.items() if rule in rules}


def _with_notes(findings: list[Finding], allow: Mapping[str, str]) -> Iterator[Finding]:
    """The findings, with those of allowed rules as notes."""
    for finding in findings:
        if finding.severity == "note" or finding.rule not in allow:
            yield finding
            continue
        first, end, rest = finding.message.partition("\n")
        yield dataclasses.replace(finding, severity="note", message=f"{first}; allowed: {allow[finding.rule]}{end}{rest}")
