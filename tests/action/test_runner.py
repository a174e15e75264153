"""Inputs from the environment, answers into the runner's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from action.main import _counted, _escaped, main
from action.runner import read_context
from engine.errors import UsageError


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "event.json").write_text('{"action": "opened"}')
    return {
        "OPTIML_MODE": "gate", "RUNNER_TEMP": str(tmp_path / "temp"), "OPTIML_TOKEN": "secret",
        "GITHUB_REPOSITORY": "o/r", "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_WORKSPACE": str(tmp_path), "GITHUB_RUN_ID": "12",
        "GITHUB_SERVER_URL": "https://git.example.org", "GITHUB_API_URL": "https://git.example.org/api/v3",
        "GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }  # fmt: skip


def test_everything_is_read(environment: dict[str, str], tmp_path: Path) -> None:
    context = read_context(environment)
    assert context.api_url == "https://git.example.org/api/v3"
    assert context.run_url == "https://git.example.org/o/r/actions/runs/12"
    assert context.bundle == tmp_path / "temp" / "optiml-bundle"
    assert "secret" not in repr(context)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPTIML_MODE", "all"), ("OPTIML_MODE", ""), ("OPTIML_DEVICE", "tpu"), ("OPTIML_DRY_RUN", "yes"),
        ("GITHUB_REPOSITORY", "o/r/x"), ("GITHUB_REPOSITORY", "../r"), ("GITHUB_API_URL", "https://user@host"), ("GITHUB_API_URL", "file:///etc"),
        ("OPTIML_BUNDLE", "../elsewhere"), ("OPTIML_BUNDLE", "/tmp"), ("OPTIML_BUNDLE", "."), ("GITHUB_EVENT_PATH", "/nowhere"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(environment: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(UsageError):
        read_context(environment | {name: value})


def test_an_output_cannot_set_another(environment: dict[str, str], tmp_path: Path) -> None:
    read_context(environment).answer({"reason": "x\nrun=true\nEOF\nrun<<EOF\ntrue", "run": "false"})
    lines = (tmp_path / "output").read_text().splitlines()
    mark = lines[0].removeprefix("reason<<")
    end = lines.index(mark)
    assert lines[1:end] == ["x", "run=true", "EOF", "run<<EOF", "true"]
    assert lines[end + 1].startswith("run<<")
    assert lines[end + 2] == "false"


def test_a_summary_stays_under_the_limit(environment: dict[str, str], tmp_path: Path) -> None:
    read_context(environment).summarise("é" * 2_000_000)
    data = (tmp_path / "summary").read_bytes()
    assert len(data) < 1 << 20
    assert data.decode().endswith("(cut here; the artifact has all)\n\n")


def test_a_message_cannot_be_a_command_of_the_runner() -> None:
    assert not any(line.startswith("::") for line in _escaped("::set-output name=run::true\n::error::x").splitlines())


def test_an_error_is_one_line_and_a_code(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (environment | {"OPTIML_MODE": "optimize", "OPTIML_REQUEST": "{}"}).items():
        monkeypatch.setenv(name, value)
    assert main([]) == 2
    out = capsys.readouterr().out
    assert out.startswith("::error::request")
    assert out.count("\n") == 1


def test_nothing_to_do_is_said(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (environment | {"GITHUB_EVENT_NAME": "push"}).items():
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    lines = (tmp_path / "output").read_text().splitlines()
    assert lines[lines.index(next(line for line in lines if line.startswith("run<<"))) + 1] == "false"


def test_the_bundle_is_not_where_a_pull_request_could_put_links(environment: dict[str, str], tmp_path: Path) -> None:
    """A folder of that name in a checkout, with links in it, would be uploaded with what they lead to."""
    context = read_context(environment)
    assert context.bundle.is_relative_to(tmp_path / "temp")
    workflow = Path(__file__).resolve().parents[2] / ".github" / "workflows" / "optiml.yml"
    assert workflow.read_text().count("path: ${{ runner.temp }}/optiml-bundle\n") == 3


def test_the_outputs_count_what_the_review_says() -> None:
    """A kernel below the threshold, and one predicted where predictions are not posted, counted as improved."""
    from bot.bundle import Looked
    from engine.settings.config import Config, Post, Thresholds
    from tests.bot.make import bundle, looked

    small, guess = looked(1.03), looked(3.0, kernel="guess", predicted=True)
    some: tuple[Looked, ...] = (looked(2.0), small, guess, looked(None, kernel="slow", against=0.5))
    settings = Config(thresholds=Thresholds(speedup=1.1), post=Post(predicted=False))
    assert _counted(bundle(*some), settings) == (1, 1)
    assert _counted(bundle(*some), Config(thresholds=Thresholds(speedup=1.1))) == (2, 1)


def test_the_clone_is_a_folder_of_the_workspace(environment: dict[str, str], tmp_path: Path) -> None:
    assert read_context(environment).workspace == tmp_path
    assert read_context(environment | {"OPTIML_CLONE": "clone"}).workspace == tmp_path / "clone"
    (tmp_path / "away").symlink_to("/")
    for outside in ("..", "/etc", "away/etc"):
        with pytest.raises(UsageError, match="outside the workspace"):
            read_context(environment | {"OPTIML_CLONE": outside})
