"""What a project shows besides its pages: changes, workflows, the release's gate, the conda recipe, pre-commit hooks, examples."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from named import ROOT, extras, options
from reference import flags
from walkthrough import blocks

import precheck

yaml = pytest.importorskip("yaml", reason="workflows are YAML; pip install pyyaml")
pytestmark = pytest.mark.usefixtures("everything_imported")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf8")


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_one_and_may_do_no_more_than_it_has_to(path: Path) -> None:
    whole = yaml.safe_load(path.read_text(encoding="utf8"))
    assert {"name", True, "permissions", "jobs"} == whole.keys()  # YAML reads `on` as true
    assert whole["permissions"] == {"contents": "read"}
    for job in whole["jobs"].values():
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"[\w-]+/[\w/-]+@(v\d+|release/v\d+)", step.get("uses", "a/b@v1"))
            assert "${{" not in step.get("run", "")  # what an event holds is data


def test_each_file_that_a_workflow_runs_is_there() -> None:
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text(encoding="utf8"))["jobs"].values()]
    runs = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    files = {name for run in runs for name in re.findall(r"(?<![\w/])\.ci/[\w.]+", run)}
    assert files == {".ci/run", ".ci/release", ".ci/constraints.txt"}
    assert all((ROOT / name).is_file() for name in files)


def test_only_the_job_that_publishes_may_publish() -> None:
    jobs = read(".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"]["name"] == "pypi"
    publish = jobs["publish"]["steps"][-1]
    assert publish["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert publish["with"] == {"attestations": True}
    assert not re.search(r"password:|secrets\.", (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf8"))
    attested = next(step for step in jobs["build"]["steps"] if step.get("uses", "").startswith("actions/attest-"))
    assert attested["with"]["subject-path"] == "dist/*"
    order = [step.get("run", step.get("uses", "")) for step in jobs["build"]["steps"]]
    assert order.index('python .ci/release "$GITHUB_REF_NAME"') < order.index("python -m build") < order.index(attested["uses"])


def released(tag: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(folder / ".ci" / "release"), tag], capture_output=True, text=True, check=False)


def test_a_tag_is_released_only_as_what_it_says(tmp_path: Path) -> None:
    for name in (".ci/release", ".ci/conda/recipe.yaml", "pyproject.toml", "precheck/__init__.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    tag = f"v{precheck.__version__}"
    accepted = released(tag, tmp_path)
    assert (accepted.returncode, accepted.stderr) == (0, ""), "the version of this checkout has to be one that its release workflow accepts"
    changes = tmp_path / "CHANGELOG.md"
    changes.write_text(changes.read_text(encoding="utf8").replace(f"## {tag[1:]} (", "## 0.0.1 ("), encoding="utf8")
    refused = released(tag, tmp_path)
    assert (refused.returncode, refused.stderr) == (1, f"CHANGELOG.md has no heading ## {tag[1:]} (YYYY-MM-DD)\n")
    other = released("v9.9.9", tmp_path)
    assert other.returncode == 1
    assert f"pyproject.toml has version {tag[1:]}; write 9.9.9" in other.stderr
    assert "a release is tagged like v0.1.0" in released("0.1.0", tmp_path).stderr


def test_the_conda_recipe_asks_for_what_the_package_asks_for() -> None:
    recipe = read(".ci/conda/recipe.yaml")
    needs = re.findall(r'"([^"]+)"', PYPROJECT.partition("\ndependencies = [")[2].partition("\n]")[0])
    python = re.findall(r'^requires-python = "([^"]+)"$', PYPROJECT, re.MULTILINE)
    wanted = [f"python {python[0]}", *(re.sub(r"^torch\b", "pytorch", need).replace(">=", " >=") for need in needs)]
    assert recipe["requirements"]["run"] == wanted
    assert recipe["context"]["version"] == precheck.__version__
    built = re.findall(r'"([^"]+)"', PYPROJECT.partition("requires = [")[2].partition("]")[0])
    assert {need.replace(">=", " >=") for need in built} <= set(recipe["requirements"]["host"])


def test_the_conda_recipe_makes_a_package_of_this_checkout() -> None:
    """As rattler-build renders it; building it needs a channel with Python and torch."""
    rattler_build = pytest.importorskip("rattler_build", reason="py-rattler-build renders the recipe")
    path = ROOT / ".ci" / "conda" / "recipe.yaml"
    (variant,) = rattler_build.Stage0Recipe.from_file(path).render()
    made = variant.recipe.to_dict()
    assert made["package"] == {"name": "pytest-precheck", "version": precheck.__version__}
    assert made["build"]["noarch"] == "python"
    assert [(path.parent / source["path"]).resolve() for source in made["source"]] == [ROOT]
    assert all((ROOT / name).is_file() for name in made["about"]["license_file"])
    assert made["requirements"]["run"] == read(".ci/conda/recipe.yaml")["requirements"]["run"]


def test_what_the_conda_recipe_tries_on_its_package_works() -> None:
    imported, tried = read(".ci/conda/recipe.yaml")["tests"]
    for line in [f"python -c 'import {name}'" for name in imported["python"]["imports"]] + tried["script"]:
        words = shlex.split(line)
        done = subprocess.run([sys.executable, *(words[1:] if words[0] == "python" else ["-m", *words])], capture_output=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr.decode()}"


def test_the_changes_begin_with_what_is_to_come() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", each) for each in headings[1:])


def test_pre_commit_hooks_run(pytester: pytest.Pytester) -> None:
    """Each on a project with a golden, as pre-commit calls it: entry, args, names of files."""
    hooks = {hook["id"]: hook for hook in read(".pre-commit-hooks.yaml")}
    shutil.copytree(ROOT / "examples" / "first_test", pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    checking, goldens = hooks["precheck"], hooks["precheck-goldens"]
    assert pytester.runpytest_inprocess("-p", "no:cacheprovider", *checking["args"]).ret == 0
    assert (checking["entry"], checking["pass_filenames"], checking["stages"]) == ("pytest", False, ["pre-push"])
    names = [path.relative_to(pytester.path).as_posix() for path in pytester.path.rglob("*.safetensors")]
    assert all(re.search(goldens["files"], name) for name in names)
    words = shlex.split(goldens["entry"])
    assert words[:3] == ["python", "-m", "precheck"]
    assert precheck_main([*words[3:], *names, *names]) == 0
    (pytester.path / names[0]).write_bytes(b"damaged")
    assert precheck_main([*words[3:], *names]) == 2


def precheck_main(words: list[str]) -> int:
    from precheck.__main__ import main

    return main(words)


def test_the_pre_commit_page_names_hooks_that_there_are() -> None:
    (block,) = [each for each in blocks((ROOT / "docs/recipes/pre-commit.md").read_text(encoding="utf8")) if each.kind == "yaml"]
    (repo,) = yaml.safe_load(block.text)["repos"]
    assert {hook["id"] for hook in repo["hooks"]} == {hook["id"] for hook in read(".pre-commit-hooks.yaml")}
    assert not options(" ".join(word for hook in repo["hooks"] for word in hook.get("args", ()))) - flags()


def test_contributing_md_names_what_there_is() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf8")
    assert set(re.findall(r"-e '\.\[([a-z,]+)\]'", page)[0].split(",")) <= extras()
    for name in re.findall(r"(?:suites|precheck|docs|\.ci)/[\w/.-]+", page):
        assert (ROOT / name.rstrip("./")).exists(), name


def test_contributing_md_shows_a_rule_as_it_is() -> None:
    """Its name, its limit and its exemption stand in the page as in the rule's files."""
    folder = ROOT / "precheck" / "rules" / "absorption"
    code = "".join((folder / name).read_text(encoding="utf8") for name in ("__init__.py", "rule.py"))
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf8")
    for start, end in (("MEANING = ", r"RANK = 90"), ("TIMES = Limit(", '"""$'), ("@exempts(", r"^\1\)")):
        shown = re.search(rf"^( *){re.escape(start)}.*?{end}", page, re.MULTILINE | re.DOTALL)
        assert shown, start
        assert " ".join(shown[0].split()) in " ".join(code.split())


