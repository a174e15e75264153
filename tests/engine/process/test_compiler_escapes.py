"""The compiler as an accomplice: sources that would have it read what the sandbox hides."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.process.sandbox import Sandbox, SandboxAccess

from .inside import SECRET, Done, needs_sandbox, run

CXX = shutil.which("g++") or shutil.which("clang++")
pytestmark = [needs_sandbox, pytest.mark.skipif(CXX is None, reason="no C++ compiler here")]


@pytest.fixture
def source(scratch: Path) -> Path:
    return scratch / "kernel.cpp"


def compile_inside(box: Sandbox, source: Path, *options: str) -> Done:
    assert CXX is not None
    argv = [CXX, "-std=c++17", "-c", *options, str(source), "-o", str(source.with_suffix(".o"))]
    return run(box.command(argv, SandboxAccess(writable=[source.parent])))


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "/etc/shadow", "/proc/self/environ", "/proc/1/environ", "../secret.txt", "{secret}"]
)
def test_include_of_a_secret(
    box: Sandbox, source: Path, secret: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", SECRET)
    source.write_text(f'#include "{target.format(secret=secret)}"\n')
    done = compile_inside(box, source)
    said = done.stdout + done.stderr
    assert SECRET not in said
    assert "root:" not in said
    assert done.returncode != 0 or "/proc" in target


def test_incbin_of_a_secret(box: Sandbox, source: Path, secret: Path) -> None:
    source.write_text(f'asm(".incbin \\"{secret}\\"");\n')
    done = compile_inside(box, source)
    assert done.returncode != 0
    assert SECRET not in done.stdout + done.stderr


def test_embed_and_has_include(box: Sandbox, source: Path, secret: Path) -> None:
    source.write_text(
        f'#if __has_include("{secret}")\n#error it is there\n#endif\nconst char s[] = {{\n#embed "{secret}"\n}};\n'
    )
    done = compile_inside(box, source)
    assert "it is there" not in done.stderr
    assert not source.with_suffix(".o").exists() or SECRET.encode() not in source.with_suffix(".o").read_bytes()


def test_compiler_options_from_text(box: Sandbox, source: Path, scratch: Path, secret: Path) -> None:
    # Were an option ever to get through (a plugin, a response file), it still finds nothing.
    source.write_text("int x;\n")
    done = compile_inside(box, source, f"@{secret}", f"-fplugin={secret}", f"-include{secret}")
    assert done.returncode != 0
    assert SECRET not in done.stdout + done.stderr
