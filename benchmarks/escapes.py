"""Attempts to get out of the sandbox and to wear the parent out, each run for real, as root and as an ordinary user.

    python benchmarks/escapes.py --seeds 3
    python benchmarks/escapes.py --seeds 1 --without-defences

An attempt succeeds where its program says so, or where afterwards a file outside has changed, a process or a file is left, or this
process has taken more than 1 GiB. Each seed draws other texts. With `--without-defences` every attempt runs once more with the defences
switched off that stand against it, and has to succeed: an attempt that fails either way shows nothing. Called by root, it runs once as
root and once as an ordinary user. Exit code 0 when nothing succeeded (and, without defences, everything), 1 otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.escape_attempts import ATTEMPTS, Attempt, Targets  # noqa: E402 - the path above makes it importable as a script
from benchmarks.escape_parent import PARENT_ATTEMPTS, NoSwitch  # noqa: E402
from benchmarks.escape_switches import command, host_options  # noqa: E402
from benchmarks.examples import commit, machine  # noqa: E402
from engine.process.bounded_output import BoundedOutput  # noqa: E402
from engine.process.memory_group import make_group, remove_group  # noqa: E402
from engine.process.sandbox import Sandbox, sandbox  # noqa: E402

_LIMIT_S = 60.0
_OUTPUT = 1 << 20
_MEMORY = 1 << 30  # what the parent may take
_ORDINARY = 23456


@dataclasses.dataclass
class Row:
    """One attempt: how often it was tried and what it reached. `bare`: whether it succeeds without its defences, None where not tried."""

    name: str
    tried: int = 0
    reached: list[str] = dataclasses.field(default_factory=list)
    bare: bool | None = None
    off: tuple[str, ...] = ()


@contextmanager
def targets(marker: str) -> Iterator[Targets]:
    """What there is to reach, set up and taken down."""
    with ExitStack() as undo:
        top = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="escape-")))
        top.chmod(0o755)
        secret, canary, folder = top / "secret.txt", top / "canary.txt", top / "open"
        secret.write_text("s3cret-of-the-host\n")
        canary.write_text("untouched\n")
        for each, mode in ((secret, 0o644), (canary, 0o666)):
            each.chmod(mode)
        for each in (folder, top / "scratch"):
            each.mkdir()
            each.chmod(0o777)
        victim = subprocess.Popen(["/bin/sleep", "3600"], stdin=subprocess.DEVNULL)
        undo.callback(victim.wait)
        undo.callback(victim.kill)
        server = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix, abstract = (
            undo.enter_context(socket.socket(socket.AF_UNIX)),
            undo.enter_context(socket.socket(socket.AF_UNIX)),
        )
        unix.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        abstract.bind(f"\0{marker}")
        for each in (unix, abstract):
            each.listen()
        import ctypes

        libc = ctypes.CDLL(None)
        key = 0x0E5C0000 + os.getpid() % 65536
        made = libc.shmget(key, 4096, 0o1666)
        undo.callback(lambda: libc.shmctl(made, 0, None))
        yield Targets(
            "s3cret-of-the-host", str(secret), str(canary), str(folder), str(top / "scratch"), victim.pid, os.getpid(),
            server.getsockname()[1], str(folder / "socket"), f"\0{marker}", key, marker,
        )  # fmt: skip


def outside(there: Targets) -> dict[str, str]:
    """What an attempt must not change, by name."""
    found = {"canary": Path(there.canary).read_text(), "secret": Path(there.secret).read_text()}
    found["core_pattern"] = Path("/proc/sys/kernel/core_pattern").read_text()
    found["folder"] = " ".join(sorted(os.listdir(there.folder)))
    found["temporary files"] = " ".join(sorted(os.listdir(tempfile.gettempdir())))
    found["/dev/shm"] = " ".join(
        sorted(name for name in os.listdir("/dev/shm") if "optiml" in name or name.startswith("f"))
    )
    for folder in ("/usr/bin", "/usr/lib", "/usr/local/bin", "/etc", "/etc/cron.d", "/", "/dev", "/usr/include"):
        found[folder] = str(os.path.lexists(f"{folder}/optiml-escape"))
    return found


_EMPTY_LOOKS = 6  # in a row: a process that forks may be between two of its lives at a single look


def left(marker: str) -> list[str]:
    """Processes that bear the mark, a moment after they should be gone."""
    found: list[str] = []
    empty = 0
    for _ in range(100):
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if marker.encode() in entry.read_bytes() and entry.parent.name != str(os.getpid()):
                    found.append(entry.parent.name)
            except OSError:
                continue
        empty = 0 if found else empty + 1
        if empty == _EMPTY_LOOKS:
            return []
        time.sleep(0.05)
    return found


def run(attempt: Attempt, rng: random.Random, box: Sandbox, there: Targets, off: Sequence[str] = ()) -> list[str]:
    """What the attempt reached, in words."""
    before = outside(there)
    options: dict[str, Any] = dict(attempt.options)
    if options.pop("writable", False):
        options["writable"] = [Path(there.scratch)]
    limit = options.pop("group_bytes", 0)
    group = make_group(limit, "-escape") if limit and "group" not in off else None
    if group is not None:
        box = dataclasses.replace(box, memory_group=str(group))
    argv = [sys.executable, "-I", "-c", attempt.draw(rng, there), there.marker]
    argv = command(box, argv, options, off)
    reached = []
    os.environ["OPTIML_ESCAPE_SECRET"] = there.secret_text
    with ExitStack() as stack:
        bounded = "output" not in off
        sinks = [BoundedOutput(_OUTPUT) if bounded else stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=sinks[0].fileno(), stderr=sinks[1].fileno(), start_new_session=True,
            cwd="/", **host_options(there, off),
        )  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LIMIT_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, 9)
        process.wait()
        sizes = [os.fstat(sink.fileno()).st_size for sink in sinks]
        said = os.pread(sinks[0].fileno(), 4096, 0).decode("utf-8", "replace").replace("\0", "")
        for sink in sinks:
            sink.close()
    if group is not None:
        remove_group(group)
        reached += ["its control group is left"] if group.exists() else []
    reached += [line for line in said.splitlines() if line.startswith("ESCAPED")][:3]
    if any(size > _OUTPUT for size in sizes):
        reached.append(f"an output of {max(sizes) >> 20} MiB")
    for path in Path(there.scratch).iterdir():
        found = path.lstat()
        if found.st_mode & 0o6000 and found.st_uid == 0:
            reached.append("a set-user-id file of root's")
        if path.name.startswith("core"):
            reached.append("a core dump")
        path.unlink()
    after = outside(there)
    reached += [f"changed: {name}" for name in before if before[name] != after[name]]
    if "canary" in " ".join(reached):
        Path(there.canary).write_text("untouched\n")
    remaining = left(there.marker)
    if remaining:
        reached.append(f"{len(remaining)} processes left")
        for pid in remaining:
            with suppress(OSError):
                os.kill(int(pid), 9)
    return reached


def table(rows: Sequence[Row], who: str, bare: bool) -> str:
    """A table of Markdown."""
    more, rule = (" without its defences |", "---|") if bare else ("", "")
    lines = [f"\nAs {who}:\n", f"| attempt | tried | succeeded |{more}", f"|---|---:|---:|{rule}"]
    for row in rows:
        last = ""
        if bare:
            ending = "not tried" if row.bare is None else "succeeds" if row.bare else "FAILS"
            last = f" {ending} ({', '.join(row.off)}) |" if row.off else f" {ending} |"
        lines.append(f"| {row.name.replace('_', ' ')} | {row.tried} | {len(row.reached)} |{last}")
        lines += [f"| ↳ {what[:120]} | | |{' |' if bare else ''}" for what in row.reached[:2]]
    return "\n".join(lines)


def all_attempts(seeds: Sequence[int], bare: bool, only: str) -> tuple[list[Row], int]:
    """Every attempt with every seed, as the user that this process has; and the most memory that it took, in bytes."""
    box = sandbox()
    assert isinstance(box, Sandbox)
    rows: list[Row] = []
    with targets(f"optiml-escape-{os.getpid()}") as there:
        for attempt in ATTEMPTS:
            if only and only not in attempt.name:
                continue
            if "group" in attempt.defences and not box.memory_group:
                print(f"not tried: {attempt.name.replace('_', ' ')} (no control group can be made here)")
                continue
            row = Row(attempt.name)
            rows.append(row)
            for seed in seeds:
                row.tried += 1
                row.reached += run(attempt, random.Random(f"{seed} {attempt.name}"), box, there)
            if bare and attempt.defences and (os.getuid() == 0 or not attempt.as_root_only):
                row.off = (
                    *attempt.defences,
                    *(["root"] if os.getuid() == 0 and "root" not in attempt.defences else []),
                )
                row.bare = bool(run(attempt, random.Random(f"{seeds[0]} {attempt.name}"), box, there, row.off))
        most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for name, tried in PARENT_ATTEMPTS.items():
            if only and only not in name:
                continue
            row = Row(name)
            rows.append(row)
            for seed in seeds:
                row.tried += 1
                before = outside(there)
                row.reached += tried(random.Random(f"{seed} {name}"), box, True)
                row.reached += [f"changed: {key}" for key, value in outside(there).items() if before[key] != value]
            most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if most > _MEMORY:
                row.reached.append(f"the parent took {most >> 20} MiB")
            if bare:
                row.off, row.bare = ("its check",), _aside(tried, f"{seeds[0]} {name}", box)
    return rows, most


def _aside(tried: Callable[[random.Random, Sandbox, bool], list[str]], seed: str, box: Sandbox) -> bool | None:
    """Whether it succeeds without its defence (None: that cannot be switched off). In a process of its own: it may take memory, or hang."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            reached = tried(random.Random(seed), box, False)
            code = 0 if reached or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > _MEMORY else 1
        except NoSwitch:
            code = 2
        finally:
            os._exit(code)
    for _ in range(400):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return None if os.waitstatus_to_exitcode(status) == 2 else status == 0
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return True  # it hangs