EXAMPLES = sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir())


@pytest.fixture
def example(pytester: pytest.Pytester, request: pytest.FixtureRequest) -> pytest.Pytester:
    """A copy, as a new user has it."""
    shutil.copytree(ROOT / "examples" / request.param, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return pytester


def test_every_example_is_in_the_table() -> None:
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf8")
    assert re.findall(r"^\| \[\w+\]\((\w+)\) \|", page, re.MULTILINE) == ["first_test", "training_loop", "port"]
    assert sorted(["first_test", "training_loop", "port"]) == EXAMPLES


@pytest.mark.parametrize("example", ["first_test", "port"], indirect=True)
def test_an_example_with_tests_passes(example: pytest.Pytester) -> None:
    example.runpytest_inprocess("-p", "no:cacheprovider", "--precision=32-true,bf16").assert_outcomes(passed=2)


@pytest.mark.parametrize("example", ["first_test"], indirect=True)
def test_an_example_s_golden_notices_a_change(example: pytest.Pytester) -> None:
    model = example.path / "model.py"
    model.write_text(model.read_text(encoding="utf8").replace(".mean(1)", ".sum(1)"), encoding="utf8")
    example.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(failed=1)


@pytest.mark.parametrize("example", ["port"], indirect=True)
def test_a_port_with_another_eps_is_different(example: pytest.Pytester) -> None:
    layers = example.path / "layers.py"
    layers.write_text(layers.read_text(encoding="utf8").replace("eps=1e-6", "eps=1e-3"), encoding="utf8")
    result = example.runpytest_inprocess("-p", "no:cacheprovider", "--precision=32-true")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*different*"])


@pytest.mark.parametrize(("given", "found"), [([], ["lost-update"]), (["--master"], [])])
def test_the_training_loop_loses_its_updates_unless_masters_hold_them(
    given: list[str], found: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *given])
    train = runpy.run_path(str(ROOT / "examples" / "training_loop" / "train.py"))
    assert train["main"]() == bool(found)
    said = capsys.readouterr().out
    assert said.startswith(found[0] if found else "no errors")
