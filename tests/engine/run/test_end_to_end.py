"""The user's own command before and after: real programs in the real sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.model import Guardrail
from engine.process.sandbox import NoSandbox, available, sandbox
from engine.run.end_to_end import NAME, TreeTooLarge, copy_tree, end_to_end
from engine.settings.config import Guardrails

needs_sandbox = pytest.mark.skipif(not available()[0], reason="no sandbox here")

# A program whose time and exit code are in a file that the patch replaces: milliseconds and a code.
BENCH = "#!/bin/sh\nread ms code < figures\n[ -e built ] || [ ! -e needs ] || exit 9\nsleep $ms\necho took $ms\nexit $code\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (folder / "figures").write_text("0.02 0\n")
    (folder / "bench.sh").write_text(BENCH)
    (folder / "bench.sh").chmod(0o755)
    return folder


def judge(root: Path, patched: str, box=None, **settings):
    limits = Guardrails(command=("./bench.sh",), **{"time": 20.0, **settings})
    verdict = end_to_end(
        root, {"figures": patched.encode()}, limits, box or NoSandbox(), root.parent / "scratch", gpu=False
    )
    assert verdict.name == NAME
    assert not list((root.parent / "scratch").glob("*"))  # the copies are gone
    assert (root / "figures").read_text().startswith("0.0")  # and the repository is as it was
    return verdict


def undecided(why: str) -> Guardrail:
    return Guardrail(NAME, "failed", f"was not checked: {why}")


@needs_sandbox
def test_a_command_that_does_not_notice_passes_in_the_sandbox(root):
    verdict = judge(root, "0.02 0\n", sandbox(), end_to_end=3.0)
    assert verdict.verdict == "passed", verdict
    assert "both end with exit code 0" in verdict.detail


@needs_sandbox
def test_the_command_has_neither_network_nor_home_and_cannot_write_elsewhere(root, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    (root / "bench.sh").write_text(
        '#!/bin/sh\n[ -z "$OPENAI_API_KEY" ] || exit 3\n[ ! -e /etc/passwd ] || exit 4\n'
        f"touch {root}/figures2 2>/dev/null && exit 5\ntouch here || exit 6\n[ ! -e /sys/class/net ] || exit 7\nexit 0\n"
    )
    verdict = judge(root, "0.02 0\n", sandbox(), end_to_end=3.0)
    assert "exit code 0" in verdict.detail, verdict
    assert not (root / "figures2").exists()


def test_a_slower_command_fails_with_its_interval(root):
    verdict = judge(root, "0.05 0\n")
    assert verdict.verdict == "failed"
    assert "× as fast as before (95 % interval" in verdict.detail


def test_the_threshold_is_the_settings(root):
    assert judge(root, "0.04 0\n", end_to_end=9.0).verdict == "passed"


def test_another_exit_code_fails_and_says_what_the_command_said(root):
    verdict = judge(root, "0.01 3\n")
    assert verdict.verdict == "failed"
    assert verdict.detail == "ends with exit code 3 where it ended with exit code 0 (took 0.01)"


def test_a_command_that_fails_alike_before_and_after_passes(root):
    (root / "figures").write_text("0.01 2\n")
    assert judge(root, "0.01 2\n", end_to_end=3.0).verdict == "passed"


def test_a_command_that_never_ends(root):
    assert judge(root, "30 0\n", time=0.8).verdict == "failed"
    (root / "figures").write_text("0.0 0\n")
    (root / "bench.sh").write_text("#!/bin/sh\nsleep 30\n")
    verdict = judge(root, "0.0 0\n", time=0.8)
    assert verdict == undecided("without the patch it does not finish in 0.4 s")


def test_preparation_runs_once_in_each_tree(root):
    (root / "needs").touch()
    assert judge(root, "0.01 0\n", prepare=("touch", "built"), end_to_end=3.0).verdict == "passed"
    verdict = judge(root, "0.01 0\n", prepare=("false",))
    assert verdict == undecided("the preparation fails without the patch: it ends with exit code 1")
    breaks = ("sh", "-c", "grep -q 0.02 figures")
    assert "the preparation fails with the patch" in judge(root, "0.01 0\n", prepare=breaks).detail


def test_a_command_that_is_not_there(root):
    limits = Guardrails(command=("./none",), time=5.0)
    verdict = end_to_end(root, {}, limits, NoSandbox(), root.parent / "scratch", gpu=False)
    assert verdict.verdict == "failed"
    assert "was not checked: the command cannot be run" in verdict.detail


def test_without_a_command_nothing_is_run(root):
    verdict = end_to_end(root, {}, Guardrails(), NoSandbox(), root.parent / "scratch", gpu=False)
    assert (verdict.verdict, verdict.detail) == ("not checked", "not set in the settings")


def test_no_link_leads_out_of_the_copy(root):
    (root / "kernels").mkdir()
    (root / "kernels" / "k.cu").write_text("old")
    (root / "link").symlink_to(root / "kernels")
    limits = Guardrails(command=("./bench.sh",), time=5.0)
    verdict = end_to_end(root, {"link/k.cu": b"new"}, limits, NoSandbox(), root.parent / "scratch", gpu=False)
    assert verdict.verdict == "failed"
    assert "behind a link" in verdict.detail
    assert (root / "kernels" / "k.cu").read_text() == "old"


def test_copies_leave_out_history_and_what_is_no_file(root, tmp_path, monkeypatch):
    os.mkfifo(root / "pipe")
    (root / ".git" / "objects").write_text("history")
    (root / "inside").symlink_to("figures")
    copy_tree(root, tmp_path / "copy")
    assert sorted(p.name for p in (tmp_path / "copy").iterdir()) == ["bench.sh", "figures", "inside"]
    assert os.readlink(tmp_path / "copy" / "inside") == "figures"
    assert os.access(tmp_path / "copy" / "bench.sh", os.X_OK)
    monkeypatch.setattr("engine.run.end_to_end._MOST_FILES", 1)
    with pytest.raises(TreeTooLarge, match="more than 1 files"):
        copy_tree(root, tmp_path / "again")
