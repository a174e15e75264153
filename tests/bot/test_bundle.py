"""The bundle: what one job writes is what the other reads, and nothing else is taken."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bot.bundle import FILE, read_bundle, write_bundle
from bot.changed import Skipped
from bot.errors import BundleError
from tests.bot.make import HEAD, bundle, looked

WHOLE = bundle(
    looked(2.0, against=0.8, patch="--- a/x\n"), looked(None, kernel="other"), skipped=(Skipped("v", "a submodule"),)
)


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    write_bundle(WHOLE, tmp_path)
    assert read_bundle(tmp_path, head=HEAD) == WHOLE


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(head="c" * 40),
        lambda d: d.update(schema="optiml.bundle/9"),
        lambda d: d.update(pull=17),
        lambda d: d.pop("base"),
        lambda d: d.update(base="main"),
        lambda d: d.update(kernels=d["kernels"] * 251),
        lambda d: d["kernels"][0]["changed"].update(path="../../etc/passwd"),
        lambda d: d["kernels"][0]["changed"].update(path="/etc/passwd"),
        lambda d: d["kernels"][0]["changed"].update(line="4"),
        lambda d: d["kernels"][0]["changed"].update(line=True),
        lambda d: d["kernels"][0].update(spec_from="moon"),
        lambda d: d["kernels"][0]["comparison"].update(standing="splendid"),
        lambda d: d["kernels"][0]["comparison"]["measurement"].update(low=9.0),
        lambda d: d["kernels"][0]["comparison"]["measurement"].update(ratio=-1.0),
        lambda d: d["kernels"][0]["result"].update(schema="x"),
        lambda d: d["kernels"][0]["result"].update(mode="predicted"),
        lambda d: d["kernels"][0]["result"]["best"]["evaluation"].update(outcome="perfect"),
        lambda d: d["kernels"][0].update(patch="x" * (3 << 20)),
        lambda d: d["kernels"][1].update(patch="a patch without a suggestion"),
        lambda d: d["kernels"][0]["result"].update(verdict="\ud800"),
        lambda d: d["kernels"][0]["result"].update(seed=10**18 * 100),
    ],
)
def test_a_bundle_that_was_tampered_with_is_refused(tmp_path: Path, change: Change) -> None:
    data = copy.deepcopy(json.loads(WHOLE.to_json()))
    change(data)
    (tmp_path / FILE).write_text(json.dumps(data))
    with pytest.raises(BundleError):
        read_bundle(tmp_path, head=HEAD)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"head": NaN}', b'{"a": 1, "a": 2}',
        b'{"head": ' + b"9" * 5000 + b"}", b"\0" * 100,
    ],
)  # fmt: skip
def test_what_is_no_bundle_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)
    with pytest.raises(BundleError):
        read_bundle(tmp_path, head=HEAD)


def test_links_pipes_folders_and_giants_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(WHOLE.to_json())
    for make in (
        lambda p: p.symlink_to(secret),
        lambda p: os.mkfifo(p),
        lambda p: p.mkdir(),
        lambda p: p.touch() or os.truncate(p, (32 << 20) + 1),
    ):
        folder = tmp_path / "b"
        folder.mkdir()
        path = folder / FILE
        make(path)
        with pytest.raises(BundleError):
            read_bundle(folder, head=HEAD)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        folder.rmdir()


def test_deep_nesting_inside_a_free_field_is_refused(tmp_path: Path) -> None:
    data = json.loads(WHOLE.to_json())
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    data["kernels"][0]["result"]["signals"] = {"x": deep}
    (tmp_path / FILE).write_text(json.dumps(data))
    with pytest.raises(BundleError, match="deep"):
        read_bundle(tmp_path, head=HEAD)


@pytest.mark.parametrize(("change", "allowed"), [({}, True), ({"predicted": True}, False), ({"low": 3.0}, False)])
def test_other_instances_are_read_back_as_measured_as_the_suggestion(
    tmp_path: Path, change: dict[str, Any], allowed: bool
) -> None:
    data = json.loads(WHOLE.to_json())
    best = next(kernel["result"]["best"] for kernel in data["kernels"] if (kernel["result"] or {}).get("best"))[
        "evaluation"
    ]
    best["instances"] = [{"name": "scale<__half>", "measurement": {**best["measurement"], **change}}]
    (tmp_path / FILE).write_text(json.dumps(data))
    if not allowed:
        with pytest.raises(BundleError):
            read_bundle(tmp_path, head=HEAD)
        return
    read = [k.result.best for k in read_bundle(tmp_path, head=HEAD).kernels if k.result is not None and k.result.best]
    assert [instance.name for instance in read[0].evaluation.instances] == ["scale<__half>"]
