from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine.process.bounded_output import BoundedOutput

_FLOOD = "import os\nfor _ in range(1000):\n  try: os.write({fd}, b'x' * 4096)\n  except OSError as error: print(error.errno); break"


def test_what_is_written_is_read() -> None:
    with BoundedOutput(100) as output:
        subprocess.run(
            ["/bin/sh", "-c", "echo one; echo two >&2"], stdout=output.fileno(), stderr=output.fileno(), check=True
        )
        assert (output.written(), output.head(50), output.tail(4), output.at(4, 3)) == (
            8,
            b"one\ntwo\n",
            b"two\n",
            b"two",
        )


def test_a_flood_ends_at_the_limit() -> None:
    with BoundedOutput(10_000) as output:
        code = _FLOOD.format(fd=output.fileno())
        done = subprocess.run([sys.executable, "-c", code], pass_fds=[output.fileno()], capture_output=True, text=True)
        assert done.stdout.split() == ["1"]  # EPERM
        assert output.written() == 8192  # a write that does not fit is refused whole
        assert os.fstat(output.fileno()).st_size == 10_000


def test_its_size_cannot_be_changed_by_who_got_it() -> None:
    with BoundedOutput(10) as output:
        for size in (0, 1 << 40):
            with pytest.raises(PermissionError):
                os.ftruncate(output.fileno(), size)
        os.lseek(output.fileno(), 1 << 40, os.SEEK_SET)
        assert len(output.head(1 << 50)) == 10
