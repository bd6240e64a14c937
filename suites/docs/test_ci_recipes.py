"""docs/recipes for CI: what they tell a runner to do is done, and leaves behind what later steps pick up."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from named import OTHERS, ROOT, known, options
from walkthrough import LEAN, Block, blocks, surroundings

pytestmark = pytest.mark.usefixtures("forked_python")
yaml = pytest.importorskip("yaml", reason="recipes are YAML; pip install pyyaml")
RECIPES = ROOT / "docs" / "recipes"
PAGES = ("github", "gitlab", "tox", "nightly")
PROJECT = '''
import torch


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.wide(x * 1e5) / 1e5


def test_wide(check_precision):
    torch.manual_seed(0)
    check_precision(Wide(), torch.randn(4, 8))
'''
CULPRIT = 11
"""The line of `PROJECT` whose product is beyond float16."""


def of(name: str, kind: str) -> list[Block]:
    return [block for block in blocks((RECIPES / f"{name}.md").read_text(encoding="utf8")) if block.kind == kind]


def workflow(name: str, number: int = 0) -> dict[Any, Any]:
    return dict(yaml.safe_load(of(name, "yaml")[number].text))


def steps(name: str, number: int = 0) -> list[dict[str, Any]]:
    (job,) = workflow(name, number)["jobs"].values()
    return list(job["steps"])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "test_wide.py").write_text(PROJECT, encoding="utf8")
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf8")
    assert run("pytest -p no:cacheprovider --golden-refresh=missing", folder).returncode == 0
    return folder


@pytest.fixture
def project(recorded: Path, tmp_path: Path) -> Path:
    """Fails under float16 and nowhere else."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return tmp_path


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a runner does: bash that stops at the first command that fails. The interpreter's own programs come first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ["PATH"]])
    env = surroundings(PATH=path, PYTEST_ADDOPTS=LEAN, GITHUB_STEP_SUMMARY=str(folder / "summary.md"), CI="true")
    return subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", PAGES)
def test_commands_have_the_options_that_they_are_given(name: str) -> None:
    said = [block.text for block in blocks((RECIPES / f"{name}.md").read_text(encoding="utf8"))]
    commands = [line for text in said for line in re.split(r"\n(?!\s+--)", text) if re.search(r"\b(pytest|precheck) ", line)]
    assert commands
    assert not options("\n".join(commands)) - known() - OTHERS.keys()


@pytest.mark.parametrize(("name", "number"), [("github", 0), ("github", 1), ("nightly", 0)])
def test_a_workflow_is_one(name: str, number: int) -> None:
    whole = workflow(name, number)
    assert {"name", True, "permissions", "jobs"} == whole.keys()  # YAML reads `on` as true
    for step in steps(name, number):
        assert ("uses" in step) != ("run" in step)
        assert step.keys() <= {"uses", "run", "with", "if"}
        assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step.get("uses", "a/b@v1"))


def test_no_recipe_downloads_cuda_for_a_runner_without_a_gpu() -> None:
    """Three gigabytes for each job. pip takes the CPU build of the same version, since a version with +cpu is the later one."""
    for name in PAGES:
        text = (RECIPES / f"{name}.md").read_text(encoding="utf8")
        assert text.count("download.pytorch.org/whl/cpu") == text.count("OMP_NUM_THREADS"), name


def test_github_leaves_behind_what_its_steps_upload(project: Path) -> None:
    (command,) = [step["run"] for step in steps("github") if "pytest --" in step.get("run", "")]
    ended = run(command, project)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "overflow" in (project / "summary.md").read_text(encoding="utf8")
    assert cases(project / "junit.xml") == 3
    uploads = [step["with"] for step in steps("github") if "upload" in step.get("uses", "")]
    for file in [uploads[0]["sarif_file"], *uploads[1]["path"].split()]:
        assert (project / file).stat().st_size > 0
    looked_for = {name for step in steps("github") for name in re.findall(r"hashFiles\('([^']+)'\)", step.get("if", ""))}
    assert looked_for == {"drift.sarif", "drift.html", ".pytest_cache/v/precheck/*"}


