"""What the pages are looked at with."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "report"))  # browser.py
