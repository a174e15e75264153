"""A push, two pull requests and three commands through gate, optimize and publish, against a GitHub on this machine.

    python benchmarks/github_end_to_end.py --device gpu --budget 60s --record benchmarks/results/github_end_to_end.json

Makes a real git repository: three commits on the default branch, one pull request that makes a kernel slower, another whose
kernel could be faster. Each job is a process of its own with the environment that a runner gives it. The GitHub is the tests'
own server (`tests/bot/server`), and the language model that a command asks is a script with one edit. With npm every request and answer
is held against GitHub's OpenAPI description, without it the record says that nothing was. Exit code 0 when everything came out as it
must, 1 when not, 2 on wrong use.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from tests.bot.repo import Repo  # noqa: E402
from tests.bot.server.server import Server  # noqa: E402
from tests.engine.llm.server import ChatServer, completion, ok  # noqa: E402

SCHEMA = "optiml.github_end_to_end/1"
REPOSITORY = "octocat/Hello-World"
FAST = """\
#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: time = [{ n = 16777216 }]
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}

void run(const float* x, float* y, int n) {
    scale<<<(n + 255) / 256, 256>>>(x, y, n);
}
"""
# The lanes of a warp far from each other: the same result, in an order that no sector likes.
SLOW = FAST.replace(
    "    if (i < n) y[i] = 2.0f * x[i];",
    "    int m = (n + 31) / 32, j = i % 32 * m + i / 32;\n    if (i < 32 * m && j < n) y[j] = 2.0f * x[j];",
)
# What the scripted model answers, always: one edit of softmax.
ANSWER = {
    "proposals": [{
        "idea": "Multiply by the reciprocal of the sum", "counter": "", "direction": "down",
        "edits": [{"search": "expf(x[row * cols + c] - top) / sum;", "replace": "expf(x[row * cols + c] - top) * (1.0f / sum);"}],
        "kernel": "", "launch": [],
    }]
}  # fmt: skip
SOFTMAX = (ROOT / "examples" / "softmax.cu").read_text()


@dataclass
class Story:
    """The repository, what is left by runs, and what was seen."""

    folder: Path
    device: str
    repo: Repo
    runs: int = 100
    model: str = ""  # the address of a language model, for jobs that search
    jobs: list[dict[str, Any]] = field(default_factory=list)

    def job(
        self,
        server: Server,
        mode: str,
        event_name: str,
        event: dict[str, Any],
        artifact: Path | None = None,
        **more: str,
    ) -> dict[str, str]:
        """Run one job as a runner would, on a machine that has the artifact and nothing else; its outputs."""
        temp = self.folder / f"{self.runs}-{mode}"
        shared = self.folder / "baseline"
        temp.mkdir()
        shared.mkdir(exist_ok=True)
        shutil.copytree(shared, temp / "optiml-baseline")  # what the workflow's cache does
        if artifact is not None:
            shutil.copytree(artifact, temp / "optiml-bundle")
        (temp / "event.json").write_text(json.dumps(event))
        # A runner's own variables, and those of a job around this one, are replaced.
        kept = {k: v for k, v in os.environ.items() if k == "OPTIML_CACHE" or not k.startswith(("GITHUB_", "OPTIML_"))}
        environment = kept | {
            "OPTIML_MODE": mode, "GITHUB_EVENT_NAME": event_name, "GITHUB_EVENT_PATH": str(temp / "event.json"),
            "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_API_URL": server.url, "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_RUN_ID": str(self.runs), "GITHUB_OUTPUT": str(temp / "output"), "GITHUB_STEP_SUMMARY": str(temp / "summary"),
            "GITHUB_WORKSPACE": str(self.repo.folder), "RUNNER_TEMP": str(temp), "OPTIML_DEVICE": self.device,
            "OPTIML_TOKEN": "" if mode == "optimize" else "token",
            **({"OPENAI_BASE_URL": self.model, "OPENAI_API_KEY": "none"} if self.model and mode == "optimize" else {}), **more,
        }  # fmt: skip
        before, begin = len(server.requests), time.monotonic()
        code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from action.main import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, str(ROOT)],
            cwd=temp,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        said = done.stdout + done.stderr
        self.jobs.append({
            "event": event_name, "mode": mode, "seconds": round(time.monotonic() - begin, 2), "exit_code": done.returncode,
            "api_calls": len(server.requests) - before, "said": said.splitlines()[-12:],
        })  # fmt: skip
        if done.returncode != 0:
            raise AssertionError(f"{mode} of {event_name} ended with {done.returncode}: {said[-2000:]}")
        shutil.rmtree(shared)
        shutil.copytree(temp / "optiml-baseline", shared)
        return outputs((temp / "output").read_text() if (temp / "output").exists() else "")

    def workflow(self, server: Server, event_name: str, event: dict[str, Any]) -> dict[str, str]:
        """All jobs of one run, as the workflow under docs/workflows ties them together; the outputs of the last."""
        self.runs += 1
        server.runs[self.runs] = {"path": ".github/workflows/optiml.yml", "status": "in_progress"}
        gate = self.job(server, "gate", event_name, event)
        last, result, artifact = gate, "skipped", None
        if gate["run"] == "true":
            last, result = self.job(server, "optimize", event_name, event, OPTIML_REQUEST=gate["request"]), "success"
            bundle = self.folder / f"{self.runs}-optimize" / "optiml-bundle"
            if bundle.is_dir():
                server.artifacts[self.runs] = (self.runs, "optiml-bundle", zipped(bundle), False)
                artifact = bundle
        if gate["publish"] == "true":
            more = {"OPTIML_REQUEST": gate["request"], "OPTIML_RESULT": result}
            last = self.job(server, "publish", event_name, event, artifact, **more)
        server.runs[self.runs]["status"] = "completed"
        return last


def outputs(text: str) -> dict[str, str]:
    """What a job wrote for the jobs after it."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, _, mark = line.partition("<<")
        found[name] = "\n".join(iter(lambda mark=mark: next(lines), mark))  # type: ignore[misc]
    return found