def test_github_restores_what_it_keeps_of_passed_checks() -> None:
    restored, kept = (step["with"] for step in steps("github") if step.get("uses", "").startswith("actions/cache/"))
    assert restored["path"] == kept["path"] == ".pytest_cache/v/precheck"
    assert restored["key"] == kept["key"]
    assert kept["key"].startswith(restored["restore-keys"])


def cases(path: Path) -> int:
    return path.read_text(encoding="utf8").count("<testcase ")


def test_goldens_are_refreshed_and_committed_by_hand_only(project: Path) -> None:
    assert workflow("github", 1)[True] == "workflow_dispatch"
    refresh, commit = [step["run"] for step in steps("github", 1) if "run" in step][1:]
    assert [block.text.strip() for block in of("github", "sh")] == [refresh]  # what an author types is what the runner does
    for command in ("git init -q --bare remote.git", "git init -q", "git remote add origin remote.git", "git config push.default current", refresh):
        assert run(command, project).returncode == 0
    ended = run(commit, project)
    assert ended.returncode == 0, ended.stderr
    assert run("git ls-tree -r --name-only @{push}", project).stdout == "golden/test_wide/test_wide.safetensors\n"


def test_gitlab_shows_a_finding_at_its_line(project: Path) -> None:
    (job,) = workflow("gitlab").values()
    (script,) = of("gitlab", "python")
    (project / script.name).parent.mkdir()
    (project / script.name).write_text(script.text, encoding="utf8")
    assert run("\n".join(job["script"]), project).returncode == 1
    assert run("\n".join(job["after_script"]), project).returncode == 0
    for file in [*job["artifacts"]["paths"], *job["artifacts"]["reports"].values()]:
        assert (project / file).stat().st_size > 0, file
    (entry,) = json.loads((project / job["artifacts"]["reports"]["codequality"]).read_text(encoding="utf8"))
    assert entry.keys() == {"check_name", "description", "severity", "fingerprint", "location"}
    assert (entry["check_name"], entry["severity"]) == ("overflow", "major")
    assert entry["location"] == {"path": "test_wide.py", "lines": {"begin": CULPRIT}}


def test_a_night_is_held_against_the_one_before(project: Path) -> None:
    """The first has nothing to compare with; a second that is the same is quiet; one that is worse is red."""
    night, compare, keep = [step["run"] for step in steps("nightly") if "run" in step][1:]
    assert run(night, project).returncode == 0
    assert run(keep, project).returncode == 0
    assert run(night, project).returncode == 0
    assert run(compare, project).returncode == 0
    (by_hand,) = of("nightly", "sh")
    assert run(by_hand.text, project).returncode == 0
    last = json.loads((project / "last.json").read_text(encoding="utf8"))
    for test in last["tests"]:
        test["failed"] = False
        test["report"]["findings"] = []
    (project / "last.json").write_text(json.dumps(last), encoding="utf8")
    assert run(compare, project).returncode == 1
    assert "overflow" in (project / "summary.md").read_text(encoding="utf8")


def test_tox_reads_its_recipe(tmp_path: Path) -> None:
    (block,) = of("tox", "ini")
    (tmp_path / "tox.ini").write_text(block.text, encoding="utf8")
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(block.text)
    assert parsed["tox"]["env_list"] == "float32, bf16, fp16"
    if shutil.which("tox", path=sysconfig.get_path("scripts")) is None:
        pytest.skip("tox is not installed")
    for name, wanted in (("float32", "pytest"), ("bf16", "pytest --precision=bf16-mixed,bf16-true"), ("goldens", "pytest --golden-refresh=changed")):
        said = run(f"tox config -e {name} -k commands", tmp_path).stdout
        assert f"commands = {wanted}" in said.replace("\n  ", " "), said
