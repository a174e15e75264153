"""From GitHub's event to the posted review, the search aside: how long it takes for fifty files."""

from __future__ import annotations

import time
from pathlib import Path

from action.api import RestReader
from action.gate import decide
from bot.bundle import Bundle, Comparison, Looked, read_bundle, write_bundle
from bot.changes import find_changes
from bot.clone import Repository
from bot.github import GitHub
from bot.http_client import Client
from bot.publish import Target, publish, start
from bot.review import Settings
from engine.cuda.patch import make_patch
from engine.model import Program
from tests.bot.make import measurement, result
from tests.bot.repo import Repo
from tests.bot.server.schema import validator
from tests.bot.server.server import Server
from tests.bot.test_whole import KERNEL
from tests.spent import spent


def test_fifty_files_go_from_the_event_to_the_review_within_three_seconds(tmp_path: Path) -> None:
    """Everything but the search: the gate's questions, the changed kernels, the bundle on disk, the review."""
    validator()
    repo = Repo(tmp_path / "repo")
    names = [f"src/k{i}.cu" for i in range(50)]
    before = {name: KERNEL.format(name=f"k{i}", value="x[i] / 2.0f") for i, name in enumerate(names)}
    base = repo.commit({**before, ".optiml.yml": "targets: [sm_90]\n"})
    after = {name: text.replace("/ 2.0f", "/ 4.0f") for name, text in before.items()}
    head = repo.commit(dict(after))
    best = {name: text.replace("x[i] / 4.0f", "x[i] * 0.25f") for name, text in after.items()}
    patches = {
        n: make_patch(Program({n: after[n].encode()}, n), Program({n: best[n].encode()}, n)).decode() for n in names
    }
    diffs = {n: "@@" + repo.git("diff", base, head, "--", n).partition("\n@@")[2] for n in names}
    # What the description's own checks cost is the tests' and not the bot's: other tests have them.
    with Server(head=head, base=base, files=diffs, strict=False) as server, spent() as cost:
        server.repositories = {"octocat/Hello-World": repo.folder}
        begin = time.monotonic()
        reader = RestReader(server.url, "octocat/Hello-World", "token")
        side = {"repo": {"full_name": "octocat/Hello-World", "pushed_at": ""}}
        pull = {"number": 7, "state": "open", "head": side | {"sha": head}, "base": side | {"sha": base}}
        decision = decide("pull_request", {"action": "opened", "pull_request": pull}, reader)
        assert decision.request is not None
        client = Client("token", api_url=server.url)
        forge = GitHub("octocat/Hello-World", client)
        status, _ = start(forge, Target(7, head), Settings(), first=True)
        found = find_changes(Repository(repo.folder), base, head)
        kernels = tuple(
            Looked(
                k,
                "base",
                Comparison("no difference", measurement(1.0)),
                result(1.8, kernel=k.kernel, file=k.path),
                patches[k.path],
            )
            for k in found.kernels
        )
        write_bundle(Bundle(head, found.base, kernels, found.skipped), tmp_path / "bundle")
        done = publish(read_bundle(tmp_path / "bundle", head=head), forge, Target(7, head, status=status), Settings())
        taken = time.monotonic() - begin
        assert (done.ending, done.inline, len(kernels)) == ("posted", 10, 50)
        assert len(server.submitted()) == 1
        assert len(server.requests) <= 12, server.requests
    assert cost.seconds < 3.0
    assert taken < 30.0  # nor does it wait for anything
