"""Defines the options of command line and ini file, and validates them into `Settings`. Imports neither torch nor numpy."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

from precheck.plugin import selecting
from precheck.precisions import PRECISIONS, Policy, Precision, PrecisionError, resolve_all
from precheck.words import counted

if TYPE_CHECKING:
    from precheck.report.forms import Form

Which = Literal["missing", "changed", "all"]
Unused = Literal["warn", "fail", "ignore"]
Depth = Literal["ops", "boundaries"]
WHICH = ("missing", "changed", "all")
UNUSED = ("warn", "fail", "ignore")
POLICIES = ("cuda", "native")
DEPTHS = ("ops", "boundaries")
MODELS = "precision-model"
"""The file name in the node ids of --precision-model. There is no such file at the root of the project."""
REPORTS = ("term", "json:PATH", "markdown:PATH", "md:PATH", "sarif:PATH", "html:PATH")
"""The forms of precheck.report.forms, which is imported only when a report is wanted."""
TRIALS = 12


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Settings:
    """The settings of a pytest run. `named`: a precision was named on the command line or in the ini file."""

    precisions: tuple[Precision, ...]
    named: bool
    policy: Policy
    golden_dir: Path
    refresh: Which | None
    unused: Unused
    prune: bool
    term: bool
    files: tuple[tuple[Form, Path], ...]  # reports to write, at absolute paths
    top: int
    device: str
    trials: int  # the most trials of a remedy search after a failure; 0: no search
    durations: int | None  # how many of the slowest checks are listed; 0: all; None: those that are slow
    patient: bool  # whether the search has no limit of time
    depth: Depth = "ops"  # whether ops are watched too, or boundaries only
    fresh: bool = False  # whether checks that passed are judged again where nothing has changed
    selftest: bool = False  # whether passed checks are repeated with planted faults
    models: tuple[str, ...] = ()  # package.module:factory
    known: Path = Path("precision-known.toml")  # absolute
    known_write: bool = False
    asked: tuple[str, ...] = ()  # node ids of models on the command line; other models do not run

    @property
    def ops(self) -> bool:
        """Whether reports need every op's error, also for passed checks."""
        return self.term or any(form.ops for form, _ in self.files)


KEY = pytest.StashKey[Settings]()


def add_options(parser: pytest.Parser) -> None:
    """Adds the options of the command line, and those of the ini file with underscores for hyphens. The command line precedes."""
    group = parser.getgroup("precheck", "numerical precision (precheck)")
    group.addoption(
        "--precision", metavar="NAME[,NAME]",
        help=f"run each test under these: {', '.join(PRECISIONS)} (bf16 is bf16-mixed; default: 32-true, which checks the goldens)",
    )  # fmt: skip
    group.addoption(
        "--precision-depth", choices=DEPTHS,
        help="ops (default): compare every op with float32; boundaries: only modules, gradients and weights, which is faster and finds less",
    )  # fmt: skip
    group.addoption(
        "--precision-model", action="append", metavar="MODULE:FACTORY",
        help="check what this function returns: a model, or a dict of arguments of precheck.measure; needs no test file; may be given more than once",
    )  # fmt: skip
    group.addoption(
        "--golden-refresh", nargs="?", const="changed", type=_which, metavar="WHICH",
        help="record goldens in float32: missing (those that have no file yet), changed (the default: also those that are out of date), or all",
    )  # fmt: skip
    group.addoption("--golden-dir", metavar="PATH", help="where goldens are kept, relative to the root of the project (default: golden)")
    group.addoption("--golden-unused", choices=UNUSED, help="what to do if there are goldens that no test uses (default: warn)")
    group.addoption("--golden-prune", action="store_true", help="delete goldens that no test uses; needs a run of all tests, which passed")
    group.addoption("--known-failures", metavar="PATH", help="the file of known failures: they fail only if they get worse")
    group.addoption("--known-failures-write", action="store_true", help="record the failures of this run as known; entries of other tests stay")
    group.addoption(
        "--drift-report", action="append", metavar="TYPE[:DEST]",
        help=f"write a report of every check: {', '.join(REPORTS)}; may be given more than once",
    )  # fmt: skip
    group.addoption("--drift-top", type=int, metavar="N", help="how many rows the tables of worst tensors and ops have (default: 10; 0: all)")
    group.addoption(
        "--precision-durations", type=int, metavar="N",
        help="list the N checks that took longest, and what took the time (0: all; without it those that took over 15 s)",
    )  # fmt: skip
    group.addoption("--precision-fresh", action="store_true", help="judge every check, also one that passed before, with the same code and numbers")
    group.addoption(
        "--precision-device", metavar="DEVICE",
        help="the device that the fixture precision_device gives: auto, cpu, cuda, cuda:N (default: auto, the first CUDA device or else the CPU)",
    )  # fmt: skip
    group.addoption(
        "--precheck-selftest", action="store_true",
        help="repeat each check that passed, with faults planted into the model, up to seven; a fault that is not caught fails the test; each costs "
        "what a check that fails does, about ten runs of the model (three under 32-true)",
    )  # fmt: skip
    parser.addini("precision", "default of --precision")
    parser.addini("precision_depth", "default of --precision-depth: ops or boundaries", default="ops")
    parser.addini("precision_model", "default of --precision-model, one a line", type="linelist")
    parser.addini("precision_known", "default of --known-failures", default="precision-known.toml")
    parser.addini("golden_dir", "default of --golden-dir", default="golden")
    parser.addini("golden_unused", "default of --golden-unused: warn, fail or ignore", default="warn")
    parser.addini("drift_report", "default of --drift-report, one a line", type="linelist")
    parser.addini("drift_top", "default of --drift-top", default="10")
    parser.addini(
        "remedy_trials",
        f"how many trials to make after a failure, to find which modules must stay in float32; 0 makes none. A number has no limit of time; "
        f"the default makes up to {TRIALS}, within 5 times the time of one low and one float32 step, or 0.1 seconds",
        default=TRIALS,  # a number, while a value that a user gives is text
    )
    parser.addini("precision_durations", "default of --precision-durations")
    parser.addini("precision_device", "default of --precision-device", default="auto")
    parser.addini("precision_policy", "which list of ops autocast follows on a CPU: cuda (CUDA's, the default) or native", default="cuda")


