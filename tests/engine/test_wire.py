import io
import struct
import sys

import pytest

from engine import wire
from engine.worker import Worker, WorkerLost

ECHO = """
import sys, time
sys.path.insert(0, {root!r})
from engine import wire
while True:
    try:
        header, blobs = wire.receive(sys.stdin.buffer)
    except wire.WireError:
        break
    if header.get("sleep"):
        time.sleep(header["sleep"])
    if header.get("die"):
        sys.stderr.write("out of luck")
        sys.stderr.flush()
        raise SystemExit(9)
    wire.send(sys.stdout.buffer, header, blobs)
"""


@pytest.fixture
def worker():
    import engine

    root = str(__import__("pathlib").Path(engine.__file__).parent.parent)
    w = Worker([sys.executable, "-c", ECHO.format(root=root)])
    yield w
    w.close()


def test_frames_come_back_as_sent(worker):
    header, blobs = worker.call({"a": [1, "ü"]}, [b"", b"x" * 3_000_000], timeout_s=20)
    assert header == {"a": [1, "ü"]}
    assert blobs == [b"", b"x" * 3_000_000]


def test_a_worker_that_hangs_is_killed_at_its_deadline(worker):
    with pytest.raises(WorkerLost) as lost:
        worker.call({"sleep": 60}, timeout_s=0.3)
    assert lost.value.kind == "timeout"
    assert not worker.alive


def test_a_worker_that_dies_is_reported_with_what_it_said(worker):
    with pytest.raises(WorkerLost) as lost:
        worker.call({"die": True}, timeout_s=20)
    assert lost.value.kind == "died"
    assert "out of luck" in lost.value.stderr
    with pytest.raises(WorkerLost):
        worker.call({}, timeout_s=5)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"OML1",
        b"NOPE" + struct.pack("<II", 2, 0) + b"{}",
        b"OML1" + struct.pack("<II", 2, 0) + b"[]",
        b"OML1" + struct.pack("<II", 2, 0) + b"{",
        b"OML1" + struct.pack("<II", 0xFFFFFFFF, 0),
        b"OML1" + struct.pack("<II", 2, 0xFFFFFFFF),
        b"OML1" + struct.pack("<IIQ", 2, 1, 1 << 60) + b"{}",
        b"OML1" + struct.pack("<II", 200_000, 0) + b"[" * 200_000,
    ],
)
def test_what_is_no_frame_is_an_error(frame):
    with pytest.raises(wire.WireError):
        wire.receive(io.BytesIO(frame))


def test_a_frame_over_the_limit_is_refused():
    stream = io.BytesIO()
    wire.send(stream, {}, [b"x" * 100])
    with pytest.raises(wire.WireError, match="limit"):
        wire.receive(io.BytesIO(stream.getvalue()), limit=50)
