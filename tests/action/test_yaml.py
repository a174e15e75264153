"""action.yml's own steps, run by bash, and the workflows that use it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from action import context
from tests.action.conftest import Evaluate

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOWS = sorted((ROOT / "docs" / "workflows").glob("*.yml"))
SET_UP, RUN = ACTION["runs"]["steps"]
HOSTILE = "x\"; touch pwned; echo '$(touch pwned)`touch pwned`\n::set-output name=run::true\n${{ github.token }}"


def inputs(**given: str) -> dict[str, str]:
    return {
        name: given.get(name.replace("-", "_"), str(option.get("default", "")))
        for name, option in ACTION["inputs"].items()
    }


def environment_of(step: Mapping[str, Any], evaluate: Evaluate, values: Mapping[str, str]) -> dict[str, str]:
    contexts = {"inputs": values, "github": {"action_path": str(ROOT), "token": "never"}}
    return {name: evaluate(str(text), contexts) for name, text in step["env"].items()}


def bash(step: Mapping[str, Any], cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A composite action's step as the runner starts it: `shell: bash` means these options."""
    script = cwd / "step.sh"
    script.write_text(step["run"])
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    kept = {k: os.environ[k] for k in ("PATH", "HOME", "LANG") if k in os.environ}
    return subprocess.run(command, cwd=cwd, env=kept | dict(environment), capture_output=True, text=True, timeout=120)


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """The runner's temporary folder, with an environment in which the command is this checkout's."""
    temp = tmp_path / "temp"
    (temp / "optiml-venv" / "bin").mkdir(parents=True)
    command = temp / "optiml-venv" / "bin" / "optiml-action"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom action.main import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return temp


def test_the_run_step_runs_the_mode(runner: Path, tmp_path: Path, evaluate: Evaluate) -> None:
    (tmp_path / "event.json").write_text("{}")
    environment = environment_of(RUN, evaluate, inputs(mode="gate")) | {
        "RUNNER_TEMP": str(runner), "GITHUB_EVENT_NAME": "push", "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_REPOSITORY": "o/r", "GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_WORKSPACE": str(tmp_path),
    }  # fmt: skip
    done = bash(RUN, tmp_path, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no push to the default branch" in done.stdout
    assert "run<<" in (tmp_path / "output").read_text()


@pytest.mark.parametrize("name", [name for name in ACTION["inputs"] if name not in ("extras", "python")])
def test_no_input_becomes_code(runner: Path, tmp_path: Path, evaluate: Evaluate, name: str) -> None:
    """What an input holds arrives as data, whatever it is."""
    given = inputs(mode="optimize") | {name: HOSTILE}
    environment = environment_of(RUN, evaluate, given)
    assert HOSTILE in environment.values()
    assert "never" not in environment.values()
    paths = {"RUNNER_TEMP": str(runner), "GITHUB_REPOSITORY": "o/r", "GITHUB_WORKSPACE": str(tmp_path)}
    done = bash(RUN, tmp_path, environment | paths)
    assert done.returncode == 2, done.stdout + done.stderr
    assert not list(tmp_path.rglob("pwned"))
    assert not any(line.startswith("::set-output") for line in done.stdout.splitlines())


def test_set_up_takes_extras_by_name_alone(runner: Path, tmp_path: Path, evaluate: Evaluate) -> None:
    for extras in (HOSTILE, "gpu] --index-url=https://example.org", "../x", "gpu;x"):
        environment = environment_of(SET_UP, evaluate, inputs(mode="gate", extras=extras))
        done = bash(SET_UP, tmp_path, environment | {"RUNNER_TEMP": str(runner)})
        assert done.returncode == 2
        assert "separated by commas" in done.stderr
        assert not list(tmp_path.rglob("pwned"))


def test_set_up_installs_into_an_environment_of_its_own(tmp_path: Path, evaluate: Evaluate) -> None:
    """The interpreter is a stand-in that writes down what it is asked for; installing itself is pip's."""
    temp, log = tmp_path / "temp", tmp_path / "log"
    temp.mkdir()
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/bash\necho "$PWD $*" >> {log}\nif [[ "$2" == -m && "$3" == venv ]]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; fi\n'
    )
    python.chmod(0o755)
    environment = environment_of(SET_UP, evaluate, inputs(mode="optimize", python=str(python), extras="gpu,nvcc"))
    done = bash(SET_UP, tmp_path, environment | {"RUNNER_TEMP": str(temp)})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = log.read_text().splitlines()
    # Never from the workspace: a module of a pull request must not be taken for one of ours.
    assert all(line.startswith(f"{temp} -I ") for line in lines), lines
    assert lines[-1].endswith(f"install --quiet --disable-pip-version-check {ROOT}[bot,gpu,nvcc]")


