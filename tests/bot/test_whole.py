"""The whole way: a git history, its changed kernels, a bundle on disk, one review on a GitHub over HTTP."""

from __future__ import annotations

from pathlib import Path

from bot.bundle import Bundle, Comparison, Looked, read_bundle, write_bundle
from bot.changed import ChangedKernel
from bot.changes import find_changes
from bot.clone import Repository
from bot.github import GitHub
from bot.http_client import Client
from bot.publish import Target, publish
from bot.review import Settings
from engine.cuda.patch import make_patch
from engine.model import Program
from tests.bot.make import measurement, result
from tests.bot.repo import Repo
from tests.bot.server.schema import validator
from tests.bot.server.server import Server

KERNEL = """__global__ void {name}(float* x, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{
        x[i] = {value};
    }}
}}
"""


def test_a_pull_request_that_slows_one_kernel_and_could_speed_up_another(tmp_path: Path) -> None:
    validator()
    repo = Repo(tmp_path / "repo")
    slow, could = KERNEL.format(name="slow", value="x[i]"), KERNEL.format(name="could", value="x[i] / 2.0f")
    repo.commit({"src/slow.cu": slow, "README.md": "x\n"})
    base = repo.commit({"src/could.cu": could})
    repo.git("checkout", "-q", "-b", "topic")
    head_could = could.replace("x[i] / 2.0f", "x[i] / 4.0f")
    head = repo.commit({"src/slow.cu": slow.replace("x[i];", "sqrtf(x[i] * x[i]);"), "src/could.cu": head_could})
    found = find_changes(Repository(repo.folder), base, head)
    assert {k.kernel: k.reasons for k in found.kernels} == {"slow": ("body",), "could": ("body",)}

    best = head_could.replace("x[i] / 4.0f", "x[i] * 0.25f")
    patch = make_patch(
        Program({"src/could.cu": head_could.encode()}, "src/could.cu"),
        Program({"src/could.cu": best.encode()}, "src/could.cu"),
    ).decode()

    def look(kernel: ChangedKernel) -> Looked:
        if kernel.kernel == "slow":
            return Looked(
                kernel, "base", Comparison("slower", measurement(0.7)), result(None, kernel="slow", file=kernel.path)
            )
        same = Comparison("no difference", measurement(1.0))
        return Looked(kernel, "base", same, result(1.8, kernel="could", file=kernel.path), patch)

    write_bundle(Bundle(head, found.base, tuple(look(k) for k in found.kernels), found.skipped), tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle", head=head)
    patches = {
        path: repo.git("diff", base, head, "--", path).partition("\n@@")[2] for path in ("src/slow.cu", "src/could.cu")
    }
    with Server(head=head, base=base, files={path: f"@@{text}" for path, text in patches.items()}) as server:
        forge = GitHub("octocat/Hello-World", Client("token", api_url=server.url))
        done = publish(bundle, forge, Target(7, head), Settings(fail_on_regression=True))
        assert (done.ending, done.inline) == ("posted", 1)
        (review,) = server.submitted()
        (comment,) = review["_comments"]
        assert server.violations == []
        assert len(server.requests) <= 12
        assert [c["conclusion"] for c in server.checks.values()] == ["failure"]
    assert review["body"].index("slower than the base") < review["body"].index("1. `could`")
    lines = head_could.split("\n")
    text = comment["body"].partition("```suggestion\n")[2].partition("```")[0].split("\n")[:-1]
    lines[comment.get("start_line", comment["line"]) - 1 : comment["line"]] = text
    assert "\n".join(lines) == best