def zipped(folder: Path) -> bytes:
    """An artifact as the store keeps it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(path, path.relative_to(folder).as_posix())
    return data.getvalue()


def pull_event(server: Server) -> dict[str, Any]:
    """What GitHub sends when a pull request is opened."""
    repository = {"full_name": REPOSITORY, "pushed_at": server.pushed_at}
    head = {"sha": server.head, "ref": server.head_ref, "repo": repository}
    base = {"sha": server.base, "ref": "main", "repo": repository}
    pull = {"number": 7, "draft": False, "state": "open", "head": head, "base": base, "comments": len(server.comments)}
    return {"action": "opened", "pull_request": pull}


def comment_event(body: str, number: int) -> dict[str, Any]:
    """What GitHub sends for a new comment."""
    user = {"login": "ann", "id": 12, "type": "User"}
    comment = {"id": number, "body": body, "created_at": "2025-01-01T12:00:00Z", "user": user}
    return {
        "action": "created",
        "comment": comment,
        "issue": {"number": 7, "pull_request": {"url": "https://github.test/7"}},
    }


def strict() -> bool:
    """Whether GitHub's description can be had to hold requests and answers against."""
    try:
        import openapi_core  # noqa: F401
    except ImportError:
        return False
    return shutil.which("npm") is not None


def serve(story: Story, base: str, branch: str) -> Server:
    """A GitHub with one pull request, from a branch of the repository."""
    head = story.repo.git("rev-parse", branch)
    names = story.repo.git("diff", "--name-only", base, head).splitlines()
    hunks = {}
    for name in names:
        command = ["git", "diff", base, head, "--", name]
        diff = subprocess.run(command, cwd=story.repo.folder, capture_output=True, text=True, check=True).stdout
        hunks[name] = "@@" + diff.partition("\n@@")[2]
    server = Server(head=head, base=base, files=hunks, strict=strict())
    server.head_ref = branch
    server.repositories = {REPOSITORY: story.repo.folder}
    server.roles = {"ann": "write"}
    return server


