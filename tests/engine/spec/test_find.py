"""Finding the spec of a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import SpecError, UsageError
from engine.spec.find import find_spec

from .test_reader import CODE, COPY


def _tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_specs_are_found_upward_to_the_root(tmp_path: Path) -> None:
    toml = COPY.replace("k.cu", "a/b/k.cu")
    _tree(tmp_path, {"optiml.toml": "garbage [", "repo/a/b/k.cu": CODE, "repo/optiml.toml": toml})
    spec, path = find_spec(tmp_path / "repo", tmp_path / "repo/a/b/k.cu")
    assert (spec.file, path, spec.origin) == ("a/b/k.cu", "optiml.toml", "optiml.toml:1")
    _tree(tmp_path, {"repo/a/optiml.toml": COPY.replace("k.cu", "b/k.cu").replace("n = 7", "n = 9")})
    spec, path = find_spec(tmp_path / "repo", tmp_path / "repo/a/b/k.cu", "copy")
    assert (path, spec.check[0].sizes["n"]) == ("a/optiml.toml", 9)


def test_the_kernel_must_be_named_where_several_have_a_spec(tmp_path: Path) -> None:
    second = (
        COPY.replace('"copy"', '"reduce<float>"')
        .replace("y =", "sums =")
        .replace("m = 1", "")
        .replace("[kernel.args]", "[kernel.args]")
    )
    _tree(tmp_path, {"k.cu": CODE, "optiml.toml": COPY + second})
    with pytest.raises(UsageError, match="copy, reduce<float>"):
        find_spec(tmp_path, tmp_path / "k.cu")
    assert find_spec(tmp_path, tmp_path / "k.cu", "reduce")[0].kernel == "reduce"
    assert find_spec(tmp_path, tmp_path / "k.cu", "reduce< float >")[0].kernel == "reduce"
    with pytest.raises(UsageError, match="it has copy, opaque, reduce"):
        find_spec(tmp_path, tmp_path / "k.cu", "sort")
    with pytest.raises(UsageError, match="no spec for the kernel 'opaque'"):
        find_spec(tmp_path, tmp_path / "k.cu", "opaque")


def test_a_broken_spec_of_another_kernel_does_not_matter(tmp_path: Path) -> None:
    broken = COPY.replace('"copy"', '"reduce<float>"').replace("size", "sise")
    _tree(tmp_path, {"k.cu": CODE, "optiml.toml": COPY + broken})
    assert find_spec(tmp_path, tmp_path / "k.cu", "copy")[0].kernel == "copy"


def test_nothing_outside_the_repository_is_read(tmp_path: Path) -> None:
    _tree(tmp_path, {"secret": "password = 1", "repo/k.cu": CODE, "k.cu": CODE})
    (tmp_path / "repo/optiml.toml").symlink_to(tmp_path / "secret")
    with pytest.raises(SpecError) as caught:
        find_spec(tmp_path / "repo", tmp_path / "repo/k.cu")
    assert "password" not in str(caught.value)
    (tmp_path / "repo/optiml.toml").unlink()
    with pytest.raises(UsageError):
        find_spec(tmp_path / "repo", tmp_path / "k.cu")
    _tree(tmp_path, {"repo/optiml.toml": COPY.replace("k.cu", "../k.cu")})
    with pytest.raises(UsageError, match="no kernel spec"):
        find_spec(tmp_path / "repo", tmp_path / "repo/k.cu")


def test_files_that_are_not_there_or_hold_no_kernel(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        find_spec(tmp_path, tmp_path / "none.cu")
    with pytest.raises(UsageError):
        find_spec(tmp_path, tmp_path)
    (tmp_path / "host.cu").write_text("int main() { return 0; }\n")
    with pytest.raises(UsageError, match="no kernel"):
        find_spec(tmp_path, tmp_path / "host.cu")


def test_include_folders_must_be_there(tmp_path: Path) -> None:
    _tree(
        tmp_path,
        {"k.cu": CODE, "optiml.toml": COPY.replace("[kernel.args]", 'compile.include = ["inc"]\n[kernel.args]')},
    )
    with pytest.raises(SpecError, match="inc"):
        find_spec(tmp_path, tmp_path / "k.cu")
    (tmp_path / "inc").mkdir()
    assert find_spec(tmp_path, tmp_path / "k.cu")[0].compile.include == ("inc",)
    (tmp_path / "inc").rmdir()
    (tmp_path / "inc").symlink_to("/etc")
    with pytest.raises(SpecError, match="inc"):
        find_spec(tmp_path, tmp_path / "k.cu")
