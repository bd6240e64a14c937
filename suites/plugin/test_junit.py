"""What junit XML, and any plugin that reads user properties, is told of a check."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from projects import FAKED_LIGHT

CODE = """
    def test_it(check_precision):
        check_precision(1.25, {"16-mixed": [("error", "overflow"), ("error", "nan"), ("warning", "headroom")]})

    def test_without_a_check(precision):
        pass
"""


@pytest.mark.parametrize("options", [(), ("-n1", "-p", "no:hypothesispytest", "-p", "no:benchmark")], ids=["alone", "xdist"])
@pytest.mark.usefixtures("forked_python")
def test_properties_of_a_check(told: pytest.Pytester, options: tuple[str, ...]) -> None:
    told.makepyfile(test_it=CODE)
    run = told.runpytest_inprocess
    if options:
        pytest.importorskip("xdist")
        told.makeconftest(FAKED_LIGHT)
        run = told.runpytest_subprocess
    run("--precision=16-mixed,bf16", "--junitxml=junit.xml", *options)
    cases = ElementTree.parse(told.path / "junit.xml").iter("testcase")
    properties = {case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")} for case in cases}
    common = {"precheck_worst_r": "1.25", "precheck_worst_tensor": "layer"}
    assert properties == {
        "test_it[16-mixed]": {**common, "precheck_precision": "16-mixed", "precheck_errors": "overflow,nan", "precheck_warnings": "headroom"},
        "test_it[bf16-mixed]": {**common, "precheck_precision": "bf16-mixed", "precheck_errors": "", "precheck_warnings": ""},
        "test_without_a_check[16-mixed]": {},
        "test_without_a_check[bf16-mixed]": {},
    }
