"""Says which option or argument selects a part of the tests. Imports neither torch nor numpy."""

from __future__ import annotations

import pytest

_SELECTING = {
    "keyword": "-k", "markexpr": "-m", "deselect": "--deselect", "lf": "--lf", "stepwise": "--sw", "pyargs": "--pyargs",
    "collectonly": "--collect-only", "setuponly": "--setup-only", "setupplan": "--setup-plan",
}  # fmt: skip


def selection(config: pytest.Config) -> str:
    """The option or node id that selects a part of the tests. "" if there is none. Paths do not count."""
    given = next((flag for name, flag in _SELECTING.items() if config.getoption(name, None)), "")
    return given or next((f"the node id {argument}" for argument in config.args if "::" in argument), "")


def refuse_partial(config: pytest.Config) -> None:
    """Raises pytest.UsageError where --golden-prune would see a part of the tests only."""
    narrowed = selection(config) or (f"the path {config.args[0]}" if config.args_source is config.ArgsSource.ARGS else "")
    if narrowed:
        raise pytest.UsageError(f"--golden-prune deletes what no test uses, so it needs every test; leave {narrowed} out")
