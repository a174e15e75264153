"""The guides work: their kernels are read, validated and screened, and their commands do what the pages say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.report_size import synthesise
from engine.cuda.load import load_program
from engine.errors import OptimlError
from engine.model import Outcome
from engine.run.machine import Machine, make_machine
from engine.spec.find import find_spec
from tests.locked import locked
from tests.runtime import with_runtime
from tests.support.shards import first_few
from tests.test_docs import check_command

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "guides"
GUIDES = sorted(FOLDER.glob("*.md"))
# What a command may need that is not here. Such a command is not run, but its options and files are looked at. Few do: a mark is the
# way out for what installs from an index, talks to GitHub with an account, or changes the machine.
NEEDS = {"the network", "GitHub", "root"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_SECTION = re.compile(r"^## (\d+\. .*)$", re.M)


@dataclass(frozen=True)
class Command:
    """One `$ …` line of a guide, what it needs ("": nothing), the lines of output that the page shows, and the number of its section."""

    text: str
    needs: str
    output: tuple[str, ...]
    section: int


def _commands(page: Path) -> list[Command]:
    found = []
    text = page.read_text()
    for block in _FENCE.finditer(text):
        if block[1] != "console":
            continue
        section = len(re.findall(r"^## ", _FENCE.sub("", text[: block.start()]), re.M))
        for entry in re.split(r"^\$ ", block[2], flags=re.M)[1:]:
            first, *output = entry.strip().splitlines()
            command, _, needs = first.partition("  # needs: ")
            found.append(Command(command, needs, tuple(line for line in output if line), section))
    return found


def _patterns() -> dict[str, dict[str, str]]:
    parts = _SECTION.split((FOLDER / "spec.md").read_text())
    return {title: dict(_FENCE.findall(text)) for title, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all workers of a test run: what the CPU path needs is built once."""
    folder = tmp_path_factory.getbasetemp().parent / "cache-of-the-guides"
    with locked(folder):
        return with_runtime(folder)


@pytest.fixture(scope="module")
def machine(cache: Path) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIML_CACHE", str(cache))
        made = make_machine(device="cpu", arch="sm_90")
    yield made
    made.close()


def _screen(blocks: dict[str, str], folder: Path, machine: Machine) -> Outcome:
    """Read, validate and screen the file of a pattern, with its `optiml.toml` where it has one."""
    root = folder.resolve()
    (root / ".git").mkdir()  # the root, wherever the folder lies
    name = re.search(r'^file = "(\S+)"$', blocks.get("toml", ""), re.M)
    path = root / (name[1] if name else "kernel.cu")
    path.write_text(blocks["cuda"])
    if "toml" in blocks:
        (root / "optiml.toml").write_text(blocks["toml"])
    spec, spec_path = find_spec(root, path, None)
    program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
    with closing(machine.evaluator(spec, root, spec_path)) as evaluator:
        original, opened = evaluator.open(program)
        assert opened.outcome is Outcome.SCREENED
        evaluation, _ = evaluator.evaluate(original, None)
    return evaluation.outcome


def test_the_spec_guide_has_ten_patterns() -> None:
    assert [int(title.partition(".")[0]) for title in _patterns()] == list(range(1, 11))


@pytest.mark.parametrize("title", first_few(_patterns(), 3))
def test_pattern_is_validated_and_screened(title: str, machine: Machine, tmp_path: Path) -> None:
    assert _screen(_patterns()[title], tmp_path, machine) is Outcome.SCREENED


_FIRST = next(iter(_patterns().values()))["cuda"]
_RESULT = "y[i] = x[i] > 0.0f ? x[i] : 0.01f * x[i];"
_OUT = '{ role = "out", size = "n" }'


@pytest.mark.parametrize(
    ("find", "replacement", "messages"),
    [
        (
            _RESULT,
            "y[i] = 0.0f * x[i];",
            [
                "all zeros in 'y' would be accepted as a correct result",
                "no output depends on the input 'x' in any check case",
            ],
        ),
        (_OUT, '{ role = "out", size = "n-(n>1)" }', ["the original kernel fails"]),
    ],
    ids=["zeros", "too-small"],
)
def test_a_bad_spec_is_refused_as_the_guide_says(
    find: str, replacement: str, messages: list[str], machine: Machine, tmp_path: Path
) -> None:
    assert _FIRST.count(find) == 1
    with pytest.raises(OptimlError) as caught:
        _screen({"cuda": _FIRST.replace(find, replacement)}, tmp_path, machine)
    page = (FOLDER / "spec.md").read_text()
    for message in messages:
        assert message in str(caught.value)
        assert f"`{message}`" in page


