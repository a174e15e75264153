import io
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.process import wire
from engine.process.worker_process import Worker, WorkerLost

ECHO = """
import sys, time
sys.path.insert(0, {root!r})
from engine.process import wire
while True:
    try:
        header, blobs = wire.receive(sys.stdin.buffer)
    except wire.WireError:
        break
    if header.get("half"):
        sys.stdout.buffer.write(b"OML1")
        sys.stdout.buffer.flush()
    if header.get("sleep"):
        time.sleep(header["sleep"])
    if header.get("die"):
        sys.stderr.write("out of luck")
        sys.stderr.flush()
        raise SystemExit(9)
    wire.send(sys.stdout.buffer, header, blobs)
    if header.get("last"):
        break
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


def test_an_answer_that_stops_halfway_ends_at_the_deadline(worker):
    worker.call({}, timeout_s=20)
    begin = time.monotonic()
    with pytest.raises(WorkerLost) as lost:
        worker.call({"half": True, "sleep": 60}, timeout_s=0.3)
    assert lost.value.kind == "timeout"
    assert time.monotonic() - begin < 5


def test_answers_come_in_the_order_of_their_requests(worker):
    for number in range(3):
        worker.send({"number": number}, [b"x" * number])
    assert [worker.receive(timeout_s=20) for _ in range(3)] == [({"number": n}, [b"x" * n]) for n in range(3)]


def test_an_answer_is_read_though_its_process_has_ended_before_the_next_request(worker):
    """A kernel's fault ends its process as soon as it is reported, with the next request on its way."""
    worker.send({"last": True})
    worker._process.wait(timeout=20)
    worker.send({"too": "late"}, [b"x" * 3_000_000])
    assert worker.receive(timeout_s=20) == ({"last": True}, [])
    with pytest.raises(WorkerLost) as lost:
        worker.receive(timeout_s=20)
    assert lost.value.kind == "died"


def test_who_waits_for_an_answer_is_told_that_the_process_was_killed(worker):
    worker.call({}, timeout_s=20)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(worker.call, {"sleep": 60}, timeout_s=60)
        while not worker._reading.locked():
            time.sleep(0.01)
        begin = time.monotonic()
        worker.kill()
        with pytest.raises(WorkerLost) as lost:
            answer.result()
    assert time.monotonic() - begin < 5
    assert lost.value.kind == "died"
    with pytest.raises(WorkerLost):  # and its pipe's number, another file's by now, is not read
        worker.receive(timeout_s=5)


def test_who_ends_a_process_does_not_wait_for_who_reads_of_it():
    """The system may take seconds to take down what holds a GPU, and the search stood still meanwhile."""
    outlives = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(4)\nelse:\n    time.sleep(60)\n"
    worker = Worker([sys.executable, "-c", outlives])
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(worker.receive, timeout_s=60)
        while not worker._reading.locked():
            time.sleep(0.01)
        time.sleep(0.5)  # for its child to be there
        begin = time.monotonic()
        worker.kill()
        assert time.monotonic() - begin < 3  # and not the 4 s that the child of the process lives
        with pytest.raises(WorkerLost) as lost:
            answer.result()
    assert lost.value.kind == "died"
    assert worker._answers._socket.fileno() == -1


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


def test_an_answer_takes_no_more_memory_than_it_may(monkeypatch):
    """64 MB of '[[],[],' became 1.5 GB in the parent."""
    text = b'{"a":[' + b"[]," * (6 << 20) + b"0]}"
    frame = struct.pack("<4sII", b"OML1", len(text), 0) + text
    with pytest.raises(wire.WireError):
        wire.receive(io.BytesIO(frame), wire.MAX_ANSWER)
    with pytest.raises(wire.WireError):
        wire.receive(io.BytesIO(struct.pack("<4sIIQ", b"OML1", 2, 1, wire.MAX_ANSWER)), wire.MAX_ANSWER)


def test_a_worker_that_floods_its_log_fills_nothing():
    code = "import os\nwhile True:\n  os.write(2, b'x' * 65536)"
    flood = Worker([sys.executable, "-c", code])
    with pytest.raises(WorkerLost) as lost:
        flood.receive(timeout_s=20)  # the write behind the limit fails
    assert lost.value.kind == "died"
    assert "PermissionError" in lost.value.stderr or set(lost.value.stderr) == {"x"}