def _which(value: str) -> str:
    if value not in WHICH:  # a path after the option without a value is read as its value
        raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(WHICH)}; before a path, write --golden-refresh=changed")
    return value


def settings_of(config: pytest.Config) -> Settings:
    """Reads the settings of a run. Raises pytest.UsageError with one line for invalid ones."""
    policy = cast(Policy, _one_of("precision_policy", _ini(config, "precision_policy"), POLICIES))
    refresh = config.getoption("golden_refresh")
    named = config.getoption("precision")
    if named is None and not refresh:  # goldens serve all precisions, so the ini file does not matter
        named = _ini(config, "precision") or None
    source = "--precision" if config.getoption("precision") is not None else "the ini file's precision"
    precisions = _precisions(named, policy, source)
    if refresh and config.getoption("precheck_selftest"):
        raise pytest.UsageError("--precheck-selftest plants faults into checks, and --golden-refresh makes none; refresh first, then run without it")
    if refresh and [precision.name for precision in precisions] != ["32-true"]:
        raise pytest.UsageError(f"--golden-refresh records in float32, and --precision={named} asks for another; leave --precision out")
    asked = model_ids(config)
    reports = config.getoption("drift_report") or config.getini("drift_report")
    settings = Settings(
        precisions=precisions,
        named=named is not None,
        policy=policy,
        golden_dir=_golden_dir(config),
        refresh=refresh,
        unused=cast(Unused, _one_of("golden_unused", _either(config, "golden_unused"), UNUSED)),
        prune=config.getoption("golden_prune"),
        term="term" in reports,
        files=tuple(_destination(report, config.invocation_params.dir) for report in reports if report != "term"),
        top=_count("--drift-top", _either(config, "drift_top"), "all rows"),
        device=_device(str(_either(config, "precision_device"))),
        trials=_count("remedy_trials", _ini(config, "remedy_trials"), "none are made"),
        durations=_durations(config),
        depth=cast(Depth, _one_of("precision_depth", _either(config, "precision_depth"), DEPTHS)),
        patient=isinstance(config.getini("remedy_trials"), str),
        fresh=config.getoption("precision_fresh"),
        selftest=config.getoption("precheck_selftest"),
        models=_models(config, asked),
        known=_known(config),
        known_write=config.getoption("known_failures_write"),
        asked=asked,
    )
    if settings.prune:
        selecting.refuse_partial(config)
    return settings


def _ini(config: pytest.Config, name: str) -> Any:
    """An entry of the ini file that is text. In a pyproject.toml it may be a list, which pytest before 10 hands on as it is."""
    value = config.getini(name)
    if isinstance(value, list):
        text = ",".join(map(str, value))
        raise pytest.UsageError(f'the ini file\'s {name} is a list; write it as text: {name} = "{text}"')
    return value


def _either(config: pytest.Config, name: str) -> Any:
    return _ini(config, name) if config.getoption(name) is None else config.getoption(name)


