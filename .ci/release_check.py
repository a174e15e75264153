"""Everything of a release but the upload: builds the sdist and the wheel, and uses the wheel away from the checkout.

Under each Python from 3.11 to 3.13 that is found (or that uv can fetch) the wheel is installed into an environment of its own, and
there optimises a kernel that no example has, applies the patch, reports, runs a part of the self-test and the hook. Exit codes: 0, 1
something failed (or, with --tag, an interpreter is missing).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
KERNEL = """\
__global__ void row_mean(const float* in, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = 0; c < cols; c++) sum += in[row * cols + c];
    out[row] = sum / cols;
}

void launch(const float* in, float* out, int rows, int cols) {
    row_mean<<<(rows + 255) / 256, 256>>>(in, out, rows, cols);
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--tag", default="", help="the release's tag, vX.Y.Z: must name the version; no interpreter may be missing"
    )
    parser.add_argument(
        "--python", action="append", choices=PYTHONS, help="use the wheel under this one alone; may be repeated"
    )
    parser.add_argument("--budget", default="2m", help="of the search under each interpreter")
    parsed = parser.parse_args()
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    if parsed.tag and parsed.tag != f"v{version}":
        print(f"the tag is {parsed.tag}, the version in pyproject.toml is {version}")
        return 1
    sdist, wheel = build(parsed.dist, version)
    wrong = contents(sdist, wheel)
    print(*wrong or [f"built {sdist.name} ({size(sdist)}) and {wheel.name} ({size(wheel)})"], sep="\n", flush=True)
    missing = []
    failed = bool(wrong)
    names = parsed.python or PYTHONS
    for name in names:
        python = interpreter(name)
        if python is None:
            missing.append(name)
            continue
        with tempfile.TemporaryDirectory(prefix="optiml-release-") as folder:
            failed |= not works(python, name, wheel, Path(folder), parsed.budget)
    if missing:
        print(f"not checked, there is no such interpreter: Python {', '.join(missing)}")
    return int(failed or (bool(missing) and bool(parsed.tag)) or len(missing) == len(names))


def build(dist: Path, version: str, *options: str, source: Path = ROOT) -> tuple[Path, Path]:
    """The two archives, made anew; the wheel out of the sdist."""
    shutil.rmtree(dist, ignore_errors=True)
    subprocess.run([tool("uv"), "build", "--quiet", *options, "--out-dir", str(dist), str(source)], check=True)
    (dist / ".gitignore").unlink(missing_ok=True)
    return dist / f"optiml_cuda-{version}.tar.gz", dist / f"optiml_cuda-{version}-py3-none-any.whl"


def contents(sdist: Path, wheel: Path) -> list[str]:
    """What is missing in the archives or should not be there, a line each."""
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = {name for name in packed.namelist() if ".dist-info/" not in name}
    tops = {"action", "bot", "engine", "hooks", "optiml_cuda"}
    listed = subprocess.run(
        ["git", "ls-files", *sorted(tops)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    # Read from the checkout alone: the Action's locked packages.
    ours = {path for path in listed.splitlines() if not path.startswith("action/requirements.")}
    wrong = [f"not in the wheel: {path}" for path in sorted(ours - in_wheel)]
    wrong += [f"not in the sdist: {path}" for path in sorted(ours - in_sdist)]
    wrong += [f"in the wheel, and not in the repository: {path}" for path in sorted(in_wheel - ours)]
    wrong += [
        f"not in the sdist: {name}" for name in ("LICENSE", "README.md", "pyproject.toml") if name not in in_sdist
    ]
    strange = {path.partition("/")[0] for path in in_sdist} - tops
    known = {
        "",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "PKG-INFO",
        "setup.cfg",
        "MANIFEST.in",
        "optiml_cuda.egg-info",
    }
    return wrong + [f"in the sdist, and no part of it: {name}" for name in sorted(strange - known)]


def interpreter(name: str) -> str | None:
    """A Python of that version: this one, one on PATH, or one that uv has or can fetch."""
    if name == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    found = shutil.which(f"python{name}")
    if found and runs(found):
        return found
    try:
        subprocess.run([tool("uv"), "python", "install", "--quiet", name], capture_output=True, timeout=300, check=True)
        done = subprocess.run(
            [tool("uv"), "python", "find", name], capture_output=True, text=True, timeout=60, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout.strip()


def runs(python: str) -> bool:
    return subprocess.run([python, "-I", "-c", "import ensurepip, venv"], capture_output=True).returncode == 0


def works(python: str, name: str, wheel: Path, folder: Path, budget: str) -> bool:
    """Install the wheel and use it in an empty repository; whether all of it went well."""
    home, repository = folder / "venv", folder / "repository"
    repository.mkdir()
    (repository / "mean.cu").write_text(KERNEL)
    author = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")}
    environment = {
        **kept,
        **author,
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "OPTIML_CACHE": str(folder / "cache"),
    }
    run, wanted = ".optiml/mean-row_mean", f"optiml-cuda[bot] @ {wheel.as_uri()}"
    steps = {
        "install": [python, "-I", "-m", "venv", str(home)],
        "install the wheel": [str(home / "bin" / "python"), "-I", "-m", "pip", "install", "--quiet", wanted],
        "away from the checkout": ["python", "-I", "-c", f"import engine, sys; sys.exit(not engine.__file__.startswith({str(home)!r}))"],
        "repository": ["git", "init", "--quiet"],
        "add": ["git", "add", "mean.cu"],
        "commit": ["git", "commit", "--quiet", "--message", "a kernel"],
        "optimize": ["optiml", "optimize", "mean.cu", "--budget", budget],
        "apply": ["git", "apply", f"{run}/best.patch"],
        "show": ["optiml", "show", run],
        "report": ["optiml", "report", run],
        "add the patch": ["git", "add", "mean.cu"],
        "hook": ["optiml-check", "mean.cu"],
        "selftest": ["optiml", "selftest", "small-blocks"],
        "action": ["optiml-action", "--help"],
    }  # fmt: skip
    begin = time.monotonic()
    for step, command in steps.items():
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            print(
                f"Python {name}: {step} failed: {' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}",
                flush=True,
            )
            return False
    if not (repository / run / "report.html").stat().st_size:
        print(f"Python {name}: the report is empty")
        return False
    print(f"Python {name}: {', '.join(steps)}: {time.monotonic() - begin:.0f} s", flush=True)
    return True


def size(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"


def tool(name: str) -> str:
    """A command of this environment."""
    return str(Path(sys.executable).with_name(name))


if __name__ == "__main__":
    sys.exit(main())