def test_set_up_refuses_an_old_python(tmp_path: Path, evaluate: Evaluate) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/bash\nexit 1\n")
    python.chmod(0o755)
    environment = environment_of(SET_UP, evaluate, inputs(mode="gate", python=str(python)))
    done = bash(SET_UP, tmp_path, environment | {"RUNNER_TEMP": str(tmp_path)})
    assert done.returncode == 2
    assert "3.11 or newer" in done.stderr


# ---- what fits together


def test_inputs_reach_steps_through_the_environment_alone() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert len(ACTION["runs"]["steps"]) == 2
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
    used = set(re.findall(r"inputs\.([\w-]+)", str([step["env"] for step in ACTION["runs"]["steps"]])))
    assert used == set(ACTION["inputs"])
    read = set(re.findall(r'"(OPTIML_\w+)"', Path(context.__file__).read_text()))
    assert read == set(RUN["env"])


def test_every_output_is_set_by_the_code() -> None:
    code = "".join(path.read_text() for path in (ROOT / "action").glob("*.py"))
    for name, output in ACTION["outputs"].items():
        assert output["value"] == f"${{{{ steps.run.outputs.{name} }}}}"
        assert f'"{name}": ' in code, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_a_workflow_gives_each_job_no_more_than_it_needs(path: Path) -> None:
    flow = yaml.safe_load(path.read_text())
    assert flow["permissions"] == {}
    jobs = flow["jobs"]
    assert set(jobs) == {"gate", "optimize", "publish"}
    assert jobs["optimize"]["permissions"] == {"contents": "read"}
    assert "contents" not in jobs["gate"]["permissions"] or jobs["gate"]["permissions"]["contents"] == "read"
    for name, job in jobs.items():
        assert job["timeout-minutes"] <= 60
        uses = [step["uses"] for step in job["steps"]]
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", use) for use in uses), uses
        # Only the job that has no write token checks something out, and it does not leave its token there.
        checkouts = [step for step in job["steps"] if step["uses"].startswith("actions/checkout@")]
        assert len(checkouts) == (name == "optimize")
        for step in checkouts:
            assert step["with"]["persist-credentials"] is False
            assert step["with"]["ref"] == "${{ needs.gate.outputs.head-sha }}"
        caches = [step for step in job["steps"] if step["uses"].startswith("actions/cache")]
        assert [step["uses"].split("@")[0] for step in caches] == ["actions/cache/restore", "actions/cache/save"][
            : 2 * len(checkouts)
        ]
        assert all("github.event_name == 'push'" in step["if"] for step in caches if "/save@" in step["uses"])
        ours = [step for step in job["steps"] if step["uses"].startswith("OWNER/optiml@")]
        assert [step["with"]["mode"] for step in ours] == [name]
        assert set(ours[0]["with"]) <= set(ACTION["inputs"])
        assert ("token" in ours[0]["with"]) == (name != "optimize")
    for output in jobs["gate"]["outputs"].values():
        assert re.fullmatch(r"\$\{\{ steps\.gate\.outputs\.([\w-]+) \}\}", output)[1] in ACTION["outputs"]  # type: ignore[index]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_concurrency_and_conditions_mean_what_they_say(path: Path, evaluate: Evaluate) -> None:
    flow = yaml.safe_load(path.read_text())

    def contexts(event_name: str, event: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "github": {"event_name": event_name, "event": event, "run_id": "99"},
            "inputs": {"pull-number": "7"} if event_name == "workflow_dispatch" else {},
            "needs": {
                "gate": {"outputs": {"run": "true", "publish": "true", "request": "{}", "head-sha": "a"}},
                "optimize": {"result": "failure"},
            },
        }

    pull = contexts(
        "pull_request_target" if "pull_request_target" in flow[True] else "pull_request",
        {"pull_request": {"number": 7}},
    )
    issue = {"number": 7, "pull_request": {"url": "x"}}
    command = contexts("issue_comment", {"issue": issue, "comment": {"body": "/optiml optimize"}})
    talk = contexts("issue_comment", {"issue": issue, "comment": {"body": "thanks"}})
    plain = contexts("issue_comment", {"issue": {"number": 7}, "comment": {"body": "/optiml optimize"}})
    by_hand = contexts("workflow_dispatch", {})
    cancel = contexts("issue_comment", {"issue": issue, "comment": {"body": "/optiml cancel"}})
    push = contexts("push", {})
    push["github"]["ref"] = "refs/heads/main"
    group, cancels = flow["concurrency"]["group"], str(flow["concurrency"]["cancel-in-progress"])
    assert [evaluate(group, c) for c in (pull, command, talk, by_hand, cancel, push)] == [
        "optiml-7", "optiml-7", "optiml-7-99", "optiml-7", "optiml-7-99", "optiml-refs/heads/main",
    ]  # fmt: skip
    assert [evaluate(cancels, c) for c in (pull, command, talk, by_hand)] == ["true", "false", "false", "false"]
    starts = f"${{{{ !!({flow['jobs']['gate']['if']}) }}}}"
    assert [evaluate(starts, c) for c in (pull, command, talk, plain, by_hand, push)] == [
        "true", "true", "false", "false", "true", "true",
    ]  # fmt: skip
    posts = f"${{{{ !!({flow['jobs']['publish']['if']}) }}}}"
    assert evaluate(posts, pull) == "true"


