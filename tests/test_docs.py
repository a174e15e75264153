"""The documents say what is there: every field, rule option, command and link in them is real."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from benchmarks import readme_example
from benchmarks.recorded_words import in_todays_words
from engine import model
from engine.commands.command_line import make_parser
from engine.report import device_table
from engine.run import device_dispatch_check, result
from engine.search import journal

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_COMMAND = re.compile(r"^(?:\$ )?(?:\S+/)?optiml (.*)$")


def _verbs() -> dict[str, argparse.ArgumentParser]:
    return next(a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)).choices


def check_command(page: Path, arguments: str) -> None:
    """The words after `optiml` parse, and the file they name is there, or shown by the page."""
    words = shlex.split(arguments)
    if words in (["COMMAND", "--help"], ["--help"]):
        return
    if len(words) == 1 and words[0] in _verbs():
        return  # a command named in running text
    parsed = make_parser().parse_args(words)
    file = getattr(parsed, "file", None)
    if isinstance(file, Path) and file.name not in ("FILE", "FILE.cu"):
        text = page.read_text()
        shown = f"// {file}\n" in text or f"--out {file}" in text  # by the page itself, or written by a command of it
        assert (ROOT / file).is_file() or shown, f"{page.name}: no such file {file}"


def _commands() -> list[tuple[Path, str]]:
    found = []
    for page in PAGES:
        text = page.read_text()
        lines = [line for _, block in _FENCE.findall(text) for line in block.splitlines()]
        lines += list(re.findall(r"`([^`\n]+)`", _FENCE.sub("", text)))
        for line in lines:
            match = _COMMAND.match(line.strip())
            if match:
                found.append((page, match[1].partition(" #")[0].strip()))
    return sorted(set(found))


@pytest.mark.parametrize(("page", "arguments"), _commands(), ids=lambda value: getattr(value, "stem", value))
def test_every_command_in_the_documents_parses(page: Path, arguments: str) -> None:
    check_command(page, arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_no_page_has_marks_of_a_merge(page: Path) -> None:
    assert re.findall(r"^(?:<{7} .*|={7}|>{7} .*)$", page.read_text(encoding="utf-8"), re.M) == []


def test_commands_are_found_in_the_documents() -> None:
    assert len(_commands()) >= 5


@pytest.mark.parametrize(
    "part",
    [
        result.OptimizationResult, result.Best, result.TrajectoryStep, result.Refusal,
        model.Evaluation, model.Measurement, model.CaseTiming, model.Failure, model.Resources,
        device_table.DeviceBest, device_table.DispatchEnd, device_dispatch_check.DeviceBranch,
    ],
)  # fmt: skip
def test_every_field_of_the_result_is_documented(part: type) -> None:
    text = (ROOT / "docs" / "result.md").read_text()
    assert [f.name for f in dataclasses.fields(part) if f"`{f.name}`" not in text] == []


def test_every_outcome_is_documented() -> None:
    text = (ROOT / "docs" / "result.md").read_text()
    assert [o.value for o in model.Outcome if f"`{o.value}`" not in text] == []
    assert f"`{result.SCHEMA}`" in text


def test_every_column_of_the_journal_is_documented() -> None:
    text = (ROOT / "docs" / "result.md").read_text()
    columns = [*journal._COLUMNS.split(", "), "checksum"]
    assert [c for c in columns if f"`{c}`" not in text] == []


@pytest.mark.parametrize("verb", _verbs())
def test_every_option_is_documented(verb: str) -> None:
    """In the section of its own command."""
    sections = re.split(r"^## ", (ROOT / "docs" / "cli.md").read_text(), flags=re.M)
    (section,) = (s for s in sections if re.match(rf"`optiml {verb}\b", s))
    options = {o for a in _verbs()[verb]._actions for o in a.option_strings if o.startswith("--")} - {"--help"}
    assert sorted(o for o in options if f"`{o}`" not in section and f"`{o} " not in section) == []


@pytest.mark.parametrize("module", ["hooks/check.py", "hooks/quick.py", "action/main.py"])
def test_every_option_of_the_other_commands_is_documented(module: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    entered = dict(
        re.findall(r"def (\w+)\(.*?from ([\w.]+) import main", (ROOT / "optiml_cuda" / "console.py").read_text(), re.S)
    )
    wanted = module.removesuffix(".py").replace("/", ".")
    (command,) = (name for name, entry in scripts.items() if entered[entry.rpartition(":")[2]] == wanted)
    sections = re.split(r"^## ", (ROOT / "docs" / "cli.md").read_text(), flags=re.M)
    (section,) = (s for s in sections if f"`{command}`" in s.partition("\n")[0])
    options = re.findall(r"""add_argument\(\s*"(--[\w-]+)""", (ROOT / module).read_text())
    assert options
    assert [o for o in options if f"`{o}`" not in section and f"`{o} " not in section] == []


