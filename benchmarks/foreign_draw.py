"""Draw the kernels of the foreign set: the same number from each repository, by a seed, from all definitions in its folders.

    python benchmarks/foreign_draw.py --checkouts DIR --write benchmarks/foreign.toml

`DIR` holds a checkout `owner__name` of each repository of `REPOSITORIES`. A definition is what the text shows outside of comments and
macros: `__global__`, a name, parameters, a body. Whether the tool can do anything with it plays no part. Half of each repository's
draw is marked `held_out`: looked at once, when the work is done. Exit code 0.

    python benchmarks/foreign_draw.py --checkouts DIR --seed 101 --each 4 --besides benchmarks/foreign.toml --write LIST

draws a fresh list, for one measurement: from the repositories of `OTHERS` too, nothing that another list has, nothing held out.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

SEED = 24
EACH = 6  # of a repository; ours: 60 in all
Place = tuple[str, str]  # file and kernel
ENDINGS = (".cu", ".cuh", ".h", ".hpp", ".hxx")
# The folders that the issue names, or else those that hold the repository's own kernels.
REPOSITORIES: dict[str, tuple[str, ...]] = {
    "karpathy/llm.c": ("dev/cuda", "llmc"),
    "NVIDIA/cuda-samples": ("Samples/0_Introduction", "Samples/3_CUDA_Features", "Samples/6_Performance"),
    "yuhc/gpu-rodinia": ("cuda",),
    "Dao-AILab/flash-attention": ("csrc/layer_norm", "csrc/flash_attn", "hopper"),
    "ggml-org/ggml": ("src/ggml-cuda",),
    "gunrock/gunrock": ("include", "examples", "unittests"),
    "opencv/opencv_contrib": ("modules",),
    "facebookresearch/xformers": ("xformers/csrc",),
    "flashinfer-ai/flashinfer": ("include/flashinfer",),
    "NVIDIA/apex": ("csrc", "apex/contrib/csrc"),
}
OTHERS: dict[str, tuple[str, ...]] = {
    "bytedance/lightseq": ("lightseq/csrc/kernels", "lightseq/inference/kernels"),
    "turboderp/exllamav2": ("exllamav2/exllamav2_ext/cuda",),
    "dmlc/dgl": ("src", "graphbolt/src"),
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n]*\\\n)*[^\n]*", re.M)
_NAMED = re.compile(r"([A-Za-z_]\w*)\s*\(")
_NO_NAME = re.compile(
    r"_*launch_bounds_*|__attribute__|__cluster_dims__|__align__|__declspec|__maxnreg__|\w*_LAUNCH_BOUNDS", re.I
)


def definitions(text: str) -> Iterator[str]:
    """The names of the kernels that a file defines, one for each definition."""
    text = _DEFINE.sub("", _COMMENT.sub(" ", text))
    for found in re.finditer(r"\b__global__\b", text):
        at = found.end()
        while (
            (named := _NAMED.search(text, at))
            and ";" not in text[at : named.start()]
            and "{" not in text[at : named.start()]
        ):
            at = _behind(text, named.end())
            if not _NO_NAME.fullmatch(named[1]):
                if text[at:].lstrip().startswith("{"):
                    yield named[1]
                break


def _behind(text: str, at: int) -> int:
    """The position behind the bracket that closes the one before `at`."""
    depth = 1
    while depth and at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def defined(root: Path, folders: Sequence[str]) -> list[Place]:
    """Every kernel that files of these folders define, by file and name."""
    return sorted(
        {
            (path.relative_to(root).as_posix(), name)
            for folder in folders
            for path in (root / folder).rglob("*")
            if path.suffix in ENDINGS and path.is_file()
            for name in definitions(path.read_text(encoding="utf-8", errors="replace"))
        }
    )


def drawn(places: Sequence[Place], chance: random.Random, each: int, *, halved: bool) -> list[tuple[str, str, bool]]:
    """(file, kernel, held out) of one repository's draw, by file and name; none is held out unless `halved`."""
    chosen = chance.sample(places, min(each, len(places)))
    held = set(chance.sample(chosen, len(chosen) // 2)) if halved else set()
    return [(*place, place in held) for place in sorted(chosen)]


def main(given: Sequence[str] | None = None) -> int:
    """Draw and write the list."""
    parser = argparse.ArgumentParser(description="Draw the kernels of the foreign set.")
    parser.add_argument(
        "--checkouts", type=Path, required=True, metavar="DIR", help="holds owner__name of each repository"
    )
    parser.add_argument("--write", type=Path, required=True, help="the list to write")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--each", type=int, default=EACH, help="kernels of a repository")
    parser.add_argument("--besides", type=Path, metavar="LIST", help="a fresh draw, of kernels that this list lacks")
    options = parser.parse_args(given)
    besides: set[tuple[str, Place]] = set()
    if options.besides:
        listed = tomllib.loads(options.besides.read_text(encoding="utf-8"))["repository"]
        besides = {(each["name"], (k["file"], k["kernel"])) for each in listed for k in each["kernels"]}
    lines = [f"# Written by benchmarks/foreign_draw.py (seed {options.seed}); not by hand."]
    for repository, folders in {**REPOSITORIES, **(OTHERS if options.besides else {})}.items():
        root = options.checkouts / repository.replace("/", "__")
        asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        places = [place for place in defined(root, folders) if (repository, place) not in besides]
        chance = random.Random(f"{options.seed} {repository}")
        lines += ["", "[[repository]]", f'name = "{repository}"', f'commit = "{commit}"', "kernels = ["]
        for file, name, held in drawn(places, chance, options.each, halved=not options.besides):
            lines.append(f'    {{ file = "{file}", kernel = "{name}", held_out = {str(held).lower()} }},')
        lines.append("]")
    options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
