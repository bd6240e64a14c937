"""The project's own tests: `pytester`, with which suites/plugin runs pytest inside pytest."""

import os

pytest_plugins = ["pytester"]

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread a worker, set before anything imports torch
    os.environ.setdefault("OMP_NUM_THREADS", "1")
