"""Pages lead somewhere: each relative link, each heading, and each option that is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from named import OTHERS, PAGES, ROOT, asked, broken, extras, headings, known, links, options

NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    assert not broken(ROOT / name)


@pytest.mark.parametrize("name", NAMES)
def test_options_exist(name: str) -> None:
    unknown = options((ROOT / name).read_text(encoding="utf8")) - known() - OTHERS.keys()
    assert not unknown, f"{name} names {', '.join(sorted(unknown))}, which no command here has"


@pytest.mark.parametrize("name", NAMES)
def test_extras_exist(name: str) -> None:
    unknown = asked((ROOT / name).read_text(encoding="utf8")) - extras()
    assert not unknown, f"{name} asks for {', '.join(sorted(unknown))}; pyproject.toml has {', '.join(sorted(extras()))}"


def defined(name: str) -> bool:
    """Whether precheck has a module `folder.module`, or a name `module.name` in a module."""
    *holder, last = name.split(".")
    definition = re.compile(rf"^(?:\s*(?:def|class) )?{last}\b", re.MULTILINE)
    files = (ROOT / "precheck").rglob(f"{'/'.join(holder)}.py")
    return any((ROOT / "precheck").rglob(f"{name.replace('.', '/')}.py")) or any(definition.search(file.read_text(encoding="utf8")) for file in files)


def test_the_tour_names_code_that_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
    steps = re.findall(r"^[ │├└─]*(\w+) +(\S+\.py)", page, re.MULTILINE)
    code = {file: (ROOT / "precheck" / file).read_text(encoding="utf8") for _, file in steps}
    gone = [name for name, file in steps if not re.search(rf"^(def|class) {name}\b", code[file], re.MULTILINE)]
    assert len(steps) >= 8, "the page has no tree of calls"
    assert not gone, f"docs/architecture.md names {', '.join(gone)}, which these files do not define"


def test_design_decisions_name_code_that_is_there() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text(encoding="utf8")
    names = [name for name in re.findall(r"`(?!torch|inspect|precheck)([a-z_]+(?:\.\w+)+)`", page) if not name.endswith(".py")]
    assert len(names) > 20
    assert not [name for name in names if not defined(name)]
    assert not defined("shadow.codex")
    assert not defined("codes.Codex")


def test_each_page_is_led_to() -> None:
    """From the index, in one step or more."""
    reached, open_ = set(), [ROOT / "docs" / "README.md"]
    while open_:
        page = open_.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        open_ += [(page.parent / link.partition("#")[0]).resolve() for link in links(page.read_text(encoding="utf8")) if ":" not in link]
    assert not {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")} - {page.relative_to(ROOT).as_posix() for page in reached}


def test_what_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `b`, c: d\n```\n# no heading\n```\n", encoding="utf8")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#a-b-c-d) [b](other.md#no-heading) [c](gone.md) [d](https://e.f) `[e](gone.md)`\n", encoding="utf8")
    assert broken(page) == ["other.md#no-heading", "gone.md"]
    assert headings("# A `b`, c: d") == {"a-b-c-d"}
    assert options("`--golden-dir=PATH`, --n-o -- ----- a--b") == {"--golden-dir", "--n-o"}
    assert "--golden-dir" in known()
    assert "--n-o" not in known()
    assert asked("pip install 'pytest-precheck[a,b]' -e '.[c]' x[d]") == {"a", "b", "c"}
    assert {"report", "dev"} <= extras()


@pytest.mark.parametrize("name", ["docs/comparison.md", "README.md"])
def test_figures_are_the_zoo_s(name: str) -> None:
    """Where the zoo has grown, they are taken from its scoreboard again."""
    page, zoo = ((ROOT / each).read_text(encoding="utf8") for each in (name, "suites/zoo/README.md"))
    figures = re.findall(r"\b\d+/\d+\b", page)
    assert len(figures) >= 5
    lost = [figure for figure in figures if not re.search(rf"\b{figure}\b", zoo)]
    assert not lost, f"{name} has {', '.join(lost)}; take them from the scoreboard of suites/zoo/README.md"
    total = figures[0].partition("/")[2]
    assert f"{total} bugs that shipped" in page or "bugs that shipped, found by `watch`" in page


def test_figures_of_the_readme_are_those_of_the_planted_bugs_and_of_the_bench() -> None:
    pages = (ROOT / each for each in ("README.md", "suites/planted/README.md", "suites/bench/README.md"))
    readme, planted, bench = (page.read_text(encoding="utf8") for page in pages)
    score = next(line for line in planted.splitlines() if line.startswith("| measure |")).split(" | ")
    found, accused = score[1].partition(" (")[0], score[6].partition(" (")[0]
    [costs] = re.findall(r"^\| passing `measure` of the planted networks \| [\d, ]+ \| \*{0,2}([\d.]+)", bench, re.MULTILINE)
    assert f"| bugs planted in whole networks, found by `measure` | {found} |" in readme
    assert f"| healthy networks, wrongly accused | {accused} |" in readme
    assert f"takes {costs} times as long" in readme
    checks = [line for line in bench.splitlines() if line.startswith("| a check of one step, over that step | bf16-true ")]
    ratios = [float(ratio) for ratio in re.findall(r"\*{0,2}(\d\.\d+)\*{0,2} \(", checks[0])]
    assert f"costs {min(ratios):.2f} to {max(ratios):.2f} times the step" in readme
    start = re.findall(r"^\| start of pytest where unused: seconds more \| any \| [\d.]+ \| ([\d.]+)", bench, re.MULTILINE)
    assert f"{start[0]} s later" in readme