def test_the_guide_to_reviews_quotes_what_the_bot_writes() -> None:
    """Each quotation stands in a golden file of the bot's tests, and each part of a golden review is explained."""
    golden = [path.read_text() for path in sorted((ROOT / "tests" / "bot" / "golden").glob("*.md"))]
    page = (FOLDER / "review.md").read_text()
    quoted = [block.strip() for language, block in _FENCE.findall(page) if language == "markdown"]
    assert len(quoted) >= 10
    assert [text for text in quoted if not any(text in review for review in golden)] == []
    parts = {part for review in golden for part in re.findall(r"<summary>(\D.*?)(?: \(\d+\))?</summary>", review)}
    parts |= {heading for review in golden for heading in re.findall(r"^### (?!OptiML: )(\D.*)$", review, re.M)}
    parts |= {title for review in golden for title in re.findall(r'^    title "(.*)"$', review, re.M)}
    assert len(parts) >= 6
    assert [part for part in parts - {"Patch"} if part not in " ".join(page.split())] == []


def test_defaults_in_the_guide_to_runners_are_those_of_the_settings() -> None:
    named = re.findall(r"^\| `(\w+\.\w+)` \| `(\w+)` \|", (FOLDER / "runners.md").read_text(), re.M)
    assert len(named) >= 4
    settings = (ROOT / "docs" / "config.md").read_text()
    assert [name for name, default in named if f"| `{name}` | `{default}` |" not in settings] == []


def _environment(cache: Path, folder: Path) -> dict[str, str]:
    """What the commands of a guide find: the command and a cache, this checkout where they clone, an installation where they make one."""
    venv = folder / "installed"
    (venv / "bin").parent.mkdir()
    (venv / "bin").symlink_to(Path(sys.executable).parent)
    (venv / ".ready").touch()
    tomorrow = time.time() + 86_400
    os.utime(venv / ".ready", (tomorrow, tomorrow))  # newer than what is cloned, so that make installs nothing
    author = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings = {f"url.{ROOT}.insteadOf": "https://github.com/OWNER/optiml", "safe.directory": "*"}
    git = {"GIT_CONFIG_COUNT": str(len(settings))}
    for i, (key, value) in enumerate(settings.items()):
        git |= {f"GIT_CONFIG_KEY_{i}": key, f"GIT_CONFIG_VALUE_{i}": value}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}  # of the `make test` that may run this
    here = {key: value for key, value in os.environ.items() if key not in outer}
    own = {"PATH": path, "OPTIML_CACHE": str(cache), "COLUMNS": "200", "VENV": str(venv), "BUDGET": "3"}
    return {**here, **author, **git, **own}


def _shorter(text: str) -> str:
    """A candidate for each twenty seconds, one case of the self-test."""
    text = re.sub(r"--budget (\d+)s", lambda budget: f"--budget {int(budget[1]) // 20}", text)
    return re.sub(r"^optiml selftest(?= -|$)", "optiml selftest small-blocks", text)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in GUIDES if any(not c.needs for c in _commands(p))], ids=lambda p: p.stem)
def test_commands_of_a_guide_run(page: Path, cache: Path, tmp_path: Path) -> None:
    """In order, in one new repository that holds what the page says, the examples and a run in `DIR`; `cd` counts in its section."""
    root = tmp_path / "repository"
    root.mkdir()
    for language, block in _FENCE.findall(page.read_text()):
        named = re.match(r"// (\S+/\S+\.cu)$", block.partition("\n")[0])
        if language == "cuda" and named:
            (root / named[1]).parent.mkdir(exist_ok=True)
            (root / named[1]).write_text(block.partition("\n")[2])
    environment = _environment(cache, tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    (root / "examples").symlink_to(ROOT / "examples")
    if any("DIR" in shlex.split(command.text) for command in _commands(page)):
        synthesise(root / "DIR", 30)
    folders: dict[int, Path] = {}
    for command in (command for command in _commands(page) if not command.needs):
        folder = folders.get(command.section, root)
        words = shlex.split(_shorter(command.text))
        if words[0] == "cd":
            folders[command.section] = folder / words[1]
            assert folders[command.section].is_dir(), command.text
            continue
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command.text}\n{done.stdout}{done.stderr}"
        for line in command.output:
            assert line in done.stdout, command.text


def test_what_no_test_runs_installs_talks_to_github_or_changes_the_machine() -> None:
    marked = [command for page in GUIDES for command in _commands(page) if command.needs]
    wanted = {"the network": r"pip install ", "GitHub": r"\./config\.sh |\./run\.sh|gh ", "root": "sudo "}
    assert [c.text for c in marked if not re.match(rf"\S*({wanted[c.needs]})", c.text)] == []
    assert len(marked) * 2 < sum(len(_commands(page)) for page in GUIDES)


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.stem)
def test_commands_that_need_more_name_what_there_is(page: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for command in _commands(page):
        assert not command.needs or command.needs in NEEDS, command
        words = shlex.split(command.text)
        while "=" in words[0] or words[0] in ("sudo", "env"):
            words = words[1:]
        program = Path(words[0]).name
        if program == "optiml":
            check_command(page, shlex.join(words[1:]))
        elif program.startswith("optiml-"):
            assert program in scripts
        elif program == "make":
            assert set(words[1:]) <= targets
