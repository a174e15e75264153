"""Attempts on the process outside: its memory, its time, its caches, and the supervisor of CPU runs.

Each takes a generator of random numbers, the sandbox, and whether its defence is on; it gives what it reached, in words.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.compile.cache import DiskCache
from engine.cpu.toolchain import RUNTIME, find_toolchain, prepare
from engine.process import wire
from engine.process.bounded_output import BoundedOutput
from engine.process.sandbox import Sandbox, SandboxAccess
from engine.process.worker_process import Worker, WorkerLost
from engine.settings.folders import cache_folder, read_regular, trust
from engine.settings.toml_positions import check_keys

_ANSWER_S = 20.0


class NoSwitch(Exception):
    """There is no way to switch this defence off here."""


def _answered(box: Sandbox, code: str, limit: int) -> list[str]:
    """Ask a worker that answers with what `code` writes; that it is refused is all that may come of it."""
    worker = Worker(box.command([sys.executable, "-I", "-c", "import os, struct, sys\n" + code]), limit=limit)
    try:
        header, blobs = worker.receive(timeout_s=_ANSWER_S)
        return [f"an answer of {len(str(header)[:100])}+ characters and {sum(map(len, blobs)) >> 20} MiB was taken"]
    except WorkerLost:
        return []
    finally:
        worker.kill()


def answer_with_a_deep_header(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    piece = rng.choice(["[]", "{}", "[[]]"])
    count = rng.randrange(14 << 20, 15 << 20)
    code = (
        f"text = b'{{\"a\":[' + b'{piece},' * {count} + b'0]}}'\n"
        "os.write(1, struct.pack('<4sII', b'OML1', len(text), 0))\nview = memoryview(text)\n"
        "while view: view = view[os.write(1, view):]\n"
    )
    return _answered(box, code, wire.MAX_ANSWER if on else wire.MAX_FRAME)


def answer_with_a_huge_blob(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    size = rng.randrange(700 << 20, 900 << 20)
    code = (
        f"os.write(1, struct.pack('<4sIIQ', b'OML1', 2, 1, {size}) + b'{{}}')\npiece = b'x' * (1 << 20)\n"
        f"for _ in range({size} >> 20): os.write(1, piece)\nos.write(1, piece)\n"
    )
    return _answered(box, code, wire.MAX_ANSWER if on else wire.MAX_FRAME)


def answer_with_nonsense(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    frames = [
        struct.pack("<4sII", b"OML1", 0xFFFFFFFF, 0),
        struct.pack("<4sII", b"OML1", 2, 0xFFFFFFFF),
        struct.pack("<4sIIQ", b"OML1", 2, 1, 1 << 63) + b"{}",
        struct.pack("<4sII", b"OML1", 100_000, 0) + b"[" * 100_000,
        struct.pack("<4sII", b"OML1", 4, 0) + b"null",
        rng.randbytes(64),
    ]
    text = rng.choice(frames)
    if not on:
        raise NoSwitch
    return _answered(box, f"os.write(1, {text!r})\n", wire.MAX_ANSWER)


def flood_the_log_of_a_worker(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    code = f"import os\nfor _ in range({rng.randrange(2000, 3000)}): os.write(2, b'x' * 65536)\n"
    if on:
        worker = Worker(box.command([sys.executable, "-I", "-c", code]))
        with contextlib.suppress(WorkerLost):
            worker.receive(timeout_s=_ANSWER_S)
        size = os.fstat(worker._stderr.fileno()).st_size
    else:
        with tempfile.TemporaryFile() as log:
            subprocess.run(box.command([sys.executable, "-I", "-c", code]), stderr=log, stdin=subprocess.DEVNULL)
            size = os.fstat(log.fileno()).st_size
    return [f"a log of {size >> 20} MiB"] if size > 8 << 20 else []


def never_answer(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    code = rng.choice(["import time; time.sleep(600)", "while True: pass", "import os\nwhile True: os.write(1, b'')"])
    worker = Worker(box.command([sys.executable, "-I", "-c", code]))
    try:
        worker.receive(timeout_s=0.5 if on else 1e6)
        return ["it answered"]
    except WorkerLost as lost:
        return [] if lost.kind == "timeout" and not worker.alive else ["it lives on"]


def put_a_pipe_into_a_cache(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="cache-") as folder:
        cache = DiskCache(Path(folder))
        cache.put("key", {}, b"code")
        (entry,) = Path(folder).glob("??/*")
        entry.unlink()
        what = rng.choice(["pipe", "socket", "device", "link"]) if on else "pipe"
        if what == "pipe":
            os.mkfifo(entry)
        elif what == "socket":
            with socket.socket(socket.AF_UNIX) as made:
                os.chdir(entry.parent)
                made.bind(entry.name[:60])
                os.chdir("/")
        else:
            entry.symlink_to("/dev/zero" if what == "device" else "/etc/passwd")
        box_of: list[Any] = []
        # A daemon: without the defence it waits for ever.
        reader = threading.Thread(
            target=lambda: box_of.append(cache.get("key") if on else entry.read_bytes()), daemon=True
        )
        reader.start()
        reader.join(5)
        return (
            [f"the cache waits for a {what}"]
            if reader.is_alive()
            else [f"read {what}"]
            if box_of[0] is not None
            else []
        )


def leave_something_for_another_domain(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    key = f"key {rng.random()}"
    writer, reader = rng.sample(["trusted", "pull", "fork"], 2)
    before = os.environ.get("OPTIML_CACHE")
    with tempfile.TemporaryDirectory(prefix="cache-") as folder:
        os.environ["OPTIML_CACHE"] = folder
        try:
            with trust(writer):
                DiskCache(cache_folder() / "compile").put(key, {"by": writer}, b"evil")
            with trust(reader if on else writer):
                return ["read what another domain wrote"] if DiskCache(cache_folder() / "compile").get(key) else []
        finally:
            if before is None:
                del os.environ["OPTIML_CACHE"]
            else:
                os.environ["OPTIML_CACHE"] = before


def have_the_parent_follow_a_link(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    target = rng.choice(["/etc/passwd", "/etc/hostname", "/proc/self/environ"])
    with tempfile.TemporaryDirectory(prefix="link-") as folder:
        os.chmod(folder, 0o755)
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        name = scratch / f"log{rng.randrange(1000)}"
        argv = ["/bin/ln", "-s", target, str(name)]
        subprocess.run(box.command(argv, SandboxAccess(writable=[scratch])), check=True, stdin=subprocess.DEVNULL)
        read = read_regular(name, 1 << 20) if on else name.read_bytes()
        return [f"read {target}"] if read is not None else []


def write_a_key_that_takes_a_minute(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    text = rng.choice(["", "# spec\n", "["]) + ".".join([rng.choice("abc")] * rng.randrange(40_000, 50_000)) + " = 1"
    if not on:  # 20,000 parts take some 5 s; 50,000 take a minute
        begin = time.process_time()
        tomllib.loads(".".join(["a"] * 20_000) + " = 1")
        return [f"{time.process_time() - begin:.1f} s of tomllib"] if time.process_time() - begin > 1 else []
    try:
        check_keys(text)
    except ValueError:
        return []
    return ["taken"]


def _supervisor(folder: Path, on: bool) -> tuple[Path, Path]:
    """The supervisor of CPU runs and its folder; without its defences where not `on`. Raises NoSwitch without a compiler."""
    toolchain = find_toolchain()
    if toolchain is None:
        raise NoSwitch
    if on:
        built = prepare(toolchain, cache_folder(), "c++17")
        return built.supervise, built.folder
    text = (RUNTIME / "supervise.cpp").read_text()
    guard = "fcntl(status_fd, F_SETFD, FD_CLOEXEC) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0"
    assert guard in text
    source = folder / "supervise.cpp"
    source.write_text(text.replace(guard, "false"))
    subprocess.run([*toolchain.argv, "-std=c++17", "-w", str(source), "-o", str(folder / "supervise")], check=True)
    return folder / "supervise", folder


# A worker gets the number of a job and answers with the process that does it, here itself.
_WORKER = (
    "import glob, os, sys\n"
    "os.read(int(sys.argv[1]), 8)\n"
    "os.write(int(sys.argv[2]), os.getpid().to_bytes(4, sys.byteorder))\n"
    "above = f'/proc/{os.getppid()}'\n"
)


def _supervised(worker: str, box: Sandbox, on: bool) -> str:
    """What the supervisor of CPU runs reports of a worker that does a job by this Python script."""
    with tempfile.TemporaryDirectory(prefix="job-") as name, BoundedOutput(4096) as status:
        folder = Path(name)
        folder.chmod(0o755)
        supervise, shown = _supervisor(folder, on)
        program, job = folder / "worker", folder / "job"
        program.write_text(f"#!{sys.executable} -I\n{_WORKER}{worker}")
        program.chmod(0o755)
        job.write_text("\n")
        argv = [str(supervise), str(status.fileno()), "1", "2000", "8000", str(program), str(job)]
        command = box.command(argv, SandboxAccess(readable=[shown, folder]))
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60,
            pass_fds=[status.fileno()],
        )  # fmt: skip
        return status.head(4096).decode("ascii", "replace")


def forge_the_verdict_of_a_run(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    order = rng.choice(["sorted(found)", "sorted(found, reverse=True)"])
    script = (
        "found = glob.glob('/proc/[0-9]*/fd/*')\n"
        f"for path in {order}:\n"
        "  number = int(path.rpartition('/')[2])\n"
        "  for write in (lambda: os.write(number, b'0 ok\\n'), lambda: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b'0 ok\\n')):\n"
        "    try: write()\n"
        "    except OSError: pass\n"
        "os._exit(3)\n"
    )
    said = _supervised(script, box, on)
    # In the line of an honest verdict the worker's own words may stand, behind it.
    return [f"forged: {said.splitlines()[:3]}"] if any(line.startswith("0 ok") for line in said.splitlines()) else []


def write_the_memory_of_the_supervisor(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    secret = rng.choice(["environ", "maps", "auxv"])
    script = (
        f"for name, mode in (('mem', 'r+b'), ('{secret}', 'rb')):\n"
        "    try:\n"
        "        with open(f'{above}/{name}', mode, 0) as file:\n"
        "            if mode == 'r+b' or file.read(1): os._exit(0)\n"
        "    except OSError: pass\n"
        "os._exit(3)\n"
    )
    return ["opened"] if "0 ok" in _supervised(script, box, on) else []


def kill_the_supervisor(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    if not on:
        raise NoSwitch
    number = rng.choice([9, 15, 11])
    return ["a verdict"] if "ok" in _supervised(f"os.kill(os.getppid(), {number})\nos.kill(-1, 9)\n", box, True) else []


def include_a_secret(rng: random.Random, box: Sandbox, on: bool) -> list[str]:
    target = rng.choice(["/etc/passwd", "/etc/shadow", "/etc/hostname", "/proc/1/environ"]) if on else "/etc/passwd"
    how = rng.choice(
        ['#include "{}"', "#include <{}>", '__asm__(".incbin \\"{}\\"");', '#define F "{}"\n#include F']
    ).format(target)
    toolchain = find_toolchain()
    if toolchain is None:
        return []
    argv = [*toolchain.argv, "-x", "c++", "-c", "-o", "/dev/stdout", "-"]
    if on:
        argv = box.command(argv)
    done = subprocess.run(argv, input=how.encode() + b"\n", capture_output=True, timeout=60)
    said = done.stdout + done.stderr
    secret = Path(target).read_bytes()[:40] if os.access(target, os.R_OK) and "/proc" not in target else b"root:"
    return [f"read {target}"] if secret.strip() and secret.strip()[:12] in said else []


PARENT_ATTEMPTS: dict[str, Callable[[random.Random, Sandbox, bool], list[str]]] = {
    made.__name__: made
    for made in (
        answer_with_a_deep_header, answer_with_a_huge_blob, answer_with_nonsense, flood_the_log_of_a_worker, never_answer,
        put_a_pipe_into_a_cache, leave_something_for_another_domain, have_the_parent_follow_a_link,
        write_a_key_that_takes_a_minute, forge_the_verdict_of_a_run, write_the_memory_of_the_supervisor, kill_the_supervisor,
        include_a_secret,
    )
}  # fmt: skip