def _precisions(named: str | None, policy: Policy, source: str) -> tuple[Precision, ...]:
    try:
        return resolve_all("32-true" if named is None else named, policy=policy)
    except PrecisionError as error:
        raise pytest.UsageError(f"{source}: {error}") from None


def model_ids(config: pytest.Config) -> tuple[str, ...]:
    """The node ids of models among the arguments, relative to the root of the project."""
    return tuple(f"{MODELS}::{argument.partition('::')[2]}" for argument in config.args if is_model_id(argument, config))


def is_model_id(argument: str, config: pytest.Config) -> bool:
    """Whether an argument is the node id of a model, relative to the folder where pytest was started or to the root of the project."""
    file, colons, _ = argument.partition("::")
    return bool(colons) and (file == MODELS or Path(os.path.normpath(config.invocation_params.dir / file)) == config.rootpath / MODELS)


def _models(config: pytest.Config, asked: tuple[str, ...]) -> tuple[str, ...]:
    given = config.getoption("precision_model") or config.getini("precision_model")
    models = tuple(dict.fromkeys([*given, *(nodeid.partition("::")[2].partition("[")[0] for nodeid in asked)]))
    if models:
        from precheck.plugin.factory import fault

        wrong = next(filter(None, map(fault, models)), "")
        if wrong:
            raise pytest.UsageError(f"--precision-model: {wrong}")
    return models


def _known(config: pytest.Config) -> Path:
    """The absolute path of the file of known failures. A relative path starts at the root of the project."""
    given, writing = config.getoption("known_failures"), config.getoption("known_failures_write")
    path = Path(os.path.normpath(config.rootpath / (given or _ini(config, "precision_known"))))
    if writing and config.getoption("golden_refresh"):
        raise pytest.UsageError("--known-failures-write records checks that fail, and --golden-refresh makes none; refresh first")
    if writing and config.getoption("runxfail", False):
        raise pytest.UsageError("--known-failures-write records what fails as known, and --runxfail knows of nothing; leave one of them out")
    if path.is_dir():
        raise pytest.UsageError(f"--known-failures={given or path.name}: that is a folder; name a file, as in precision-known.toml")
    if given is not None and not writing and not path.exists():
        raise pytest.UsageError(f"--known-failures={given}: there is no such file; record one with --known-failures-write, or leave the option out")
    return path


def _golden_dir(config: pytest.Config) -> Path:
    """The absolute path of the golden folder. It must not contain the whole project, whose files --golden-prune could delete."""
    given = str(_either(config, "golden_dir"))
    path = Path(os.path.normpath(config.rootpath / given))
    if config.rootpath.is_relative_to(path):
        raise pytest.UsageError(f"--golden-dir={given} holds the whole project; goldens need a folder of their own, such as golden")
    if path.is_file():
        raise pytest.UsageError(f"--golden-dir={given}: that is a file; goldens need a folder of their own, such as golden")
    return path


def _one_of(name: str, value: str, accepted: tuple[str, ...]) -> str:
    if value not in accepted:
        raise pytest.UsageError(f"{name} = {value!r}; accepted are {', '.join(accepted)}")
    return value


def _destination(report: str, start: Path) -> tuple[Form, Path]:
    from precheck.report.forms import named

    kind, _, path = report.partition(":")
    form = named(kind)
    if form is None or form.name == "term":
        raise pytest.UsageError(f"--drift-report={report}: accepted are {', '.join(REPORTS)}")
    if not path:
        raise pytest.UsageError(f"--drift-report={report} names no file (if the path is a variable, is it set?); accepted is {kind}:PATH")
    if (start / path).is_dir():
        raise pytest.UsageError(f"--drift-report={report}: {path} is a folder; name a file, as in {kind}:drift.{kind}")
    if form.missing:
        raise pytest.UsageError(f"--drift-report={report}: {form.missing}")
    return form, start / path


def _count(name: str, value: Any, none: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        raise pytest.UsageError(f"{name}={value}; accepted is a whole number from 0 (0: {none})")
    return number


def _durations(config: pytest.Config) -> int | None:
    given = _either(config, "precision_durations")
    return None if given in (None, "") else _count("--precision-durations", given, "all checks")


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise pytest.UsageError(f"--precision-device={name}; accepted are auto, cpu, cuda, cuda:N")
    if name.startswith("cuda"):
        import torch

        if int(name.partition(":")[2] or 0) >= (there := torch.cuda.device_count()):
            seen = f"torch {torch.__version__} sees {counted(there, 'CUDA device')} here"
            raise pytest.UsageError(f"--precision-device={name}: {seen}; use auto or cpu")
    return name
