from precheck.checking import check  # noqa: F401
