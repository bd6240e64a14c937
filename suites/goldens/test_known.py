"""The file of known failures: what is written is read back, in an order that merges; what means nothing is one error."""

from __future__ import annotations

import datetime
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precheck.goldens.known import HEAD, Check, Failures, KnownError, read, text, write
from precheck.judge.known_failures import Family, Known

FAILURES: Failures = {
    Check("b.py::test_b[a\"\\x]", "16-true"): [
        Known("overflow", "forward l.0", 32.0, datetime.date(2027, 1, 1), "#12", {"forward l.*": Family(math.inf, 12), "forward": Family(1.4)}),
        Known("gradient-underflow", "backward", 0.75),
    ],
    Check("a.py::test_a", "bf16-mixed", 2): [Known("missing-gradient", "backward a", 3.0)],
    Check("a.py::test_a", "bf16-mixed"): [Known("decision-flip", "forward", None)],
}  # fmt: skip

ENTRY = '[[failure]]\ntest = "a.py::test_a"\nprecision = "bf16-mixed"\nrule = "overflow"\nat = "forward"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "precision-known.toml"


def test_what_is_written_is_read_back(path: Path) -> None:
    write(path, FAILURES)
    assert read(path) == FAILURES
    assert list(path.parent.iterdir()) == [path], "nothing half written is left"


@given(st.text(min_size=1), st.text(), st.floats(min_value=0.001, max_value=1e30).map(lambda number: float(f"{number:.3g}")))
def test_whatever_a_test_and_a_reason_are_called(tmp_path_factory: pytest.TempPathFactory, test: str, reason: str, times: float) -> None:
    path = tmp_path_factory.mktemp("any") / "known.toml"
    failures = {Check(test, "16-true"): [Known("nan", "forward", times, None, reason, {test: Family(times)})]}
    write(path, failures)
    assert read(path) == failures


def test_the_order_hangs_on_names_alone_and_tables_do_not_touch() -> None:
    backwards = dict(reversed(FAILURES.items()))
    assert text(backwards) == text(FAILURES)
    assert text(FAILURES).startswith(HEAD)
    tests = [line for line in text(FAILURES).splitlines() if line.startswith(("test", "check"))]
    assert tests == ['test = "a.py::test_a"', 'test = "a.py::test_a"', "check = 2", *['test = "b.py::test_b[a\\"\\\\x]"'] * 2]


def test_no_file_is_no_failures_and_no_failures_are_no_file(path: Path) -> None:
    assert read(path) == {}
    write(path, FAILURES)
    write(path, {})
    assert not path.exists()
    write(path, {})


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.toml"
    target.write_text("", encoding="utf8")
    path.symlink_to(target)
    write(path, FAILURES)
    assert path.is_symlink()
    assert read(target) == FAILURES


def test_comments_and_windows_line_ends_are_read(path: Path) -> None:
    path.write_bytes(f"# mine\r\n{ENTRY}until = 2027-01-31 # soon\n".replace("\n", "\r\n").encode())
    assert read(path)[Check("a.py::test_a", "bf16-mixed")][0].until == datetime.date(2027, 1, 31)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<<<<<<< ours\n", r"is no TOML \(.*\); was a merge left half done\? Mend it by hand, or take it from the last commit"),
        ("[precheck]\n", "there is no key 'precheck' here; failures are tables"),
        ("failure = 3\n", "there is no key 'failure' here; failures are tables"),
        ("failure = [3]\n", r"failure 1: accepted is a table \[\[failure\]\] with test, precision, "),
        (f"{ENTRY}untill = 2027-01-01\n", r"failure 1 \(a.py::test_a\): there is no key 'untill'; there are test, precision, check, rule, "),
        (f'{ENTRY}until = "2027-01-01"\n', "until = 2027-01-01; accepted is a date, as in 2027-01-31"),
        (f"{ENTRY}until = 2027-01-01T10:00:00\n", "until = 2027-01-01 10:00:00; accepted is a date"),
        (f"{ENTRY}reason = 12\n", "reason = 12; accepted is a text in quotes"),
        (f"{ENTRY}measured = true\n", "measured = True; accepted is a number"),
        (f"{ENTRY}check = 0\n", "check = 0; accepted is a whole number from 1"),
        (ENTRY.replace("at =", "reason ="), "there is no at; each failure has test, precision, rule, at"),
        (ENTRY.replace("overflow", "overflown"), "rule = 'overflown' is not accepted; there are overflow, nan, "),
        (ENTRY.replace("overflow", "golden-stale"), "rule = 'golden-stale' is not accepted; refresh the golden instead"),
        (ENTRY.replace("bf16-mixed", "bf16"), "precision = 'bf16' is not accepted; there are 32-true, "),
        (f'{ENTRY}[failure.beyond]\n"forward" = "much"\n', r"beyond 'forward' = much; accepted are a number, or \{ times = 2.5, modules = 12 \}"),
        (f"{ENTRY}{ENTRY}", "overflow at forward under bf16-mixed is there twice; keep one of the two"),
    ],
)
def test_what_means_nothing_is_one_error(path: Path, content: str, message: str) -> None:
    path.write_text(content, encoding="utf8")
    with pytest.raises(KnownError, match=message):
        read(path)


def test_a_file_that_cannot_be_read_or_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf8")
    with pytest.raises(KnownError, match="cannot be read: Is a directory"):
        read(tmp_path)
    with pytest.raises(KnownError, match="cannot be written: Not a directory"):
        write(tmp_path / "file" / "known.toml", FAILURES)
