"""Patches, applied by real git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.cuda.patch import make_patch
from engine.model import Program


def applied(folder: Path, before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, bytes]:
    """The files after `git apply` of our patch in a repository that holds `before`."""
    repository = folder / "repository"
    if not repository.exists():
        subprocess.run(["git", "init", "-q", str(repository)], check=True)
    for path, data in before.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_bytes(data)
    kernel = next(iter(before))
    patch = make_patch(Program(before, kernel), Program(after, kernel))
    if patch:
        command = ["git", "-C", str(repository), "apply", "--whitespace=nowarn", "-"]
        done = subprocess.run(command, input=patch, capture_output=True)
        assert done.returncode == 0, (done.stderr, patch)
    return {path: (repository / path).read_bytes() for path in after}


@pytest.mark.parametrize(
    "name",
    [
        "a.cu",
        "src/deep/a.cu",
        "with blank.cu",
        "b x/c b/a.cu",
        'quo"te.cu',
        "back\\slash.cu",
        "tab\there.cu",
        "größe/ядро.cu",
    ],
)
def test_names_that_git_must_find(tmp_path: Path, name: str) -> None:
    before = {name: b"one\ntwo\nthree\n"}
    after = {name: b"one\n2\nthree\n"}
    assert applied(tmp_path, before, after) == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\r\n"),
        (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfA\nb\n"),
        (b"a\nb", b"a\nc"),
        (b"a\nb", b"a\nb\n"),
        (b"a\nb\n", b"a\nb"),
        (b"a", b""),
        (b"", b"a\r\n"),
        (b"a\rb\n\x0c\nc\x1d\n", b"a\rb\n\x0cX\nc\x1d\n"),
        (b"x\n" * 50, b"x\n" * 20 + b"y\n" + b"x\n" * 30),
        (b"".join(b"%d\n" % i for i in range(100)), b"".join(b"%d\n" % (i if i % 9 else -i) for i in range(100))),
    ],
)
def test_bytes_are_kept(tmp_path: Path, old: bytes, new: bytes) -> None:
    assert applied(tmp_path, {"a.cu": old, "same.h": b"z"}, {"a.cu": new, "same.h": b"z"})["a.cu"] == new


def test_several_files_in_one_patch(tmp_path: Path) -> None:
    before = {"k.cu": b"1\n", "host/main.cpp": b"2\r\n", "optiml.toml": b"3"}
    after = {"k.cu": b"1!\n", "host/main.cpp": b"2!\r\n", "optiml.toml": b"3!"}
    assert applied(tmp_path, before, after) == after


def test_nothing_changed_is_no_patch() -> None:
    program = Program({"a.cu": b"x"}, "a.cu")
    assert make_patch(program, program) == b""


def test_one_changed_line_of_many_is_one_small_hunk() -> None:
    old = b"}\n" * 10_000
    new = b"}\n" * 5_000 + b"{\n" + b"}\n" * 4_999
    patch = make_patch(Program({"a.cu": old}, "a.cu"), Program({"a.cu": new}, "a.cu"))
    assert patch.count(b"\n") == 3 + 1 + 8
    assert b"@@ -4998,7 +4998,7 @@" in patch


lines = st.lists(st.sampled_from([b"", b"a", b"b", b"}", b"\xc3\xa9", b"-- x", b"+y", b"\\ z", b"a\r"]), max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=lines, new=lines, ends=st.tuples(st.booleans(), st.booleans()))
def test_any_change_comes_back_byte_for_byte(
    tmp_path: Path, old: list[bytes], new: list[bytes], ends: tuple[bool, bool]
) -> None:
    a, b = (b"\n".join(ls) + (b"\n" if end and ls else b"") for ls, end in zip((old, new), ends, strict=True))
    assert applied(tmp_path, {"dir/a.cu": a}, {"dir/a.cu": b}) == {"dir/a.cu": b}
