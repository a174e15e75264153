"""Commands that search nothing: carried out on real git repositories behind a GitHub over real HTTP."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bot.answer import answer
from bot.apply import Person, Said
from bot.bundle import FILE, Bundle
from bot.commands import HELP, Apply, Cancel, Command, Explain, Help, Pr, Status
from bot.dry_run import DryCode, DryForge
from bot.errors import ForgeError
from bot.github import GitHub
from bot.github_code import GitHubCode
from bot.http_client import Client
from bot.marker import STATUS_MARKER, RunMark, read_run_line, run_line
from bot.publish import Target, publish, start
from bot.review import Settings
from engine.cuda.patch import make_patch
from engine.model import Program
from tests.bot.make import looked
from tests.bot.repo import Repo
from tests.bot.server.schema import validator
from tests.bot.server.server import Fault, Server

HERE = "octocat/Hello-World"
FORK = "stranger/Hello-World"
TEXT = "".join(f"line {i};\n" for i in range(1, 60))
ANN = Person("ann", 12)
RUN = 41  # that posted the review


@dataclass
class Scene:
    """A pull request whose review suggests two changes of one file and one of another, all from run 41."""

    server: Server
    repo: Repo
    head: str
    bundle: Bundle

    def client(self) -> Client:
        return Client("token", api_url=self.server.url, sleep=lambda s: None, timeout_s=60)

    def ask(self, command: Command, *, comment: int = 900, head: str = "", refusal: str = "") -> Said:
        client = self.client()
        forge, code = GitHub(HERE, client), GitHubCode(HERE, client)
        return answer(forge, code, Target(7, head or self.head, "", 55), HERE, command, comment, ANN, refusal)

    def answers(self) -> list[str]:
        return [c["body"] for c in self.server.comments.values() if "optiml:answer" in c["body"]]

    def tip(self, branch: str = "topic") -> str:
        return self.repo.git("rev-parse", f"refs/heads/{branch}")

    def file(self, path: str, branch: str = "topic") -> str:
        return self.repo.git("show", f"refs/heads/{branch}:{path}") + "\n"

    def store(self, bundle: Bundle | bytes, name: str = FILE, *, expired: bool = False, run: int = RUN) -> None:
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, bundle if isinstance(bundle, bytes) else bundle.to_json())
        self.server.artifacts[run] = (run, "optiml-bundle", data.getvalue(), expired)


def patch(path: str, old: str, new: str) -> str:
    return make_patch(Program({path: old.encode()}, path), Program({path: new.encode()}, path)).decode()


def changed(at: int) -> str:
    return TEXT.replace(f"line {at};\n", f"fast {at};\n")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    validator()
    repo = Repo(tmp_path / "repo")
    base = repo.commit({"src/a.cu": TEXT.replace("line 9;", "was 9;"), "src/b.cu": TEXT, "run.sh": "x\n"})
    repo.git("checkout", "-q", "-b", "topic")
    head = repo.commit({"src/a.cu": TEXT})
    repo.git("checkout", "-q", "main")
    bundle = Bundle(head, base, (
        looked(3.0, kernel="one", patch=patch("src/a.cu", TEXT, changed(10))),
        looked(2.0, kernel="two", patch=patch("src/a.cu", TEXT, changed(40))),
        looked(1.5, kernel="three", path="src/b.cu", patch=patch("src/b.cu", TEXT, changed(5))),
    ))  # fmt: skip
    with Server(head=head, base=base, files={}) as server:
        server.repositories = {HERE: repo.folder, FORK: repo.folder}
        server.runs = {RUN: {"path": ".github/workflows/optiml.yml", "status": "completed"}}
        server.runs[55] = {"path": ".github/workflows/optiml.yml", "status": "in_progress"}
        scene = Scene(server, repo, head, bundle)
        forge = GitHub(HERE, scene.client())
        assert publish(bundle, forge, Target(7, head, "", RUN), Settings(run=RUN)).ending == "posted"
        scene.store(bundle)
        server.received.clear()
        yield scene
        assert server.violations == []


# ---- apply


def test_apply_commits_the_suggestion_to_the_head_branch_with_the_person_that_asked(scene: Scene) -> None:
    said = scene.ask(Apply(1))
    assert said.done, said
    assert scene.file("src/a.cu") == changed(10)
    assert scene.repo.git("rev-parse", "topic^") == scene.head
    message = scene.repo.git("log", "-1", "--format=%B", "topic")
    assert message.splitlines()[0] == "Apply OptiML's suggestion 1"
    assert message.splitlines()[-1] == "Co-authored-by: ann <12+ann@users.noreply.github.com>"
    assert scene.repo.git("diff", "--name-only", "topic^", "topic") == "src/a.cu"
    (text,) = scene.answers()
    assert scene.tip()[:12] in text


def test_apply_takes_the_newest_review_of_the_commit_that_suggests_something(scene: Scene) -> None:
    newer = Bundle(
        scene.head, scene.bundle.base, (looked(4.0, kernel="one", patch=patch("src/a.cu", TEXT, changed(40))),)
    )
    forge = GitHub(HERE, scene.client())
    scene.server.runs[56] = {"path": ".github/workflows/optiml.yml", "status": "completed"}
    assert publish(newer, forge, Target(7, scene.head, "", 56, comment=5), Settings(run=56)).ending == "posted"
    scene.store(newer, run=56)
    compared = Bundle(scene.head, scene.bundle.base, (looked(None, kernel="one", against=0.5),))
    assert (
        publish(compared, forge, Target(7, scene.head, "", 57, comment=6, searched=False), Settings(run=57)).ending
        == "posted"
    )
    assert scene.ask(Apply(1)).done
    assert scene.file("src/a.cu") == changed(40)


def test_all_of_them_are_one_commit(scene: Scene) -> None:
    assert scene.ask(Apply(None)).done
    assert scene.file("src/a.cu") == changed(10).replace("line 40;", "fast 40;")
    assert scene.file("src/b.cu") == changed(5)
    assert scene.repo.git("rev-parse", "topic^") == scene.head
    assert "checked alone" in scene.answers()[0]


def test_a_retried_job_commits_and_answers_once(scene: Scene) -> None:
    scene.ask(Apply(1))
    tip = scene.tip()
    scene.server.head = tip
    assert scene.ask(Apply(1)).done
    assert (scene.tip(), len(scene.answers())) == (tip, 1)
    # The job that died between the commit and its answer.
    scene.server.comments.clear()
    assert scene.ask(Apply(1)).done
    assert scene.tip() == tip
    assert "Committed as" in scene.answers()[0]


def test_a_head_that_moved_gets_no_commit(scene: Scene) -> None:
    scene.repo.git("checkout", "-q", "topic")
    scene.server.head = scene.repo.commit({"src/b.cu": "other\n"})
    assert not scene.ask(Apply(1)).done
    assert scene.tip() == scene.server.head
    assert "has a newer commit" in scene.answers()[0]


def test_a_push_in_the_last_moment_is_not_lost(scene: Scene) -> None:
    scene.repo.git("checkout", "-q", "topic")
    pushed: list[str] = []

    def meanwhile(verb: str, path: str) -> None:
        if verb == "PATCH" and "/git/refs/" in path and not pushed:
            pushed.append(scene.repo.commit({"src/b.cu": "other\n"}))

    scene.server.before = meanwhile
    assert not scene.ask(Apply(1)).done
    assert [scene.tip()] == pushed
    assert "has a newer commit" in scene.answers()[0]


def test_a_fork_gets_a_pull_request_and_the_repository_no_branch(scene: Scene) -> None:
    scene.server.head_repository = FORK
    assert scene.ask(Apply(1)).done
    assert scene.tip() == scene.head
    (pull,) = scene.server.opened
    assert (pull["_where"], pull["base"]["ref"]) == (FORK, "topic")
    assert scene.file("src/a.cu", pull["head"]["ref"]) == changed(10)
    assert pull["html_url"] in scene.answers()[0]
    assert not any(path.startswith(f"/repos/{HERE}/git") for _, path, _ in scene.server.received)


def test_where_the_token_may_not_write_it_says_so(scene: Scene) -> None:
    scene.server.closed = {FORK, HERE}
    assert not scene.ask(Apply(1)).done
    assert "contents: write" in scene.answers()[0]
    scene.server.head_repository = FORK
    assert not scene.ask(Apply(1), comment=901).done
    assert "may not write to the fork `stranger/Hello-World`" in scene.answers()[1]
    assert scene.server.opened == []


@pytest.mark.parametrize(
    ("number", "says"), [(4, "has 3 suggestions"), (999, "has 3 suggestions")],
)  # fmt: skip
def test_a_number_that_is_none_is_said(scene: Scene, number: int, says: str) -> None:
    assert not scene.ask(Apply(number)).done
    assert says in scene.answers()[0]


def swapped(scene: Scene, text: str, **best: Any) -> Bundle:
    """The bundle with another patch for suggestion 1."""
    first = scene.bundle.kernels[0]
    result = first.result
    assert result is not None
    assert result.best is not None
    result = replace(result, best=replace(result.best, **best)) if best else result
    return replace(scene.bundle, kernels=(replace(first, patch=text, result=result), *scene.bundle.kernels[1:]))


def test_an_artifact_with_another_patch_than_the_review_shows_is_not_taken(scene: Scene) -> None:
    """Anybody who can run a workflow can leave an artifact; what people read decides."""
    scene.store(swapped(scene, patch("src/a.cu", TEXT, TEXT.replace("line 3;", "evil 3;"))))
    assert not scene.ask(Apply(1)).done
    assert scene.tip() == scene.head
    assert "not contain the patch" in scene.answers()[0]


WORKFLOW = ".github/workflows/x.yml"
NEW_FILE = "--- /dev/null\n+++ b/src/n.cu\n@@ -0,0 +1 @@\n+x\n"
MODE = "diff --git a/src/a.cu b/src/a.cu\nold mode 100644\nnew mode 100755\n"


@pytest.mark.parametrize(
    ("text", "files", "says"),
    [
        (patch("src/b.cu", TEXT, changed(10)), ("src/a.cu",), "files that are not"),
        (patch(WORKFLOW, TEXT, changed(10)), (WORKFLOW,), "files that are not"),
        (patch("run.sh", "x\n", "y\n"), ("run.sh",), "files that are not"),
        (patch("../a.cu", TEXT, changed(10)), ("../a.cu",), "files that are not"),
        (patch("src/a.cu", TEXT.replace("line 9;", "was 9;"), changed(10)), ("src/a.cu",), "another version"),
        (patch("src/c.cu", TEXT, changed(10)), ("src/c.cu",), "not a regular file"),
        (NEW_FILE, ("src/n.cu",), "more than change lines"),
        (MODE, ("src/a.cu",), "1 to 20 files|more than change|cannot be read"),
        ("--- a/src/a.cu\n+++ b/src/a.cu\n@@ -1,99999 +1 @@\n-x\n+y\n", ("src/a.cu",), "cannot be read|another version"),
        ("no patch at all", ("src/a.cu",), "1 to 20 files|cannot be read"),
    ],
)  # fmt: skip
def test_a_hostile_patch_is_not_committed_even_where_the_review_shows_it(
    scene: Scene, text: str, files: tuple[str, ...], says: str
) -> None:
    import re

    evil = swapped(scene, text, files=files)
    scene.server.reviews.clear()
    publish(evil, GitHub(HERE, scene.client()), Target(7, scene.head, "", RUN), Settings(run=RUN))
    scene.store(evil)
    assert not scene.ask(Apply(1)).done
    assert scene.tip() == scene.head
    assert re.search(says, scene.answers()[0]), scene.answers()


@pytest.mark.parametrize("how", ["expired", "none", "no zip", "other file", "no bundle", "other head", "bomb"])
def test_an_artifact_that_is_none_is_said_and_nothing_is_done(scene: Scene, how: str) -> None:
    if how == "expired":
        scene.store(scene.bundle, expired=True)
    elif how == "none":
        scene.server.artifacts.clear()
    elif how == "no zip":
        scene.server.artifacts[RUN] = (RUN, "optiml-bundle", b"PK nonsense", False)
    elif how == "other file":
        scene.store(scene.bundle, "../bundle.json")
    elif how == "no bundle":
        scene.store(b"{}")
    elif how == "other head":
        scene.store(replace(scene.bundle, head="c" * 40))
    else:
        scene.store(b"\0" * (33 << 20))
    assert not scene.ask(Apply(1)).done
    assert scene.tip() == scene.head
    assert "The artifact of that run" in scene.answers()[0]


def test_a_review_by_somebody_else_names_no_run(scene: Scene) -> None:
    for review in scene.server.reviews.values():
        review["user"]["login"] = "mallory"
    assert not scene.ask(Apply(1)).done
    assert "No review of this commit" in scene.answers()[0]


FAULTS = [
    Fault("POST", "/git/blobs", "502"),
    Fault("POST", "/git/trees", "drop", after=True),
    Fault("POST", "/git/commits", "drop"),
    Fault("PATCH", "/git/refs/", "drop", after=True),
    Fault("PATCH", "/git/refs/", "502", after=True),
    Fault("GET", "/artifacts", "503", 2),
    Fault("GET", "/zip", "502"),
    Fault("GET", "/git/trees/", "garbage"),
    Fault("POST", "/issues/7/comments", "drop", after=True),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.verb} {f.path} {f.kind} {f.after}")
def test_what_passes_ends_in_one_commit_and_one_answer(scene: Scene, fault: Fault) -> None:
    scene.server.faults = [Fault(**vars(fault))]
    assert scene.ask(Apply(1)).done
    assert scene.repo.git("rev-parse", "topic^") == scene.head
    assert scene.file("src/a.cu") == changed(10)
    assert len(scene.answers()) == 1


def test_what_lasts_is_said_once(scene: Scene) -> None:
    scene.server.faults = [Fault("POST", "/git/trees", "500", 99)]
    with pytest.raises(ForgeError):
        scene.ask(Apply(1))
    assert scene.tip() == scene.head
    (text,) = scene.answers()
    assert "The command failed" in text


def test_a_dry_run_of_apply_prints_the_commit_and_makes_none(scene: Scene) -> None:
    printed: list[str] = []
    client = scene.client()
    forge, code = DryForge(GitHub(HERE, client), printed.append), DryCode(GitHubCode(HERE, client), printed.append)
    assert answer(forge, code, Target(7, scene.head, "", 55), HERE, Apply(1), 900, ANN).done
    assert scene.server.received == []
    text = "\n".join(printed)
    assert "would write a commit" in text
    assert "fast 10;" in text
    assert "would move the branch topic" in text
    assert "would add a comment" in text


# ---- pr


def test_pr_opens_a_pull_request_against_the_head_branch(scene: Scene) -> None:
    assert scene.ask(Pr(2)).done
    assert scene.tip() == scene.head
    (pull,) = scene.server.opened
    branch = pull["head"]["ref"]
    assert (pull["_where"], pull["base"]["ref"]) == (HERE, "topic")
    assert branch.startswith("optiml/two-")
    assert scene.file("src/a.cu", branch) == changed(40)
    assert scene.repo.git("rev-parse", f"{branch}^") == scene.head
    assert "Co-authored-by: ann" in scene.repo.git("log", "-1", "--format=%B", branch)
    assert pull["title"] == "Speed up two: 2.00× faster (95 % interval 1.96 to 2.04)"
    assert pull["body"].startswith("<!-- optiml:pull kernel=")
    for part in ("review of #7", "12 candidates in", "racecheck"):
        assert part in pull["body"], part
    assert "/optiml" not in pull["body"]
    assert f"opened {pull['html_url']} against `topic`" in scene.answers()[0]


def test_all_of_them_are_one_pull_request_for_each_kernel(scene: Scene) -> None:
    assert scene.ask(Pr(None)).done
    assert [scene.repo.git("diff", "--name-only", scene.head, p["head"]["ref"]) for p in scene.server.opened] == [
        "src/a.cu", "src/a.cu", "src/b.cu",
    ]  # fmt: skip
    assert len(scene.answers()[0].splitlines()) == 4


def test_one_kernel_and_head_never_has_two_pull_requests(scene: Scene) -> None:
    assert scene.ask(Pr(1)).done
    (pull,) = scene.server.opened
    assert scene.ask(Pr(1), comment=901).done
    assert scene.server.opened == [pull]
    assert f"{pull['html_url']} is open already" in scene.answers()[1]
    pull["state"] = "closed"
    assert not scene.ask(Pr(1), comment=902).done
    assert scene.server.opened == [pull]
    assert "is closed; reopen it" in scene.answers()[2]


def test_a_job_that_died_behind_the_branch_goes_on_with_it(scene: Scene) -> None:
    assert scene.ask(Pr(1)).done
    branch = scene.server.opened.pop()["head"]["ref"]
    tip = scene.tip(branch)
    # The same files in a commit of another second.
    scene.repo.git(
        "update-ref",
        f"refs/heads/{branch}",
        scene.repo.git("commit-tree", "-p", scene.head, "-m", "x", f"{tip}^{{tree}}"),
    )
    assert scene.ask(Pr(1), comment=901).done
    assert [p["head"]["ref"] for p in scene.server.opened] == [branch]


def test_a_branch_of_that_name_with_other_content_is_not_taken(scene: Scene) -> None:
    assert scene.ask(Pr(1)).done
    branch = scene.server.opened.pop()["head"]["ref"]
    scene.repo.git("checkout", "-q", branch)
    scene.repo.commit({"run.sh": "evil\n"})
    assert not scene.ask(Pr(1), comment=901).done
    assert scene.server.opened == []
    assert "exists with other content" in scene.answers()[1]


@pytest.mark.parametrize("fault", ["moved", "closed", "gone", "hostile"])
def test_what_apply_refuses_opens_no_pull_request(scene: Scene, fault: str) -> None:
    if fault == "moved":
        scene.repo.git("checkout", "-q", "topic")
        scene.server.head = scene.repo.commit({"src/b.cu": "other\n"})
    elif fault == "closed":
        scene.server.state = "closed"
    elif fault == "gone":
        scene.server.artifacts.clear()
    else:
        scene.store(swapped(scene, patch("src/a.cu", TEXT, TEXT.replace("line 3;", "evil 3;"))))
    assert not scene.ask(Pr(1)).done
    assert scene.server.opened == []
    assert scene.repo.git("branch", "--list", "optiml/*") == ""
    assert len(scene.answers()) == 1


def test_a_patch_that_the_screen_refuses_opens_no_pull_request(scene: Scene) -> None:
    evil = swapped(scene, patch("run.sh", "x\n", "y\n"), files=("run.sh",))
    scene.server.reviews.clear()
    publish(evil, GitHub(HERE, scene.client()), Target(7, scene.head, "", RUN), Settings(run=RUN))
    scene.store(evil)
    assert not scene.ask(Pr(1)).done
    assert scene.server.opened == []
    assert "files that are not" in scene.answers()[0]


def test_the_pull_request_of_a_fork_s_head_is_the_fork_s_or_one_answer(scene: Scene) -> None:
    scene.server.head_repository = FORK
    scene.server.closed = {FORK}
    assert not scene.ask(Pr(None)).done
    (text,) = scene.answers()
    assert "may not write to the fork `stranger/Hello-World`" in text
    assert not any(path.startswith(f"/repos/{HERE}/git") for _, path, _ in scene.server.received)
    scene.server.closed = set()
    assert scene.ask(Pr(1), comment=901).done
    (pull,) = scene.server.opened
    assert (pull["_where"], pull["base"]["ref"]) == (FORK, "topic")
    assert "review of octocat/Hello-World#7" in pull["body"]


def test_a_token_that_may_push_but_open_nothing_says_what_to_allow(scene: Scene) -> None:
    scene.server.faults = [Fault("POST", "/pulls$", "403")]
    assert not scene.ask(Pr(1)).done
    assert "Allow GitHub Actions to create pull requests" in scene.answers()[0]
    scene.server.faults = []
    assert scene.ask(Pr(1), comment=901).done
    assert len(scene.server.opened) == 1


# ---- explain, status, cancel, help


def test_explain_shows_the_evidence_and_the_patch(scene: Scene) -> None:
    assert scene.ask(Explain(2)).done
    (text,) = scene.answers()
    assert "### 2. `two`" in text
    assert "### 1." not in text
    for part in (
        "Profiler, before",
        "12 candidates in",
        "fast 40;",
        "Spec: from the base",
        "racecheck",
        "optiml optimize",
    ):
        assert part in text, part
    assert scene.ask(Explain(None), comment=901).done
    assert scene.answers()[1].count("\n### ") == 3


def test_status_points_to_the_one_status_comment(scene: Scene) -> None:
    assert scene.ask(Status()).done
    (text,) = scene.answers()
    assert "ended (neutral)" in text
    assert "3 kernels could be faster" in text
    (status,) = [c for c in scene.server.comments.values() if c["body"].startswith(STATUS_MARKER)]
    assert f"[status comment]({status['html_url']})" in text
    assert not scene.answers()[0].startswith(STATUS_MARKER)


def running(scene: Scene, path: str = ".github/workflows/optiml.yml") -> None:
    scene.server.runs[RUN] = {"path": path, "status": "in_progress"}
    start(GitHub(HERE, scene.client()), Target(7, scene.head, "", RUN), Settings())


def test_cancel_ends_the_run_that_the_status_names(scene: Scene) -> None:
    running(scene)
    assert scene.ask(Cancel()).done
    assert scene.server.runs[RUN]["cancelled"]
    assert scene.answers() == []  # the run that ends says so itself


def test_cancel_finds_a_run_that_could_not_announce_itself(scene: Scene) -> None:
    scene.server.runs[60] = {"path": ".github/workflows/optiml.yml", "status": "queued", "head": scene.head}
    scene.server.runs[61] = {"path": ".github/workflows/tests.yml", "status": "in_progress", "head": scene.head}
    assert scene.ask(Cancel()).done
    assert {id for id, run in scene.server.runs.items() if run.get("cancelled")} == {60}


@pytest.mark.parametrize("how", ["ended", "another workflow", "no status", "a stranger's", "itself"])
def test_cancel_ends_nothing_else(scene: Scene, how: str) -> None:
    running(scene, "other.yml" if how == "another workflow" else ".github/workflows/optiml.yml")
    if how == "ended":
        scene.server.runs[RUN]["status"] = "completed"
    for comment in list(scene.server.comments.values()):
        if how == "no status":
            del scene.server.comments[comment["id"]]
        elif how == "a stranger's":
            comment["user"]["login"] = "mallory"
        elif how == "itself":
            comment["body"] = comment["body"].replace(f"id={RUN}", "id=55")
    assert not scene.ask(Cancel()).done
    assert not any(run.get("cancelled") for run in scene.server.runs.values())
    assert "No run is active" in scene.answers()[0]


def test_help_and_what_was_written_wrong(scene: Scene) -> None:
    assert scene.ask(Help()).done
    assert scene.answers()[0].endswith(HELP.strip())
    assert not scene.ask(Help("there is no such command"), comment=901).done
    assert scene.answers()[1].split("\n")[1] == "There is no such command."


def test_a_refusal_is_told_once(scene: Scene) -> None:
    for _ in range(2):
        scene.ask(Apply(1), refusal="there was a push after the comment")
    (text,) = scene.answers()
    assert "there was a push after the comment" in text
    assert scene.tip() == scene.head


def test_a_line_of_a_run_is_read_back_and_nothing_else_is() -> None:
    mark = RunMark(41, "a" * 40, ("b" * 64, "", "c" * 64))
    assert read_run_line(f"x\n{run_line(mark)}\ny") == mark
    assert read_run_line(f"{run_line(mark)}\n") is None
    assert read_run_line(f"x\ny\n{run_line(mark)}") is None
    assert read_run_line("x\n" + run_line(mark).replace("41", "0")) is None
    assert read_run_line("x\n" + run_line(mark).replace("b" * 64, "b" * 63)) is None
    assert run_line(RunMark(0, "a" * 40)) == ""
    assert json.loads(json.dumps(mark.patches)) == ["b" * 64, "", "c" * 64]
