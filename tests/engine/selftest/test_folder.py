"""Cases that a user brings: the documented form, and one sentence for what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import cli
from engine.errors import UsageError
from engine.selftest.cases import HONEST, REFUSED, original_text
from engine.selftest.folder import read_folder

TEXT = original_text("scale").decode()


def _case(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_each_form_of_an_edit(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(TEXT)
    (tmp_path / "fast.cu").write_text(TEXT.replace("2.5f", "2.6f"))
    (tmp_path / "h.cuh").write_text("#pragma once\n")
    _case(tmp_path, "a.toml", 'expect = "refused"\noriginal = "mine.cu"\nedited = "fast.cu"\nfiles = ["h.cuh"]\n')
    _case(
        tmp_path,
        "sub/b.toml",
        'expect = "accepted"\nonly = "cpu"\noriginal = "scale"\nedit = [{ find = "256", replace = "128" }]\n',
    )
    _case(
        tmp_path,
        "sub/c.toml",
        'expect = "refused"\noriginal = "scale"\nkernel = "__global__ void scale() {}"\nidea = "Does nothing."\n',
    )
    a, b, c = read_folder(tmp_path)
    assert (a.name, b.name, c.name) == ("a", "sub/b", "sub/c")
    assert b"2.6f" in a.text()
    assert dict(a.before) == {"mine.cu": TEXT.encode(), "h.cuh": b"#pragma once\n"}
    assert (a.gpu, a.cpu) == (REFUSED, REFUSED)
    assert b"threads = 128" in b.text()
    assert (b.gpu, b.cpu) == ((), HONEST)
    assert b"void scale() {}" in c.text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("expect = ", "is not valid TOML"),
        ('expect = "maybe"\noriginal = "scale"', "needs expect"),
        ('expect = "refused"', "needs 'original'"),
        ('expect = "refused"\noriginal = "scael"', "no original 'scael'"),
        ('expect = "refused"\noriginal = "none.cu"', "not a file inside the folder"),
        ('expect = "refused"\noriginal = "../k.cu"', "not a file inside the folder"),
        ('expect = "refused"\noriginal = "scale"', "has no edit"),
        ('expect = "refused"\noriginal = "scale"\nedit = [{ find = 1, replace = "" }]', "an edit with invalid keys"),
        ('expect = "refused"\noriginal = "scale"\nkernel = "k"\nfiles = ["../../x"]', "leads out"),
        ('expect = "refused"\noriginal = "scale"\nkernel = "k"\nonly = "tpu"', "is not a path"),
        ('expect = "refused"\nexpects = 1', "unknown key 'expects'"),
    ],
)
def test_what_is_no_case_is_named_with_its_file(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "k.cu").write_text(TEXT)
    with pytest.raises(UsageError, match=says) as refused:
        read_folder(_case(tmp_path / "cases", "x.toml", text))
    assert refused.value.where == "x.toml"


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.cu").write_text(TEXT)
    folder = _case(tmp_path / "cases", "x.toml", 'expect = "refused"\noriginal = "k.cu"\nkernel = "k"')
    (folder / "k.cu").symlink_to(tmp_path / "secret.cu")
    with pytest.raises(UsageError, match="not a file inside"):
        read_folder(folder)


@pytest.mark.parametrize("folder", ["none", "empty"])
def test_a_folder_without_cases(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="TOML"):
        read_folder(tmp_path / folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cases_run_through_the_real_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu: object) -> None:
    racy = "#include <cuda_runtime.h>\n" + TEXT.split("\n", 1)[1].replace(
        "2.5f * x[i] + 1.0f", "y[i ? i - 1 : 0] + x[i]"
    )
    (tmp_path / "bad.cu").write_text(racy)
    _case(
        tmp_path,
        "attack.toml",
        'expect = "refused"\noriginal = "scale"\nedit = [{ find = "i < n", replace = "i < n - 1" }]\n',
    )
    _case(
        tmp_path,
        "edit.toml",
        'expect = "accepted"\noriginal = "scale"\nedit = [{ find = "threads = 256", replace = "threads = 128" }]\n',
    )
    _case(
        tmp_path,
        "wrong.toml",
        'expect = "accepted"\noriginal = "scale"\nedit = [{ find = "2.5f", replace = "2.6f" }]\n',
    )
    _case(
        tmp_path,
        "original.toml",
        'expect = "refused"\noriginal = "bad.cu"\nedit = [{ find = "256", replace = "128" }]\n',
    )
    assert cli.main(["selftest", "--device", "cpu", "--cases", str(tmp_path), "--format", "json"]) == 1
    found = {case["name"]: case for case in json.loads(capsys.readouterr().out)["cases"]}
    assert {name: case["as_expected"] for name, case in found.items()} == {
        "attack": True, "edit": True, "wrong": False, "original": False,
    }  # fmt: skip
    assert found["attack"]["outcome"] == "wrong_result"
    assert "the original is refused" in found["original"]["reason"]
    assert cli.main(["selftest", "--device", "cpu", "--cases", str(tmp_path), "attack", "edit"]) == 0
    assert "attacks/attack: wrong_result, as expected: 'y' differs" in capsys.readouterr().out
