from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from engine.compile.cache import DiskCache
from engine.errors import MachineError, UsageError
from engine.settings.folders import DOMAINS, cache_folder, private_folder, read_regular, trust


def test_each_domain_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPTIML_CACHE", str(tmp_path))
    monkeypatch.delenv("OPTIML_TRUST", raising=False)
    assert cache_folder() == tmp_path
    found = []
    for domain in DOMAINS:
        with trust(domain):
            DiskCache(cache_folder() / "compile").put("key", {"by": domain}, b"code")
            found.append(cache_folder())
    assert len({*found}) == 3
    for domain, folder in zip(DOMAINS, found, strict=True):
        kept = DiskCache(folder / "compile").get("key")
        assert kept is not None
        assert kept[0] == {"by": domain}
    assert cache_folder() == tmp_path


def test_a_domain_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIML_TRUST", "everybody")
    with pytest.raises(UsageError, match="OPTIML_TRUST"):
        cache_folder()


def test_a_cache_is_for_its_owner_alone(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o777)
    for folder in (wide, tmp_path / "new"):
        assert stat.S_IMODE(private_folder(folder).stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user, as root alone can")
def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    os.chown(tmp_path, 4321, 4321)
    with pytest.raises(MachineError, match="another user"):
        private_folder(tmp_path)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("plant", [_pipe, _link, _device, Path.mkdir])
def test_what_is_no_file_in_a_cache_is_passed_over(tmp_path: Path, plant: object) -> None:
    """A FIFO in the place of an entry had the reader wait for ever."""
    cache = DiskCache(tmp_path)
    cache.put("key", {"a": 1}, b"code")
    (entry,) = tmp_path.glob("??/*")
    entry.unlink()
    plant(entry)  # type: ignore[operator]
    assert read_regular(entry, 100) is None
    assert cache.get("key") is None


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_regular(tmp_path / "x", 5) == b"12345"
    assert read_regular(tmp_path / "x", 4) is None