def test_the_rule_in_the_guide_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What "how to add a rule" shows is a rule: it edits an example so that the text still has its kernel. Its tests pass."""
    from engine.cuda.edit import edit_program
    from engine.cuda.load import load_program
    from engine.rules import make_site
    from engine.spec.find import find_spec
    from tests.engine.rules import workbench

    blocks = [b for language, b in _FENCE.findall((ROOT / "CONTRIBUTING.md").read_text()) if language == "python"]
    assert len(blocks) == 2
    for name, block in zip(("rule_of_the_guide", "checks_of_the_guide"), blocks, strict=True):
        (tmp_path / f"{name}.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    rule = importlib.import_module("rule_of_the_guide").TwoBlocks()
    monkeypatch.setattr(workbench, "rules", lambda: (rule,))
    checks = vars(importlib.import_module("checks_of_the_guide"))
    run = [check() for name, check in checks.items() if name.startswith("test_")]
    assert len(run) == 2
    path = ROOT / "examples" / "softmax.cu"
    spec, spec_path = find_spec(ROOT, path, None)
    program = load_program(path, spec_file=spec_path, kernels=[spec.kernel])
    site = make_site(program, spec)
    (proposal,) = rule.propose(site)
    edited = edit_program(program, proposal.edits)
    assert b"__global__ void __launch_bounds__(256, 2) softmax_kernel(" in edited.data
    # A kernel that has launch bounds is left alone.
    assert list(rule.propose(make_site(edited, spec))) == []


def test_the_example_in_the_readme_is_what_its_record_says() -> None:
    record = json.loads(readme_example.RECORD.read_text())
    readme = (ROOT / "README.md").read_text()
    text = readme_example.example(record)
    verdict = record["rows"][readme_example.ROW]["verdict"]
    said = in_todays_words(verdict)
    assert said in text
    assert re.findall(r"[\d.]+", said) == re.findall(r"[\d.]+", verdict)
    assert readme == readme_example.replaced(readme, text), "run 'python benchmarks/readme_example.py'"


def test_the_tables_of_the_search_page_are_those_of_their_records() -> None:
    page, records = (ROOT / "docs" / "search.md").read_text(), ROOT / "benchmarks" / "results"
    arms = json.loads((records / "ablation-search.json").read_text())["summary"]["arms"]
    for after in ("10", "25", "50", "100"):
        tree, greedy, by_chance = (arms[arm][after] for arm in ("mcts", "greedy", "random"))
        means = " | ".join(f"{arm['geometric_mean']:.2f}" for arm in (tree, greedy, by_chance))
        assert f"| {after} | {means} | {greedy['ratio']:.3f} ({greedy['low']:.3f} to {greedy['high']:.3f}) |" in page
    simulated = json.loads((records / "landscapes.json").read_text())
    for kind, found in simulated["means"].items():
        means = " | ".join(f"{found[arm]:.3f}" for arm in ("mcts", "greedy", "random"))
        leads = (simulated["leads"][kind][arm] for arm in ("greedy", "random"))
        cells = " | ".join(f"{lead:+.3f} ({low:+.3f} to {high:+.3f})" for lead, low, high in leads)
        assert f"| {kind} | {means} | {cells} |" in page


def test_the_page_of_the_rules_names_fields_that_a_result_has() -> None:
    """It named `edit.rule`."""
    page = (ROOT / "docs" / "rules.md").read_text()
    named = re.findall(r"`(\w+)(?:\[\])?\.(\w+)`", page)
    assert {("trajectory", "rule"), ("trajectory", "parameters")} <= set(named)
    fields = {f.name for f in dataclasses.fields(result.TrajectoryStep)}
    assert [name for part, name in named if part in ("trajectory", "edit") and name not in fields] == []
    assert "`edit." not in page


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings: small letters, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", page.read_text()):
        if "://" in target:
            continue
        if target.startswith(
            "../../actions/workflows/"
        ):  # a badge: GitHub's page of a workflow, seen from the repository's
            assert (ROOT / ".github" / "workflows" / target.split("/")[4]).is_file(), f"{page.name}: {target}"
            continue
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(there), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_toml_in_the_documents_is_toml(page: Path) -> None:
    for language, block in _FENCE.findall(page.read_text()):
        if language == "toml":
            tomllib.loads(block)


def test_documents_name_only_targets_that_make_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {t for page in PAGES for t in re.findall(r"(?:^|`)make ([a-z-]+)\b", page.read_text(), re.M)}
    assert {"demo", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_paths_in_the_documents_exist(page: Path) -> None:
    named = re.findall(r"\b((?:engine|tests|benchmarks|examples|docs)/[\w./-]*\w)", page.read_text())
    # A record that a command writes need not be there yet.
    lost = {n for n in named if not (ROOT / n).exists() and not n.startswith("benchmarks/results/")}
    assert not lost


def test_each_published_method_is_named_where_the_map_says() -> None:
    rows = re.findall(r"^\|.*\| .*arXiv (\S+) \| (.*) \|$", (ROOT / "docs" / "architecture.md").read_text(), re.M)
    assert len(rows) >= 5
    for number, places in rows:
        for place in re.findall(r"`([^`]+)`", places):
            package = [*(ROOT / place).glob("*.py"), *(ROOT / "docs").glob(f"{Path(place).name}.md")]
            files = [ROOT / place] if place.endswith(".py") else package
            assert any(number in file.read_text() for file in files), (number, place)


def test_the_map_names_every_package_and_folder_of_the_tests() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [
        p.parent.relative_to(ROOT).as_posix()
        for name in ("engine", "bot", "action", "hooks")
        for p in (ROOT / name).rglob("__init__.py")
    ]
    kinds = {p.parent.name for p in (ROOT / "tests").glob("*/__init__.py")}
    assert [name for name in packages if f"`{name}`" not in text] == []
    assert [name for name in kinds if f"`{name}`" not in text] == []
    shared = [p.relative_to(ROOT).as_posix() for p in (ROOT / "engine").glob("*.py") if p.name != "__init__.py"]
    assert [name for name in shared if name not in text and f"{Path(name).name}" not in text] == []


def test_modules_in_the_documents_are_there() -> None:
    """Sixteen names of the map were those of before a renaming."""
    folders = ("engine", "bot", "action", "hooks", "benchmarks", "tests", "optiml_cuda", ".ci")
    names = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")}
    yours = {"two_blocks.py", "test_two_blocks.py", "reference.py", "reference.given.py", "file.py"}  # of a reader
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    named = {
        (page.name, name) for page in pages for name in re.findall(r"`(?:[\w/]*/)?([\w.]+\.py)`", page.read_text())
    }
    assert sorted((page, name) for page, name in named if name not in names | yours) == []