def as_ordinary_user(given: Sequence[str]) -> tuple[list[str], str]:
    """The argv that runs this program as an ordinary user ([] where that cannot be had, with the reason)."""
    drop = ["setpriv", f"--reuid={_ORDINARY}", f"--regid={_ORDINARY}", "--clear-groups", "--"]
    python = [sys.executable, str(Path(__file__).resolve()), *given, "--as-one"]
    # An attempt that cannot even start shows nothing.
    starts = (
        f"import subprocess, sys; sys.path.insert(0, {str(ROOT)!r}); from engine.process.sandbox import Limits, SandboxAccess, sandbox; "
        "argv = sandbox().command([sys.executable, '-I', '-c', ''], SandboxAccess(), Limits()); sys.exit(subprocess.run(argv).returncode)"
    )
    probe = [sys.executable, "-c", starts]
    if subprocess.run([*drop, *probe], capture_output=True).returncode == 0:
        return [*drop, *python], ""
    # This Python lies in a home folder that the user may not pass: show it that installation alone, in a mount namespace.
    home, kept = os.path.expanduser("~"), os.path.realpath(sys.base_prefix)
    if not kept.startswith(f"{home}/") or str(ROOT).startswith(f"{home}/"):
        return [], "an ordinary user may not read this installation"
    show = (
        'set -e; d=$(mktemp -d); mount --bind "$1" "$d"; mount -t tmpfs -o mode=755 none "$0"; mkdir -p "$1"; '
        'mount --bind "$d" "$1"; umount "$d"; rmdir "$d"; shift; exec "$@"'
    )
    wrapped = ["unshare", "--mount", "/bin/sh", "-c", show, home, kept, *drop]
    done = subprocess.run([*wrapped, *probe], capture_output=True, text=True)
    if done.returncode == 0:
        return [*wrapped, *python], ""
    return [], f"no ordinary user can be had here: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}"


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Attempts to get out of the sandbox.")
    parser.add_argument("--seeds", type=int, default=1, help="how often each is tried, with other texts (default: 1)")
    parser.add_argument("--first-seed", type=int, default=None, help="the first of the seeds (default: drawn)")
    parser.add_argument("--without-defences", action="store_true", help="show that each succeeds without its defences")
    parser.add_argument("--only", default="", help="attempts whose name holds this")
    parser.add_argument("--as-one", action="store_true", help="as the user who calls, and no other")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    words = list(sys.argv[1:] if given is None else given)
    options = parser.parse_args(words)
    first = options.first_seed if options.first_seed is not None else random.SystemRandom().randrange(10**6)
    seeds = range(first, first + options.seeds)
    who = "root" if os.getuid() == 0 else "an ordinary user"
    with tempfile.TemporaryDirectory(prefix="escapes-") as own:  # where nobody else makes files meanwhile
        os.chmod(own, 0o755)
        tempfile.tempdir = os.environ["TMPDIR"] = own
        rows, most = all_attempts(seeds, options.without_defences, options.only)
    tempfile.tempdir = None
    del os.environ["TMPDIR"]
    print(table(rows, who, options.without_defences))
    wrong = [row for row in rows if row.reached or row.bare is False]
    print(f"\n{who}: {len(rows)} kinds of attempt, {sum(row.tried for row in rows)} tried with seeds from {first}, "
          f"{sum(bool(row.reached) for row in rows)} succeeded; this process took {most >> 20} MiB at most", flush=True)  # fmt: skip
    skipped, ordinary = "", None
    code = 1 if wrong else 0
    if os.getuid() == 0 and not options.as_one:
        passed = [word for word in words if word != "--as-one"]
        if options.record:
            at = passed.index("--record") if "--record" in passed else -1
            passed = passed[:at] + passed[at + 2 :] if at >= 0 else [w for w in passed if not w.startswith("--record=")]
        with tempfile.TemporaryDirectory(prefix="ordinary-") as home:
            os.chmod(home, 0o777)
            own = Path(home) / "record.json"
            seed = ["--first-seed", str(first)] if options.first_seed is None else []
            argv, skipped = as_ordinary_user([*passed, *seed, *(["--record", str(own)] if options.record else [])])
            if argv:
                environment = {**os.environ, "HOME": home, "TMPDIR": home, "OPTIML_CACHE": f"{home}/cache"}
                code = subprocess.run(argv, env=environment, cwd="/").returncode or code
                ordinary = json.loads(own.read_text()) if options.record else None
        if skipped:
            print(f"\nnot tried as an ordinary user: {skipped}")
    if options.record:
        record = {
            "schema": "optiml.escapes/2", "command": ["python", "benchmarks/escapes.py", *words], "first_seed": first,
            "commit": commit(), "machine": machine(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "user": who, "skipped": skipped,
            "parent_peak_bytes": most, "rows": [dataclasses.asdict(row) for row in rows],
            "as_ordinary_user": ordinary and {key: ordinary[key] for key in ("user", "parent_peak_bytes", "rows")},
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
