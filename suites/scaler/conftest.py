"""The loops of suites/zoo and the models of suites/models are at hand here too."""

import sys
from pathlib import Path

for folder in ("zoo", "models"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
