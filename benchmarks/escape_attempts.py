"""Generators of attempts to get out of the sandbox: each draws a program that prints ESCAPED where it succeeds.

A program gets what a takeover of a compiler, a kernel's process or a reference would have: Python, inside. What it reaches for is really
there outside (`Targets`). Names, sizes, spellings and orders differ from seed to seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Targets:
    """What is there outside for an attempt to reach: paths, numbers and names."""

    secret_text: str
    secret: str  # a file that anyone on the machine may read
    canary: str  # a file that anyone on the machine may write
    folder: str  # a folder that anyone on the machine may write to
    scratch: str  # the folder that the sandbox may write to
    victim: int  # a process of the same user
    parent: int
    port: int
    unix: str
    abstract: str
    shared: int  # key of a shared memory segment, of System V
    marker: str  # in the arguments of everything that an attempt starts


@dataclass(frozen=True)
class Attempt:
    """A kind of attempt. `options` go to `Sandbox.command`; `defences` name what must be off, all together, for it
    to succeed; none where there is no switch for them.

    `as_root_only`: it needs a caller that is root to succeed even so.
    """

    name: str
    draw: Callable[[random.Random, Targets], str]
    defences: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    as_root_only: bool = False


ATTEMPTS: list[Attempt] = []
_PRELUDE = (
    "import ctypes, errno, mmap, os, signal, socket, subprocess, sys, threading, time\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "def won(what=''): print('ESCAPED', what, flush=True)\n"
    "def tried(what):\n  try: return what()\n  except Exception: return None\n"
)


def attempt(
    *defences: str, root: bool = False, **options: Any
) -> Callable[[Callable[[random.Random, Targets], str]], None]:
    """Register a generator under its name."""

    def register(draw: Callable[[random.Random, Targets], str]) -> None:
        def program(rng: random.Random, there: Targets) -> str:
            return _PRELUDE + draw(rng, there)

        ATTEMPTS.append(Attempt(draw.__name__, program, defences, options, root))

    return register


def _reads(paths: list[str], there: Targets) -> str:
    return (
        f"for path in {paths!r}:\n  data = tried(lambda: open(path, 'rb').read(1 << 16)) or b''\n"
        f"  if {there.secret_text!r}.encode() in data: won(path)\n"
    )


def _writes(paths: list[str]) -> str:
    return (
        f"for path in {paths!r}:\n"
        "  for flags in (os.O_WRONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND):\n"
        "    handle = tried(lambda: os.open(path, flags | os.O_NONBLOCK, 0o600))\n"
        "    if handle is not None: won(path)\n"
    )


def _spelled(rng: random.Random, path: str) -> str:
    """The path by another way."""
    head, _, tail = path.rpartition("/")
    return rng.choice(
        [
            path,
            f"{head}/./{tail}",
            f"//{path.lstrip('/')}",
            f"/proc/self/root{path}",
            f"/tmp/..{path}",
            f"/dev/../{path}",
        ]
    )


# ---- secrets


@attempt("mounts")
def read_a_file(rng: random.Random, there: Targets) -> str:
    return _reads([_spelled(rng, there.secret) for _ in range(4)], there)


@attempt("mounts", writable=True)
def read_by_a_link_in_the_scratch_folder(rng: random.Random, there: Targets) -> str:
    name = f"{there.scratch}/l{rng.randrange(10**6)}"
    return f"os.symlink({there.secret!r}, {name!r})\n" + _reads([name, f"{there.scratch}/../secret.txt"], there)


@attempt("mounts", writable=True)
def hard_link_to_a_file(rng: random.Random, there: Targets) -> str:
    name = f"{there.scratch}/h{rng.randrange(10**6)}"
    return f"tried(lambda: os.link({there.secret!r}, {name!r}))\n" + _reads([name], there)


@attempt("environment")
def read_environments(rng: random.Random, there: Targets) -> str:
    order = rng.sample(range(1, 40), 39)
    return _reads([f"/proc/{pid}/environ" for pid in order] + ["/proc/self/environ"], there)


@attempt()
def read_through_other_processes(rng: random.Random, there: Targets) -> str:
    pids = rng.sample([1, 2, there.parent, there.victim], 4)
    return _reads(
        [f"/proc/{pid}/root{there.secret}" for pid in pids] + [f"/proc/{pid}/cwd/secret.txt" for pid in pids], there
    )


@attempt("descriptors")
def read_open_files_of_the_parent(rng: random.Random, there: Targets) -> str:
    order = rng.sample(range(3, 200), 197)
    return f"for fd in {order!r}:\n  if {there.secret_text!r}.encode() in (tried(lambda: os.pread(fd, 4096, 0)) or b''): won(fd)\n"


@attempt("mounts", root=True)
def read_what_is_root_s(rng: random.Random, there: Targets) -> str:
    paths = rng.sample(
        ["/etc/shadow", "/root/.ssh/id_rsa", "/etc/ssh/ssh_host_ed25519_key", "/etc/sudoers", "/var/log/syslog"], 3
    )
    return f"for path in {[*paths, '/etc/shadow']!r}:\n  if tried(lambda: open(path, 'rb').read(1)): won(path)\n"


@attempt()
def read_memory_of_the_kernel(rng: random.Random, there: Targets) -> str:
    paths = rng.sample(
        ["/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/nvme0n1"], 8
    )
    return f"for path in {paths!r}:\n  if tried(lambda: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1)): won(path)\n"


# ---- writing


@attempt("mounts")
def write_a_file(rng: random.Random, there: Targets) -> str:
    return _writes([_spelled(rng, there.canary), f"{there.folder}/made{rng.randrange(10**6)}"])


@attempt("mounts", root=True)
def write_where_programs_lie(rng: random.Random, there: Targets) -> str:
    folders = ["/usr/bin", "/usr/lib", "/usr/local/bin", "/etc", "/etc/cron.d", "/bin", "/", "/dev", "/usr/include"]
    return _writes([f"{folder}/optiml-escape" for folder in rng.sample(folders, 5)])


@attempt("proc", "root", root=True)
def write_core_pattern(rng: random.Random, there: Targets) -> str:
    path = _spelled(rng, "/proc/sys/kernel/core_pattern")
    return f"old = open('/proc/sys/kernel/core_pattern').read()\nopen({path!r}, 'w').write(old)\nwon()\n"


@attempt("proc", "root", root=True)
def write_settings_of_the_kernel(rng: random.Random, there: Targets) -> str:
    return (
        "found = [os.path.join(f, n) for f, _, names in os.walk('/proc/sys') for n in names]\n"
        f"for path in found[{rng.randrange(7)}::7]:\n"
        "  handle = tried(lambda: os.open(path, os.O_WRONLY))\n"
        "  if handle is not None: won(path)\n"
    )


@attempt()
def write_elsewhere_in_proc_and_sys(rng: random.Random, there: Targets) -> str:
    return (
        "for top in ('/proc/irq', '/proc/bus', '/proc/fs', '/proc/acpi', '/proc/driver', '/proc/scsi', '/sys'):\n"
        "  for folder, _, names in os.walk(top):\n"
        "    for name in names:\n"
        "      handle = tried(lambda: os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))\n"
        "      if handle is not None: won(os.path.join(folder, name))\n"
        "handle = tried(lambda: os.open('/proc/sysrq-trigger', os.O_WRONLY))\n"
        "if handle is not None: won('sysrq')\n"
    )


@attempt("root", root=True, writable=True)
def leave_a_program_that_makes_root(rng: random.Random, there: Targets) -> str:
    name = f"{there.scratch}/s{rng.randrange(10**6)}"
    mode = rng.choice(["0o4755", "0o6755", "0o4777"])
    # What counts is what lies there afterwards: the runner looks for a set-user-id file of its own user.
    return f"import shutil\nshutil.copy('/bin/true', {name!r})\nos.chmod({name!r}, {mode})\n"


@attempt("filter", "capabilities", "userns", root=True)
def mount_anew(rng: random.Random, there: Targets) -> str:
    flags = rng.choice([0x1000, 0x1020, 32 | 0x1000, 0])
    return (
        f"if libc.mount(b'/tmp', b'/usr', b'', {flags}, None) == 0: won()\n"
        "if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0: won()\n"
    )


@attempt(writable=True)
def make_device_nodes(rng: random.Random, there: Targets) -> str:
    major, minor = rng.choice([(1, 1), (8, 0), (253, 0), (1, 2)])
    return (
        f"import stat\nfor folder in ('/tmp', {there.scratch!r}):\n"
        f"  for kind in (stat.S_IFBLK, stat.S_IFCHR):\n    path = folder + '/n{major}-' + str(kind)\n"
        f"    if tried(lambda: (os.mknod(path, kind | 0o666, os.makedev({major}, {minor})), 1)): won(path)\n"
    )


# ---- other processes


@attempt("pids")
def signal_processes(rng: random.Random, there: Targets) -> str:
    number = rng.choice(["SIGKILL", "SIGSTOP", "SIGTERM", "SIGUSR1"])
    return f"if tried(lambda: (os.kill({there.victim}, signal.{number}), 1)): won()\n"


@attempt()
def trace_a_process(rng: random.Random, there: Targets) -> str:
    request = rng.choice([16, 0x4206])
    return f"if libc.ptrace({request}, {there.victim}, 0, 0) == 0: won()\n"


@attempt("filter")
def trace_its_own_child(rng: random.Random, there: Targets) -> str:
    # Harmless in itself, but a tracer changes the system calls that a filter has let through.
    return (
        f"child = os.fork()\nif child == 0: time.sleep(5); os._exit(0)\ntime.sleep({0.05 + rng.random() / 20})\n"
        "if libc.ptrace(16, child, 0, 0) == 0: won()\nos.kill(child, 9)\n"
    )


@attempt("die")
def stay_behind(rng: random.Random, there: Targets) -> str:
    depth = rng.randrange(1, 4)
    return (
        f"for _ in range({depth}):\n  if os.fork(): os._exit(0)\n  os.setsid()\n"
        f"for number in range(1, 32):\n  tried(lambda: signal.signal(number, signal.SIG_IGN))\n"
        f"os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', {there.marker!r}])\n"
    )


@attempt("processes", processes=64)
def fork_bomb(rng: random.Random, there: Targets) -> str:
    return (
        f"made = 0\nwhile made < {rng.randrange(300, 600)}:\n  try: child = os.fork()\n  except OSError: break\n"
        "  if child == 0: time.sleep(30); os._exit(0)\n  made += 1\nif made > 100: won(made)\nos._exit(0)\n"
    )


@attempt("processes", processes=64)
def thread_bomb(rng: random.Random, there: Targets) -> str:
    return (
        f"threading.stack_size(65536)\nmade = 0\ntry:\n  while made < {rng.randrange(300, 600)}:\n"
        "    threading.Thread(target=time.sleep, args=(30,), daemon=True).start(); made += 1\n"
        "except RuntimeError: pass\nif made > 100: won(made)\nos._exit(0)\n"
    )


# ---- rights


@attempt("filter", "userns")
def make_namespaces(rng: random.Random, there: Targets) -> str:
    flags = rng.choice([0x10000000, 0x10020000, 0x10000000 | 0x40000000])
    return (
        f"if libc.unshare({flags}) == 0: won('unshare')\n"
        f"child = libc.syscall(56, {flags} | 17, 0, 0, 0, 0) if os.uname().machine == 'x86_64' else -1\n"
        "if child == 0: os._exit(0)\nif child > 0: won('clone')\n"
    )


@attempt("filter", "userns")
def clone_by_a_structure(rng: random.Random, there: Targets) -> str:
    return (
        "args = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)\n"
        "child = libc.syscall(435, ctypes.byref(args), 88)\nif child == 0: os._exit(0)\nif child > 0: won()\n"
    )


@attempt("filter")
def call_what_is_refused(rng: random.Random, there: Targets) -> str:
    call = rng.choice(
        [
            "libc.syscall(425, 8, ctypes.create_string_buffer(120))",  # io_uring_setup
            "libc.syscall(312, os.getpid(), os.getpid(), 0, 0, 0)",  # kcmp
            "libc.syscall(250, 0, -3, 0)",  # keyctl, the session's keyring
        ]
    )
    return f"ctypes.set_errno(0)\nif {call} >= 0 or ctypes.get_errno() != errno.EPERM: won(ctypes.get_errno())\n"


@attempt("capabilities", root=True)
def become_root(rng: random.Random, there: Targets) -> str:
    return (
        "for what in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0])):\n"
        "  if tried(lambda: (what(), 1)): won()\n"
        "for argv in (['su', '-c', 'id -u'], ['sudo', '-n', 'id', '-u']):\n"
        "  done = tried(lambda: subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=5))\n"
        "  if done and done.stdout.strip() == '0': won(argv)\n"
    )


# ---- network and others' memory


@attempt("net")
def connect_to_the_host(rng: random.Random, there: Targets) -> str:
    address = rng.choice(["127.0.0.1", "127.1", "0.0.0.0", "::ffff:127.0.0.1"])
    return f"if tried(lambda: socket.create_connection(({address!r}, {there.port}), 2)): won()\n"


@attempt("net")
def send_to_the_outside(rng: random.Random, there: Targets) -> str:
    target = rng.choice(["10.0.0.1", "192.168.1.1", "169.254.169.254", "1.1.1.1"])
    # A route is enough: whether somebody answers is another matter.
    return f"s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nif tried(lambda: s.sendto(b'x', ({target!r}, 9))): won()\n"


@attempt("mounts")
def connect_to_a_unix_socket(rng: random.Random, there: Targets) -> str:
    return f"s = socket.socket(socket.AF_UNIX)\nif tried(lambda: (s.connect({there.unix!r}), 1)): won()\n"


@attempt("net")
def connect_to_an_abstract_socket(rng: random.Random, there: Targets) -> str:
    return f"s = socket.socket(socket.AF_UNIX)\nif tried(lambda: (s.connect({there.abstract!r}), 1)): won()\n"


@attempt("filter")
def reach_the_host_of_the_machine(rng: random.Random, there: Targets) -> str:
    return f"s = tried(lambda: socket.socket(40, {rng.choice([1, 2, 5])}))\nif s: won('AF_VSOCK')\n"


@attempt("filter")
def open_sockets_of_other_families(rng: random.Random, there: Targets) -> str:
    families = [*rng.sample([x for x in range(46) if x not in (1, 2, 10, 16)], 20), 38, 40]
    return f"for family in {families!r}:\n  for kind in (1, 2, 3, 5):\n    if tried(lambda: socket.socket(family, kind)): won(family)\n"


@attempt("ipc")
def attach_shared_memory(rng: random.Random, there: Targets) -> str:
    return f"if libc.shmget({there.shared}, 4096, 0o666) >= 0: won()\n"


@attempt()
def push_characters_into_the_terminal(rng: random.Random, there: Targets) -> str:
    return "import fcntl\nif tried(lambda: (fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x'), 1)): won()\n"


# ---- resources


@attempt("memory", memory_bytes=512 << 20)
def take_memory(rng: random.Random, there: Targets) -> str:
    piece = rng.choice([1, 16, 64])
    return f"held = []\ntry:\n  while len(held) * {piece} < 900: held.append(bytearray({piece} << 20))\n  won()\nexcept MemoryError: pass\n"


@attempt("group", memory_bytes=512 << 20, group_bytes=512 << 20)
def take_memory_in_many_processes(rng: random.Random, there: Targets) -> str:
    count = rng.randrange(6, 9)
    return (
        f"children = []\nfor _ in range({count}):\n  child = os.fork()\n  if child == 0:\n    held = bytearray(128 << 20)\n"
        "    held[::4096] = b'x' * len(held[::4096])\n    time.sleep(1.5)\n    os._exit(0)\n  children.append(child)\n"
        f"if sum(os.waitpid(c, 0)[1] == 0 for c in children) == {count}: won()\n"
    )


def _fill(path: str, chunk: int, most: int) -> str:
    return (
        f"written = 0\nfile = open({path!r}, 'wb', buffering=0)\ntry:\n  while written < {most}:\n"
        f"    written += file.write(b'x' * {chunk})\nexcept OSError: pass\nif written >= {most}: won(written)\n"
    )


@attempt("tmp")
def fill_temporary_files(rng: random.Random, there: Targets) -> str:
    return _fill(f"/tmp/f{rng.randrange(10**6)}", rng.choice([1 << 20, 4 << 20]), (1 << 30) + (64 << 20))


@attempt("shm")
def fill_shared_memory(rng: random.Random, there: Targets) -> str:
    return _fill(f"/dev/shm/f{rng.randrange(10**6)}", 1 << 20, 320 << 20)


@attempt("file size", writable=True, file_bytes=32 << 20)
def fill_the_scratch_folder(rng: random.Random, there: Targets) -> str:
    return "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + _fill(
        f"{there.scratch}/f{rng.randrange(10**6)}", 1 << 20, 48 << 20
    )


@attempt("open files")
def open_many_files(rng: random.Random, there: Targets) -> str:
    return "held = []\ntry:\n  while len(held) < 4000: held.append(os.open('/dev/null', 0))\n  won()\nexcept OSError: pass\n"


@attempt("cpu", cpu_s=1)
def compute_without_end(rng: random.Random, there: Targets) -> str:
    return (
        "begin = time.process_time()\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
        f"while time.process_time() - begin < {rng.uniform(2.5, 4):.2f}: pass\nwon()\n"
    )


@attempt("output")
def flood_the_output(rng: random.Random, there: Targets) -> str:
    fd, piece = rng.choice([1, 2]), rng.choice([4096, 1 << 20])
    return f"written = 0\ntry:\n  while written < {64 << 20}: written += os.write({fd}, b'x' * {piece})\nexcept OSError: pass\n"


@attempt("output")
def shrink_or_grow_the_output(rng: random.Random, there: Targets) -> str:
    size = rng.choice([0, 1 << 33, 1 << 40])
    return f"if tried(lambda: (os.ftruncate(1, {size}), 1)) or tried(lambda: (os.truncate('/proc/self/fd/1', {size}), 1)): won()\n"


@attempt("core", writable=True)
def leave_a_core_dump(rng: random.Random, there: Targets) -> str:
    number = rng.choice(["SIGABRT", "SIGSEGV", "SIGQUIT"])
    return (
        f"import resource\nos.chdir({there.scratch!r})\n"
        "tried(lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2))\n"
        f"if resource.getrlimit(resource.RLIMIT_CORE)[0] != 0: won()\nos.kill(os.getpid(), signal.{number})\n"
    )