def run(device: str, budget: str, folder: Path) -> dict[str, Any]:
    """The whole story in `folder`; what came of it. Raises AssertionError where a job fails."""
    repo = Repo(folder / "repository")
    story = Story(folder, device, repo)
    settings = f"budget: {{total: {budget}, kernel: {budget}}}\nthresholds: {{speedup: 1.02}}\n"
    repo.commit({"README.md": "Kernels.\n", ".optiml.yml": settings, "src/scale.cu": FAST.replace("2.0f", "3.0f")})
    first = repo.commit({"src/softmax.cu": SOFTMAX})
    base = repo.commit({"src/scale.cu": FAST})
    repo.git("checkout", "-q", "-b", "slower")
    repo.commit({"src/scale.cu": SLOW})
    repo.git("checkout", "-q", "-b", "tidier", base)
    repo.commit({"src/softmax.cu": SOFTMAX.replace("largest", "top")})
    found: dict[str, Any] = {}
    with serve(story, base, "slower") as server:
        push = {"ref": "refs/heads/main", "before": first, "after": base, "repository": {"default_branch": "main"}}
        story.workflow(server, "push", push)
        found["baseline"] = json.loads((folder / "baseline" / "baseline.json").read_text())
        ending = story.workflow(server, "pull_request", pull_event(server))["ending"]
        found["slower"] = seen(server, ending)
        found["slower"]["bundle"] = kernels(folder / f"{story.runs}-optimize")
    with serve(story, base, "tidier") as server:
        ending = story.workflow(server, "pull_request", pull_event(server))["ending"]
        found["faster"] = seen(server, ending)
        found["faster"]["bundle"] = kernels(folder / f"{story.runs}-optimize")
        before, scripted = len(server.submitted()), ChatServer(ok(completion(json.dumps(ANSWER))))
        story.model = scripted.url
        asked = comment_event(f"/optiml optimize --proposers rules,tuner,llm --budget {budget}", 499)
        ending = story.workflow(server, "issue_comment", asked)["ending"]
        scripted.stop()
        found["asked"] = {
            "ending": ending, "requests": len(scripted.requests), "bundle": kernels(folder / f"{story.runs}-optimize"),
            "texts": [r["body"] for r in server.submitted()[before:]] + [c["body"] for c in server.comments.values()],
        }  # fmt: skip
        looked_at = server.head
        story.workflow(server, "issue_comment", comment_event("/optiml apply 1", 500))
        tip = repo.git("rev-parse", "tidier")
        found["applied"] = {
            "on_top_of_head": repo.git("rev-parse", "tidier^") == looked_at and tip != looked_at,
            "message": repo.git("log", "-1", "--format=%B", tip).splitlines(),
            "files": repo.git("diff", "--name-only", looked_at, tip).splitlines(),
            "is_the_patch": repo.git("show", f"{tip}:src/softmax.cu")
            == _patched(folder, looked_at, repo, story.runs - 1),
            "answer": answers(server),
        }
        found["faster"]["violations"] = server.violations
    found["jobs"] = story.jobs
    calls = [job["api_calls"] for job in story.jobs if job["event"] == "pull_request"]
    found["calls_by_pull_request"] = [sum(calls[:3]), sum(calls[3:])]
    found["validated"] = strict()
    return found


def _patched(folder: Path, head: str, repo: Repo, run: int) -> str:
    """What git makes of the patch that the search left; "" where it left none."""
    patches = list((folder / f"{run}-optimize").glob("optiml-bundle/runs/*/best.patch"))
    if len(patches) != 1:
        return ""
    tree = folder / "check"
    repo.git("worktree", "add", "-q", "--detach", str(tree), head)
    subprocess.run(["git", "apply", str(patches[0])], cwd=tree, check=True)
    return (tree / "src" / "softmax.cu").read_text().rstrip("\n")


