"""What the command line and the ini file ask for, checked once. Imports neither torch nor numpy."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from precheck.precisions import PRECISIONS, Policy, Precision, PrecisionError, resolve_all

Which = Literal["missing", "changed", "all"]
Unused = Literal["warn", "fail", "ignore"]
WHICH = ("missing", "changed", "all")
UNUSED = ("warn", "fail", "ignore")
POLICIES = ("cuda", "native")
REPORTS = ("term", "json:PATH")
_SELECTING = {"keyword": "-k", "markexpr": "-m", "deselect": "--deselect", "lf": "--lf", "failedfirst": "--ff", "stepwise": "--sw"}


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """One pytest run's wishes. `named`: a precision was asked for, on the command line or in the ini file."""

    precisions: tuple[Precision, ...]
    named: bool
    golden_dir: Path
    refresh: Which | None
    unused: Unused
    prune: bool
    term: bool
    json: tuple[Path, ...]
    top: int
    device: str


KEY = pytest.StashKey[Settings]()


def add_options(parser: pytest.Parser) -> None:
    """The command line and, with underscores for hyphens, the ini file; the command line wins."""
    group = parser.getgroup("precheck", "numerical precision (precheck)")
    group.addoption(
        "--precision", metavar="NAME[,NAME]",
        help=f"run check_precision tests under these: {', '.join(PRECISIONS)} (bf16 is bf16-mixed; default: 32-true, do the goldens still hold?)",
    )  # fmt: skip
    group.addoption(
        "--golden-refresh", nargs="?", const="changed", type=_which, metavar="WHICH",
        help="record goldens in float32: those that are missing, those that changed (the default), or all",
    )  # fmt: skip
    group.addoption("--golden-dir", metavar="PATH", help="where goldens are kept, relative to the root of the project (default: golden)")
    group.addoption("--golden-unused", choices=UNUSED, help="what to do about goldens that no test uses (default: warn)")
    group.addoption("--golden-prune", action="store_true", help="delete goldens that no test uses; only after a whole run that passed")
    group.addoption(
        "--drift-report", action="append", metavar="TYPE[:DEST]", help="report the drift of every check: term, json:PATH; may be given more than once"
    )
    group.addoption("--drift-top", type=int, metavar="N", help="rows of the drift table (default: 10; 0: all)")
    group.addoption("--precision-device", metavar="DEVICE", help="what the precision_device fixture gives: auto, cpu, cuda, cuda:N (default: auto)")
    parser.addini("precision", "default of --precision")
    parser.addini("golden_dir", "default of --golden-dir", default="golden")
    parser.addini("golden_unused", "default of --golden-unused: warn, fail or ignore", default="warn")
    parser.addini("drift_report", "default of --drift-report, one a line", type="linelist")
    parser.addini("drift_top", "default of --drift-top", default="10")
    parser.addini("precision_device", "default of --precision-device", default="auto")
    parser.addini("precision_policy", "op policy of autocast on a CPU: cuda (CUDA's, the default) or native (the CPU's own)", default="cuda")


def _which(value: str) -> str:
    if value not in WHICH:  # a path after the bare option is taken for its value
        raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(WHICH)}; before a path, write --golden-refresh=changed")
    return value


def settings_of(config: pytest.Config) -> Settings:
    """The settings of a run. Raises pytest.UsageError with one line for what cannot be."""
    policy = cast(Policy, _one_of("precision_policy", config.getini("precision_policy"), POLICIES))
    named = _either(config, "precision")
    try:
        precisions = resolve_all(named or "32-true", policy=policy)
    except PrecisionError as error:
        raise pytest.UsageError(f"--precision: {error}") from None
    refresh = config.getoption("golden_refresh")
    if refresh and named and [precision.name for precision in precisions] != ["32-true"]:
        raise pytest.UsageError(f"--golden-refresh records in float32, and --precision={named} asks for another; leave --precision out")
    reports = config.getoption("drift_report") or config.getini("drift_report")
    settings = Settings(
        precisions=precisions,
        named=bool(named),
        golden_dir=config.rootpath / str(_either(config, "golden_dir")),
        refresh=refresh,
        unused=cast(Unused, _one_of("golden_unused", _either(config, "golden_unused"), UNUSED)),
        prune=config.getoption("golden_prune"),
        term="term" in reports,
        json=tuple(config.invocation_params.dir / _destination(report) for report in reports if report != "term"),
        top=_count(_either(config, "drift_top")),
        device=_device(str(_either(config, "precision_device"))),
    )
    if settings.prune:
        _refuse_partial(config)
    return settings


def _either(config: pytest.Config, name: str) -> Any:
    value = config.getoption(name)
    return config.getini(name) if value is None else value


def _one_of(name: str, value: str, accepted: tuple[str, ...]) -> str:
    if value not in accepted:
        raise pytest.UsageError(f"{name} = {value!r}; accepted are {', '.join(accepted)}")
    return value


def _destination(report: str) -> str:
    kind, _, path = report.partition(":")
    if kind != "json" or not path:
        raise pytest.UsageError(f"--drift-report={report}: there are {', '.join(REPORTS)}")
    return path


def _count(value: Any) -> int:
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        raise pytest.UsageError(f"--drift-top={value}; accepted is a whole number from 0 (0: all rows)")
    return number


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise pytest.UsageError(f"--precision-device={name}; accepted are auto, cpu, cuda, cuda:N")
    if name.startswith("cuda"):
        import torch

        there = torch.cuda.device_count()
        if int(name.partition(":")[2] or 0) >= there:
            raise pytest.UsageError(f"--precision-device={name}: torch {torch.__version__} sees {there} CUDA device(s) here; use auto or cpu")
    return name


def selection(config: pytest.Config) -> str:
    """The option that narrows what is collected, "" if none does. Paths do not count; node ids do."""
    given = next((flag for name, flag in _SELECTING.items() if config.getoption(name, None)), "")
    return given or next((f"the node id {argument}" for argument in config.args if "::" in argument), "")


def _refuse_partial(config: pytest.Config) -> None:
    narrowed = selection(config)
    if not narrowed and config.args_source is config.ArgsSource.ARGS:
        narrowed = f"the path {config.args[0]}"
    if narrowed:
        raise pytest.UsageError(f"--golden-prune deletes what no test uses, so it needs every test; leave {narrowed} out")
