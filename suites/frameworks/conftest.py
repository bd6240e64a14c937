"""Programs of several ranks are launched by suites/recipes/forked_ranks.py; Keras is told to compute with torch before anything imports it."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
os.environ.setdefault("KERAS_BACKEND", "torch")
