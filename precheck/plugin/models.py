"""--precision-model: adds a test for each model that has no test file. For pytest they are tests in a file `precision-model` at the root of the
project, which does not exist. So they work with -k, -x, xdist, fixtures, markers and node ids.
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
    """The file that does not exist, as a module with one test for each model."""

    def _getobj(self) -> ModuleType:
        module = ModuleType("precision_model")
        for spec in self.config.stash[KEY].models:
            setattr(module, spec, _test(spec, module.__name__))
        return module


def _test(spec: str, module: str) -> Callable[[CheckPrecision], None]:
    def test(check_precision: CheckPrecision) -> None:
        __tracebackhide__ = _raised_by_factory
        try:
            found, derived = arguments(spec, device=check_precision.item.config.stash[KEY].device)
        except FactoryError as error:
            message = str(error)
        except Exception as error:
            raise error.with_traceback(users_frames(error)) from error.__cause__
        else:
            if derived:
                check_precision.item.add_report_section("call", "precheck", derived)  # shown if the test fails
            check_precision.needs_golden = False
            check_precision(**found)
            return
        pytest.fail(message, pytrace=False)

    test.__module__, test.__doc__ = module, f"The model of {spec}."
    test.__test__ = True  # type: ignore[attr-defined]  # makes pytest collect it under any name
    return test


def _raised_by_factory(raised: pytest.ExceptionInfo[BaseException]) -> bool:
    return not isinstance(raised.value, pytest.fail.Exception)


class Collecting:
    """The hooks of a run with models. `asked`: node ids from the command line. If there are any, only these run."""

    def __init__(self, asked: Iterable[str]) -> None:
        self.asked = list(asked)
        self.added: list[str] = []  # folders added to sys.path

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Adds to sys.path the folder where pytest was started, as `python -m pytest` does, and the root of the project."""
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
        """Adds the models' tests before other hooks run, so that -k, -m, --lf and others apply to them."""
        collector: Any = Models.from_parent(session, path=config.rootpath, name=MODELS, nodeid=MODELS)
        found = list(session.genitems(collector))
        for nodeid in self.asked:
            if not any(_is(item, nodeid) for item in found):
                there = ", ".join(item.nodeid for item in found)
                raise pytest.UsageError(f"not found: {nodeid}; there {'are' if len(found) > 1 else 'is'} {there}")
        for item in found:
            item.location = (MODELS, None, f"model {item.name}")  # otherwise -v takes dots in the name for classes
        items += [item for item in found if not self.asked or any(_is(item, nodeid) for nodeid in self.asked)]


def _is(item: pytest.Item, nodeid: str) -> bool:
    return item.nodeid == nodeid or item.nodeid.startswith(f"{nodeid}[")


def register(config: pytest.Config) -> None:
    """Sets up a run with models. Removes their node ids from the arguments, since pytest would look for these files."""
    config.args[:] = [argument for argument in config.args if not is_model_id(argument, config)]
    config.pluginmanager.register(Collecting(config.stash[KEY].asked), "precheck-models")
