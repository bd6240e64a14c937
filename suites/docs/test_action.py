"""action.yml and docs/action.md: the steps are those of a composite action, and do on this machine what they do on a runner.

`gh` is a program of this test that writes down how it is called and answers as the host would.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from named import ROOT
from walkthrough import LEAN, blocks, surroundings

pytestmark = pytest.mark.usefixtures("forked_python")
yaml = pytest.importorskip("yaml", reason="actions are YAML; pip install pyyaml")
PROJECT = '''
import torch


def test_wide(check_precision):
    torch.manual_seed(0)
    check_precision(lambda x: (x * {factor}).sum(-1), torch.ones(4, 8))
'''
GH = """#!/usr/bin/env python3
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
folder = Path(os.environ["GH_FOLDER"])
bodies = [Path(word.partition("@")[2]).read_text(encoding="utf8") for word in words if word.startswith("body=@")]
calls = folder / "calls.jsonl"
with calls.open("a") as file:
    file.write(json.dumps({"words": words, "bodies": bodies}) + "\\n")
if words[:1] == ["api"] and "--paginate" in words and (folder / "comment").exists():
    print((folder / "comment").read_text())
"""


def action() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf8")))


def step(name: str) -> dict[str, Any]:
    (found,) = [each for each in action()["runs"]["steps"] if each["name"] == name]
    return dict(found)


class Runner:
    """A runner's folders and variables, and a project with one check."""

    def __init__(self, project: Path, folder: Path, factor: str) -> None:
        self.project, self.temp, self.programs = project, folder / "temp", folder / "programs"
        for each in (self.temp, self.programs):
            each.mkdir()
        (self.programs / "gh").write_text(GH, encoding="utf8")
        (self.programs / "gh").chmod(0o755)
        (self.programs / "pytest").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest -p no:cacheprovider "$@"\n', encoding="utf8")
        (self.programs / "pytest").chmod(0o755)
        (self.project / "pyproject.toml").write_text("[tool.pytest.ini_options]\nremedy_trials = 0\n", encoding="utf8")
        self.write(factor)

    def write(self, factor: str) -> None:
        (self.project / "test_wide.py").write_text(PROJECT.format(factor=factor), encoding="utf8")

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.programs), str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ["PATH"]])
        files = {name: str(self.temp / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        runner = {"RUNNER_TEMP": str(self.temp), "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_REPOSITORY": "a/b", "CI": "true"}
        whole = surroundings(PATH=path, PYTEST_ADDOPTS=LEAN, GH_FOLDER=str(self.temp), **files, **runner, **env)
        return subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=self.project, env=whole, capture_output=True, text=True, check=False)

    def step(self, name: str, **env: str) -> subprocess.CompletedProcess[str]:
        """One of action.yml, with a value for each variable that it sets."""
        found = step(name)
        assert found.get("env", {}).keys() == env.keys() | ({"GH_TOKEN"} & found.get("env", {}).keys())
        return self.run(found["run"], **env)

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.temp / "github_output").read_text(encoding="utf8").splitlines())

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.temp / "calls.jsonl").read_text(encoding="utf8").splitlines()]


@pytest.fixture
def runner(pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, everything_imported: None) -> Runner:
    """Whose project passes in float32 and overflows in float16."""
    runner = Runner(pytester.path, tmp_path_factory.mktemp("runner"), "1e5")
    assert pytester.runpytest_inprocess("-p", "no:cacheprovider", "--golden-refresh=missing").ret == 0
    return runner


def test_it_is_a_composite_action_and_its_steps_use_inputs_through_variables_only() -> None:
    whole = action()
    assert whole["runs"]["using"] == "composite"
    for each in whole["runs"]["steps"]:
        assert ("uses" in each) != ("run" in each)
        assert each.keys() <= {"name", "id", "if", "uses", "with", "run", "shell", "env", "working-directory"}
        assert "run" not in each or (each["shell"] == "bash" and "${{" not in each["run"])
        assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", each.get("uses", "a/b@v1"))
    named = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf8")))
    assert named == whole["inputs"].keys()
    assert all(each["description"] and "default" in each for each in whole["inputs"].values())


def test_what_may_write_is_left_out_for_forks() -> None:
    for name in ("Refresh goldens", "Comment", "Upload SARIF"):
        assert "head.repo.fork != true" in step(name)["if"]
    for name in ("Comment", "Upload SARIF", "Keep the report"):  # of a failure too
        assert step(name)["if"].startswith("${{ always() &&")


