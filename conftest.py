"""The project's own tests: `pytester`, with which suites/plugin runs pytest inside pytest."""

import compileall
import gc
import importlib
import os
import pathlib
import pkgutil
import sys
from collections.abc import Iterator

import pytest

pytest_plugins = ["pytester"]
sys.path.append(str(pathlib.Path(__file__).parent / "suites" / "forking"))

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread a worker, set before anything imports torch
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.fsync = lambda descriptor: None  # a golden waits for the disk for 12 ms, and none of these has to outlive a loss of power
else:  # bytecode for the processes that tests start. They would compile 500 modules each where PYTHONDONTWRITEBYTECODE is set.
    compileall.compile_dir(str(pathlib.Path(__file__).parent / "precheck"), quiet=2)

# Python's collector goes over all that was ever imported each time that some thousand objects were made: a tenth of the processor time.
gc.set_threshold(5000, 20, 100)


def pytest_collection_finish() -> None:
    """Nor do the collections that tests, torch and accelerate ask for go over it: each would take most of a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else what is alive at the end is never collected, and nanobind calls it leaked


@pytest.fixture(scope="session")
def everything_imported() -> None:
    """pytester forgets modules that a run inside it imports, and parts of torch, which loads some late, cannot be imported twice.

    All of precheck is imported too, since each run inside would import the same thirty modules anew, which takes longer than what it runs; and
    so is hypothesis, which its plugin imports at the end of each run.
    """
    import hypothesis  # noqa: F401
    import torch

    import precheck
    from precheck.goldens.lifecycle import record
    from precheck.measurement import job_of

    for module in pkgutil.walk_packages(precheck.__path__, "precheck."):
        if not module.name.endswith((".__main__", ".example")):
            importlib.import_module(module.name)
    model = torch.nn.Linear(2, 2)
    record(job_of(model, torch.ones(1, 2), loss=lambda out: out.sum(), optimizer=lambda parameters: torch.optim.AdamW(parameters)))
    for name in ("bf16-mixed", "16-mixed", "fp8", "64"):
        precheck.measure(model, torch.ones(1, 2), precision=name, loss=lambda out: out.sum())


@pytest.fixture(scope="session")
def forked_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path | None]:
    """The folder of suites/forking's programs, with a server that has imported torch for them."""
    from forked_python import programs

    with programs(tmp_path_factory.mktemp("forked")) as folder:
        yield folder


@pytest.fixture
def forked_python(forked_programs: pathlib.Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test with it starts Python by a fork, which spares each command an import of torch. Not for tests of what is imported, or of a crash."""
    if forked_programs is not None:
        monkeypatch.setattr(sys, "executable", str(forked_programs / "python"))
