from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.settings.scratch import Scratch, scratch_folder, sweep

_HOLDS = (
    "import sys, time\nsys.path[:] = {path!r}\nfrom engine.settings.scratch import Scratch\n"
    "scratch = Scratch()\nprint(scratch.path, flush=True)\ntime.sleep(600)"
)


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_folders_of_a_killed_run_go_at_the_next_start() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS.format(path=sys.path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("x")
        assert sweep() == []  # it is in use
        assert folder.is_dir()
        process.kill()
    with scratch_folder() as mine:
        assert not folder.exists()
        assert mine.is_dir()
    assert not mine.exists()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "optiml-notes").mkdir()
    (tmp_path / "optiml-link").symlink_to(tmp_path)
    scratch = Scratch()
    assert sweep() == []
    assert (tmp_path / "optiml-notes").is_dir()
    scratch.cleanup()
    scratch.cleanup()
