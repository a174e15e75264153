"""What cannot run on the CPU, by name, before anything is compiled."""

import re

from engine.cpu.host_source import without_comments
from engine.cuda.standins import PREFIX, names_of

_FEATURES: tuple[tuple[str, str], ...] = (
    ("tensor cores (wmma) of less than eight bits", r"\bwmma\s*::\s*experimental\b|\b__(?:h|i|b|d)mma_"),
    ("Thrust", r"\bthrust::|#\s*include\s*[<\"]thrust/"),
    ("CuTe", r"\bcute::|#\s*include\s*[<\"]cute/"),
    (
        "cuRAND's generators but Philox and xorwow",
        r"\bcurandState(?:MRG32k3a|Mtgp32|(?:Scrambled)?Sobol(?:32|64))(?:_t)?\b|\bcurand_(?:mtgp32|poisson|discrete)\w*|\bcurandDirectionVectors\w+",
    ),
    ("textures", r"\btex(?:1D|2D|3D|Cubemap)\w*\s*[<(]|\btexture\s*<|\bcudaTextureObject_t\b"),
    ("surfaces", r"\bsurf(?:1D|2D|3D|Cubemap)\w*\s*[<(]|\bsurface\s*<|\bcudaSurfaceObject_t\b"),
    ("grid synchronisation", r"\bthis_grid\s*\(|\bgrid_group\b|\bthis_multi_grid\s*\(|\bmulti_grid_group\b"),
    ("thread block clusters", r"\bthis_cluster\s*\(|\bcluster_group\b|\b__cluster_dims__\b"),
    ("TMA", r"\bCUtensorMap\b|\bcp_async_bulk\w*"),
    ("cuda::barrier or cuda::pipeline", r"\bcuda::(?:barrier|pipeline|ptx)\b|#\s*include\s*[<\"]cuda/(?:barrier|pipeline|ptx)"),
    ("fp6 types", r"\b__nv_fp6\w*|#\s*include\s*[<\"]cuda_fp6\.h"),
)  # fmt: skip
_HEAP = re.compile(r"(?<![\w.>])(?:malloc|free)\s*\(|\bnew\s+[A-Za-z_]\w*\s*[\[(]|\bdelete\b")
_CLASS = re.compile(r"\b(?:class|struct)\s+\w+[^;{}()]*\{")
# Of CUB, include/cub has the primitives of a block and of a warp.
_CUB = re.compile(r"\bcub::(?:\w+::)*(\w+)|#\s*include\s*[<\"]cub/([\w/]+)")
_OUR_CUB = re.compile(
    r"Block(?:Reduce|Scan|Load|Store)(?:Algorithm)?|BLOCK_(?:REDUCE|SCAN|LOAD|STORE)_\w+|Warp(?:Reduce|Scan)|Sum|Max|Min|ArgMax|ArgMin|"
    r"KeyValuePair|cub|block/block_(?:reduce|scan|load|store)|warp/warp_(?:reduce|scan)"
)
# What `using namespace cub` may mean by a plain name.
_PLAIN_CUB = re.compile(r"\b(?:(?:Block|Warp|Device|Agent|Grid)[A-Z]\w*)\s*<")
_DECLARED = re.compile(r"\b(?:void|auto|bool|int|float|struct|class|T)\s+(\w+)\s*[({:]")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\\\n]|\\\r?\n|\\.)*)", re.M)
_CUTLASS = re.compile(r"\bcutlass::(?:\w+::)*(\w+)")
STANDIN_CUTLASS = f'"{PREFIX}cutlass.cuh"'  # as a line marker names it
_MOST_SHOWN = 3
_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in _FEATURES)


def unsupported(text: str) -> tuple[str, ...]:
    """Names of the features in CUDA source text that running on the CPU does not offer. Empty: it may be tried."""
    plain = without_comments(text)
    found = [name for name, pattern in _COMPILED if pattern.search(plain)]
    if _HEAP.search(_without_classes(plain)):
        found.append("a device heap")
    if _launches(plain):
        found.append("dynamic parallelism")
    cub = [m[1] or m[2] for m in _CUB.finditer(plain)]
    if re.search(r"\busing\s+namespace\s+cub\b", plain):
        own = {m[1] for m in _DECLARED.finditer(plain)}
        cub += [name for m in _PLAIN_CUB.finditer(plain) if (name := m[0].rstrip("< ")) not in own]
    found += [f"CUB's {name}" for name in dict.fromkeys(n for n in cub if not _OUR_CUB.fullmatch(n))][:_MOST_SHOWN]
    if _CUTLASS.search(plain):
        # Ours stands in for what kernels without tensor cores take from it.
        there = names_of("cutlass.cuh") if STANDIN_CUTLASS in text else frozenset()
        missing = dict.fromkeys(m[0] for m in _CUTLASS.finditer(plain) if m[1] not in there)
        found += [f"CUTLASS's {name}" for name in [*missing][:_MOST_SHOWN]]
    return tuple(found)


def _launches(plain: str) -> bool:
    """Whether device code launches kernels: by itself, or by a macro that does. A macro that only the host calls does nothing here."""
    macros = {m[1] for m in _MACRO.finditer(plain) if "<<<" in m[2]}
    code = _MACRO.sub(" ", plain)
    return "<<<" in code or any(re.search(rf"\b{name}\s*\(", code) for name in macros)


def _without_classes(plain: str) -> str:
    """The text without the bodies of classes: what no kernel here calls of them does not count."""
    kept, at = [], 0
    for match in _CLASS.finditer(plain):
        if match.start() < at:
            continue
        kept.append(plain[at : match.end()])
        depth, at = 1, match.end()
        while depth and at < len(plain):
            depth += (plain[at] == "{") - (plain[at] == "}")
            at += 1
    return "".join([*kept, plain[at:]])