def test_a_failure_is_reported_and_ends_the_job(runner: Runner) -> None:
    """Check, comment twice, verdict."""
    checked = runner.step("Check", PRECISION="32-true,16-true", ARGS="test_wide.py -q")
    assert checked.returncode == 0, checked.stderr
    outputs = runner.outputs
    assert outputs["status"] == "1", checked.stdout
    folder = Path(outputs["folder"])
    assert {path.name for path in folder.iterdir()} == {"drift.md", "drift.sarif", "drift.html", "drift.json", "junit.xml"}
    assert "overflow" in (runner.temp / "github_step_summary").read_text(encoding="utf8")
    assert Path(step("Upload SARIF")["with"]["sarif_file"]).name == "drift.sarif"

    report = str(folder / "drift.md")
    assert runner.step("Comment", NUMBER="7", REPORT=report).returncode == 0
    (runner.temp / "comment").write_text("42", encoding="utf8")
    assert runner.step("Comment", NUMBER="7", REPORT=report).returncode == 0
    written, changed = [call for call in runner.calls if call["bodies"]]
    assert written["words"][:4] == ["api", "--method", "POST", "repos/a/b/issues/7/comments"]
    assert changed["words"][:4] == ["api", "--method", "PATCH", "repos/a/b/issues/comments/42"]
    assert written["bodies"][0].startswith("<!-- precheck -->\n## precheck: 1 of 2 checks failed")
    assert runner.step("Verdict", STATUS=outputs["status"]).returncode == 1


def test_passed_checks_are_kept_where_pytest_has_kept_some(runner: Runner) -> None:
    restore, keep = step("Restore passed checks"), step("Keep passed checks")
    assert restore["with"]["path"] == keep["with"]["path"]
    assert restore["with"]["key"] == keep["with"]["key"]
    assert keep["with"]["key"].startswith(restore["with"]["restore-keys"])
    programs = runner.programs / "pytest"
    programs.write_text(programs.read_text(encoding="utf8").replace(" -p no:cacheprovider", ""), encoding="utf8")
    runner.write("2.0")
    assert runner.step("Check", PRECISION="bf16-mixed", ARGS="--golden-dir=another").returncode == 0
    assert "remembered" not in runner.outputs  # a check that did not pass
    assert runner.run("pytest --golden-refresh -q").returncode == 0
    assert runner.step("Check", PRECISION="bf16-mixed", ARGS="").returncode == 0
    assert runner.outputs["remembered"] == "true"
    (kept,) = (runner.project / Path(keep["with"]["path"]).relative_to("${{ inputs.working-directory }}")).iterdir()
    assert kept.stat().st_size > 0
    assert runner.step("Check", PRECISION="bf16-mixed", ARGS="").returncode == 0
    assert "the figures are of that day" in (Path(runner.outputs["folder"]) / "drift.html").read_text(encoding="utf8")


def test_a_run_without_a_report_still_has_a_verdict(runner: Runner) -> None:
    assert runner.step("Check", PRECISION="no-such", ARGS="").returncode == 0
    assert runner.outputs == {"status": "4"}


def test_a_label_has_goldens_recorded_committed_and_is_taken_off(runner: Runner) -> None:
    remote = runner.temp / "remote.git"
    made = ("git init -q -b change", f"git remote add origin {remote}", "git add .", "git -c user.name=a -c user.email=a@b commit -q -m first")
    for command in (f"git init -q --bare {remote}", *made):
        assert runner.run(command).returncode == 0
    runner.write("3.0")
    refreshed = runner.step("Refresh goldens", ARGS="", BRANCH="change", LABEL="refresh-goldens", NUMBER="7")
    assert refreshed.returncode == 0, refreshed.stderr + refreshed.stdout
    there = f"git --git-dir={remote}"
    assert runner.run(f"{there} log --format=%s change").stdout == "Refresh goldens\nfirst\n"
    assert runner.run(f"{there} show --name-only --format= change").stdout == "golden/test_wide/test_wide.safetensors\n"
    assert runner.calls[-1]["words"] == ["pr", "edit", "7", "--remove-label", "refresh-goldens"]
    again = runner.step("Refresh goldens", ARGS="", BRANCH="change", LABEL="refresh-goldens", NUMBER="7")
    assert again.returncode == 0
    assert "No golden changed." in again.stdout


def test_the_page_s_workflow_uses_inputs_that_there_are() -> None:
    page = (ROOT / "docs" / "action.md").read_text(encoding="utf8")
    (block,) = [each for each in blocks(page) if each.kind == "yaml"]
    whole = yaml.safe_load(block.text)
    (used,) = [each for each in whole["jobs"]["precision"]["steps"] if each.get("uses", "").startswith("precheck-dev/")]
    assert used["with"].keys() <= action()["inputs"].keys()
    checkout = whole["jobs"]["precision"]["steps"][0]["with"]
    assert "head.repo.full_name" in checkout["repository"], "a fork's branch is not in this repository"
    assert f"gh label create {action()['inputs']['refresh-label']['default']}" in page
    assert whole["permissions"] == {"contents": "write", "pull-requests": "write", "security-events": "write"}
    assert "labeled" in whole[True]["pull_request"]["types"]  # YAML reads `on` as true
    told = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert told == list(action()["inputs"])
    steps = re.findall(r"^\d\. \*\*([^*]+)\*\*", page, re.MULTILINE)
    assert [each["name"] for each in action()["runs"]["steps"]] == [{"SARIF": "Upload SARIF"}.get(name, name) for name in steps]
