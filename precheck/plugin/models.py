"""--precision-model: checks of models that have no test file. To pytest they are tests of a file that does not exist, `precision-model` at the
root of the project. So they work with -k, -x, xdist, fixtures, markers and node ids as tests do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest

from precheck.plugin.checks import CheckPrecision
from precheck.plugin.factory import FactoryError, arguments
from precheck.plugin.settings import KEY, MODELS, is_model_id
from precheck.plugin.tracebacks import users_frames


class Models(pytest.Module):
    """The file that is not there: a module with one test a model."""

    def _getobj(self) -> ModuleType:
        module = ModuleType("precision_model")
        for spec in self.config.stash[KEY].models:
            setattr(module, spec, _test(spec, module.__name__))
        return module


def _test(spec: str, module: str) -> Callable[[CheckPrecision], None]:
    def test(check_precision: CheckPrecision) -> None:
        try:
            found, derived = arguments(spec, device=check_precision.item.config.stash[KEY].device)
        except FactoryError as error:
            message = str(error)
        except Exception as error:
            raise error.with_traceback(users_frames(error)) from error.__cause__
        else:
            if derived:
                check_precision.item.add_report_section("call", "precheck", derived)  # shown where the test fails
            check_precision.needs_golden = False
            check_precision(**found)
            return
        pytest.fail(message, pytrace=False)

    test.__module__, test.__doc__ = module, f"The model of {spec}."
    test.__test__ = True  # type: ignore[attr-defined]  # pytest's way to say that it is one, whatever its name
    return test


class Collecting:
    """Hooks of a run with models. `asked`: node ids from the command line; where there are any, only these run."""

    def __init__(self, asked: Iterable[str]) -> None:
        self.asked = list(asked)
        self.added: list[str] = []  # to sys.path

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """What `python -m pytest` does: the folder where pytest was started can be imported from; so can the root of the project."""
        for folder in (session.config.rootpath, session.config.invocation_params.dir):
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
                self.added.append(str(folder))

    def pytest_unconfigure(self) -> None:
        for folder in self.added:
            if folder in sys.path:
                sys.path.remove(folder)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
        """First of all, so that -k, -m, --lf and the like see these as they see all others."""
        collector: Any = Models.from_parent(session, path=config.rootpath, name=MODELS, nodeid=MODELS)
        found = list(session.genitems(collector))
        for nodeid in self.asked:
            if not any(_is(item, nodeid) for item in found):
                there = ", ".join(item.nodeid for item in found)
                raise pytest.UsageError(f"not found: {nodeid}; there {'are' if len(found) > 1 else 'is'} {there}")
        for item in found:
            item.location = (MODELS, None, f"model {item.name}")  # or else -v takes the dots of a package for classes
        items += [item for item in found if not self.asked or any(_is(item, nodeid) for nodeid in self.asked)]


def _is(item: pytest.Item, nodeid: str) -> bool:
    return item.nodeid == nodeid or item.nodeid.startswith(f"{nodeid}[")


def register(config: pytest.Config) -> None:
    """For a run with models to check. Takes their node ids out of the arguments, which pytest would look for on the disk."""
    config.args[:] = [argument for argument in config.args if not is_model_id(argument, config)]
    config.pluginmanager.register(Collecting(config.stash[KEY].asked), "precheck-models")