def kernels(folder: Path) -> list[dict[str, Any]]:
    """The bundle's figures, without the journals' detail."""
    bundle = json.loads((folder / "optiml-bundle" / "bundle.json").read_text())
    kept = []
    for looked in bundle["kernels"]:
        result = looked["result"] or {}
        best = result.get("best") or {}
        kept.append({
            "kernel": looked["changed"]["kernel"], "comparison": looked["comparison"], "history": looked["history"],
            "spec_from": looked["spec_from"], "error": looked["error"], "mode": result.get("mode"), "verdict": result.get("verdict"),
            "best": (best.get("evaluation") or {}).get("measurement"), "device": (result.get("signals") or {}).get("device"),
            "proposers": sorted(result.get("proposers") or {}), "questions": (result.get("model") or {}).get("questions"),
        })  # fmt: skip
    return kept


def seen(server: Server, ending: str) -> dict[str, Any]:
    """What a person sees on the pull request."""
    reviews = [{"body": r["body"], "suggestions": [c["body"] for c in r["_comments"]]} for r in server.submitted()]
    checks = [{"conclusion": c["conclusion"], "title": c["output"]["title"]} for c in server.checks.values()]
    return {"ending": ending, "reviews": reviews, "checks": checks, "violations": server.violations}


def answers(server: Server) -> list[str]:
    """The bot's answers to comments, and its reactions."""
    texts = [c["body"] for c in server.comments.values() if "optiml:answer" in c["body"]]
    return [*texts, *sorted(content for _, _, content in server.reactions)]


def wrong(found: dict[str, Any]) -> list[str]:
    """What did not come out as it must, in sentences."""
    slower, faster, applied = found["slower"], found["faster"], found["applied"]
    asked = found["asked"]
    searched = asked["bundle"][0]
    must = {
        "the push was measured": [e["kernel"] for e in found["baseline"]["entries"]] == ["scale"],
        "each pull request has one review": (len(slower["reviews"]), len(faster["reviews"])) == (1, 1),
        "the kernel that got slower is named": "slower than the base" in str(slower["reviews"][:1]),
        "the slower one is slower than the history too": bool(slower["bundle"][0]["history"]),
        "the other could be faster": bool(faster["bundle"][0]["best"])
        and "| 1. `softmax_kernel`" in str(faster["reviews"]),
        "a command's proposers take part": asked["requests"] > 0 and bool(searched["questions"]),
        "the review or the status states what the model cost": "Language model: " in str(asked["texts"]),
        "the suggestion was committed on the head": bool(applied["on_top_of_head"] and applied["is_the_patch"]),
        "a review takes at most twelve calls": all(calls <= 12 for calls in found["calls_by_pull_request"]),
        "the commit touches its file alone": applied["files"] == ["src/softmax.cu"],
        "nothing broke GitHub's description": not slower["violations"] and not faster["violations"],
    }
    return [sentence for sentence, holds in must.items() if not holds]


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Push, pull requests and commands, end to end on this machine.")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--budget", default="60s", help="of each pull request's search (default: 60s)")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    begin = datetime.datetime.now(datetime.UTC)
    with tempfile.TemporaryDirectory() as name:
        found = run(options.device, options.budget, Path(name))
    bad = wrong(found)
    record = {
        "schema": SCHEMA,
        "command": ["python", "benchmarks/github_end_to_end.py", *(sys.argv[1:] if given is None else given)],
        "date": begin.isoformat(timespec="seconds"), "commit": commit(), "machine": machine(), "wrong": bad, **found,
    }  # fmt: skip
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    print(f"{'event':14} {'job':9} {'s':>7} {'calls':>5}")
    for job in found["jobs"]:
        print(f"{job['event']:14} {job['mode']:9} {job['seconds']:7.2f} {job['api_calls']:5}")
    for side in ("slower", "faster"):
        print(f"{side}: {found[side]['ending']}; {'; '.join(c['title'] for c in found[side]['checks'])}")
    for sentence in bad:
        print(f"WRONG: not so: {sentence}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
