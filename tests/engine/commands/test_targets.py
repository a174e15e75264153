"""Which kernels a command line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.commands.one_kernel import all_kernels
from engine.commands.targets import parse_targets

KERNEL = "__global__ void {0}(float* x) {{ x[threadIdx.x] = 1; }}\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "kernels.h").write_text(KERNEL.format("first") + KERNEL.format("second"))
    (tmp_path / "lib" / "plain.h").write_text("int f();\n")
    (tmp_path / "main.cu").write_text(
        '#include "lib/kernels.h"\n#include "lib/plain.h"\nint main() { first<<<1, 32>>>(nullptr); }\n'
    )
    (tmp_path / "own.cu").write_text('#include "lib/kernels.h"\n' + KERNEL.format("own"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("main.cu:second", [("lib/kernels.h", "second")]),
        ("main.cu:first<int>", [("lib/kernels.h", "first<int>")]),
        ("main.cu", [("lib/kernels.h", "first"), ("lib/kernels.h", "second")]),
        ("own.cu", [("own.cu", None)]),
        ("own.cu:own", [("own.cu", "own")]),
        ("own.cu:first", [("lib/kernels.h", "first")]),
        ("own.cu:third", [("own.cu", "third")]),  # the search says that it is not there
        ("lib", [("lib/kernels.h", "first"), ("lib/kernels.h", "second")]),
    ],
)
def test_a_kernel_is_found_in_the_header_that_defines_it(
    root: Path, name: str, found: list[tuple[str, str | None]]
) -> None:
    """`main.cu` "has no kernel" where `capture` names one that it launches."""
    targets = all_kernels(parse_targets([name], None))
    assert [(t.file.relative_to(root.resolve()).as_posix(), t.kernel) for t in targets] == found
