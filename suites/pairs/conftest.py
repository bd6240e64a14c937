"""Programs of several ranks are launched by suites/recipes/forked_ranks.py."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "recipes"))
