"""Paths that every sandbox shows read-only: the system's programs and libraries, this Python, CUDA toolkits."""

import functools
import os
import site
import sys
from collections.abc import Iterable
from pathlib import Path

import engine

ENGINE = Path(engine.__file__).resolve().parent
# Read-only system folders: programs, libraries, headers. No /etc, /home, /var, /run, /srv, /mnt; no /usr/local/etc.
SYSTEM = (
    "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/libexec", "/usr/include",
    "/usr/local/bin", "/usr/local/lib", "/usr/local/lib64", "/usr/local/include", "/usr/local/libexec",
    "/usr/local/nvidia", "/nix/store", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
)  # fmt: skip
TOP_LEVEL = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")  # links into /usr where /usr is merged


def inside(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these folders or below one of them."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def too_wide(path: str) -> bool:
    """Whether binding `path` would show a home folder or the root of the machine."""
    home = os.path.realpath(os.path.expanduser("~"))
    return path == "/" or inside(home, (path,)) or path in ("/home", "/root", "/etc", "/var", "/usr/local", "/usr")


@functools.cache
def runtime_folders() -> tuple[str, ...]:
    """Folders of this Python: prefix and base prefix (a virtual environment's python links there), site-packages.

    The package itself is among them, for an editable install or a source checkout; CUDA toolkits too.
    """
    wanted: list[str] = []
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        if too_wide(os.path.realpath(prefix)):
            wanted += [os.path.join(prefix, name) for name in ("bin", "lib", "lib64", "include")]
        else:
            wanted.append(prefix)
    wanted += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        wanted.append(site.getusersitepackages())
    wanted += [os.path.dirname(os.path.realpath(sys.executable)), str(ENGINE)]
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
        if os.path.isdir(path) and not too_wide(path) and not inside(path, (*result, *SYSTEM)):
            result.append(path)
    return tuple(result)
