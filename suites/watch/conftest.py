"""The bugs of suites/zoo, and what its tests have seen of them, are at hand here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
