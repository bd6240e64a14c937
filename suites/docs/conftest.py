"""What the pages are looked at with."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from resolving import ASKED, OLDEST, Answers

sys.path.append(str(Path(__file__).parents[1] / "report"))  # browser.py


@pytest.fixture(scope="session", autouse=True)
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    """What uv would install. It is asked when the first test of this folder begins, if any test here wants to know."""
    wanted = any(item.path.name == "test_install.py" for item in request.session.items)
    asked = Answers([*(("readme", python) for python in ASKED), *(("own", python) for python in OLDEST)] if wanted else [])
    yield asked
    asked.stop()
