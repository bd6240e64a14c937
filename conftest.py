"""The project's own tests: `pytester`, with which suites/plugin runs pytest inside pytest."""

pytest_plugins = ["pytester"]