def test_the_checks_of_make_lint_pass() -> None:
    recipe = (ROOT / "Makefile").read_text()
    commands = [line.strip() for line in recipe.splitlines() if "check-jsonschema" in line or "zizmor" in line]
    assert len(commands) == 3
    for line in commands:
        words = line.replace("$(BIN)/", "").split()
        if not (BIN / words[0]).exists() and shutil.which(words[0]) is None:
            pytest.skip(f"{words[0]} is not installed")
        words = [str(BIN / words[0]), *(str(p) for w in words[1:] for p in (sorted(ROOT.glob(w)) if "*" in w else [w]))]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_can_fail(tmp_path: Path) -> None:
    if not (BIN / "zizmor").exists():
        pytest.skip("zizmor is not installed")
    broken = (
        (ROOT / "docs" / "workflows" / "private.yml")
        .read_text()
        .replace("persist-credentials: false", "fetch-tags: true")
    )
    (tmp_path / "w.yml").write_text(broken)
    command = [
        str(BIN / "zizmor"),
        "--offline",
        "--persona",
        "auditor",
        "--no-progress",
        "--quiet",
        str(tmp_path / "w.yml"),
    ]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode != 0


def test_the_guide_lists_the_inputs_and_outputs_of_the_action() -> None:
    guide = (ROOT / "docs" / "github.md").read_text()

    def names(head: str) -> set[str]:
        rows = guide.partition(f"### {head}\n")[2].partition("\n### ")[0]
        return {
            name
            for row in rows.splitlines()
            if row.startswith("| `")
            for name in re.findall(r"`([\w-]+)`", row.split("|")[1])
        }

    assert names("Inputs") == set(ACTION["inputs"])
    assert names("Outputs") == set(ACTION["outputs"])


def test_the_workflows_wait_for_a_pinned_commit_and_use_one_for_all_jobs() -> None:
    for path in WORKFLOWS:
        ours = re.findall(r"OWNER/optiml@(\w+)( # [^\n]*)?", path.read_text())
        assert ours == [("0" * 40, " # replace by the commit of a release")] * 3, path
    assert "Pin the Action" in (ROOT / "docs" / "github.md").read_text()
