"""What a kernel's object for the CPU path does to the checks that run it, read from its machine code.

The checks see a load or a store only where the compiler put a call before it. An attribute, a macro that hides one, a definition
of a callback or code that runs when the object is loaded can take those calls away. All of them show in the object, whatever the
spelling in the text.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_MAX_BYTES = 64 << 20
# Callbacks of ThreadSanitizer for accesses; entries, exits and fences say nothing of memory.
_ACCESS = re.compile(
    r"__tsan_(?:(?:unaligned_)?(?:volatile_)?(?:read|write|read_write)\d*|(?:read|write)_range|mem\w+|vptr_\w+)$"
)
_ATOMIC = re.compile(r"__tsan_atomic\d+_\w+$")
_CALLBACK = re.compile(r"__tsan_(?:init|func_entry|func_exit|atomic_(?:thread|signal)_fence)$")
_ABI = (
    "barrier warp activemask leave fence fence_block pause shared dynamic_shared dynamic_shared_bytes atomic_begin atomic_end access "
    "read_only copy_put copy_close copy_take matrix_product assert_fail clock thread_index block_index block_dim grid_dim"
)
_RUNTIME = frozenset("optiml_" + name for name in _ABI.split())  # runtime/abi.h
_PLAIN = frozenset({"memcpy", "memmove", "memset", "memcmp", "__cxa_finalize", "__gmon_start__", "__stack_chk_fail"})
_LINKER = frozenset({"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize", "__gmon_start__"})
# Functions of the C library's start files, of ThreadSanitizer's module and of OPTIML_ENTRY in include/optiml_cuda.h.
_HARNESS = re.compile(r"_init|_fini|(?:de)?register_tm_clones|__do_global_\w+|frame_dummy|optiml_entry_\d+")
# Calls __tsan_init; a constructor of its priority is put into it
_MODULE = re.compile(r"_sub_I_\d+_\d+|tsan\.module_ctor")
_KNOWN = f"{_HARNESS.pattern}|{_MODULE.pattern}|_Z\\w+(?:\\.\\w+)*"
_EXPORTED = re.compile(r"optiml_(?:entry|size_pointer)_\d+")


_MATHEMATICS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 exp10 expm1 fabs fdim floor fma fmax "
    "fmin fmod frexp hypot ilogb j0 j1 jn ldexp lgamma log log10 log1p log2 logb llrint llround lrint lround modf nearbyint "
    "nextafter pow remainder remquo rint round scalbln scalbn sin sincos sinh sqrt tan tanh tgamma trunc y0 y1 yn"
)


@dataclass(frozen=True)
class ObjectFacts:
    """What an object imports, defines and exports, how many initialisers it has, and which functions access memory unseen."""

    imports: frozenset[str]
    weak_imports: frozenset[str]
    plain_definitions: frozenset[str]  # functions without a mangled C++ name, but for the harness
    exports: frozenset[str]
    resolvers: frozenset[str]
    initialisers: int
    unseen: frozenset[str]


def facts_of(path: Path) -> ObjectFacts:
    """The facts of a shared object. Raises ValueError for what cannot be read: then nothing is known of it."""
    # What is known of an object is kept, so most runs read none.
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    if path.stat().st_size > _MAX_BYTES:
        raise ValueError("is too large")
    with path.open("rb") as stream:
        try:
            return _facts(ELFFile(stream))
        except (ELFError, KeyError, IndexError, TypeError, AttributeError, OSError) as error:
            raise ValueError(f"cannot be read: {type(error).__name__}") from None


def objection(original: ObjectFacts, candidate: ObjectFacts) -> str | None:
    """Why a candidate's object is refused beside its original's, in one sentence; None where nothing speaks against it."""
    if new := candidate.unseen - original.unseen:
        return f"accesses memory without the checks in {_names(new)}"
    if candidate.initialisers > original.initialisers:
        return "runs code when it is loaded"
    if new := candidate.plain_definitions - original.plain_definitions:
        return f"defines {_names(new)}, which device code cannot define"
    if new := candidate.exports - original.exports:
        return f"exports {_names(new)}"
    if new := candidate.resolvers - original.resolvers:
        return f"chooses {_names(new)} when it is loaded"
    if new := candidate.weak_imports - original.weak_imports - _LINKER:
        return f"tests whether {_names(new)} is defined"
    if other := [name for name in candidate.imports - original.imports if not _allowed(name)]:
        return f"calls {_names(other)}"
    return None


def _names(found: Collection[str]) -> str:
    clean = sorted(re.sub(r"[^\w.:]", "?", name)[:60] for name in found)
    return ", ".join(f"'{name}'" for name in clean[:3])


def _allowed(name: str) -> bool:
    callback = _ACCESS.match(name) or _ATOMIC.match(name) or _CALLBACK.match(name)
    return bool(callback) or name in _RUNTIME or name in _PLAIN or name in _mathematics()


@cache
def _mathematics() -> frozenset[str]:
    """The functions of libm that CUDA has too, in both precisions."""
    names = _MATHEMATICS.split()
    return frozenset(
        [*names, *(name + "f" for name in names), *(f"__{name}{f}_finite" for name in names for f in ("", "f"))]
    )


def _facts(elf: Any) -> ObjectFacts:
    dynamic, table = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".symtab")
    if dynamic is None or table is None:
        raise ValueError("has no symbols")
    defined = [s for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"]
    undefined = [s for s in dynamic.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name]
    functions = [s for s in defined if s["st_info"]["type"] in ("STT_FUNC", "STT_LOOS", "STT_GNU_IFUNC")]
    plain = {s.name for s in functions if not re.fullmatch(_KNOWN, s.name)}
    plain |= {s.name for s in defined if s.name.startswith(("__tsan_", "optiml_")) and not _EXPORTED.fullmatch(s.name)}
    unseen, added = _unseen(elf, functions)
    initialisers = sum(
        section["sh_size"]
        for section in elf.iter_sections()
        if section.name in (".init_array", ".preinit_array", ".ctors")
    )
    return ObjectFacts(
        frozenset(s.name for s in undefined),
        frozenset(s.name for s in undefined if s["st_info"]["bind"] == "STB_WEAK"),
        frozenset(plain),
        frozenset(
            s.name for s in dynamic.iter_symbols()
            if s["st_shndx"] != "SHN_UNDEF" and s.name and not _EXPORTED.fullmatch(s.name)
        ),
        frozenset(s.name for s in functions if s["st_info"]["type"] != "STT_FUNC"),
        initialisers // (elf.elfclass // 8) + added,
        unseen,
    )  # fmt: skip


def _unseen(elf: Any, functions: list[Any]) -> tuple[frozenset[str], int]:
    """Functions that access memory beyond their frame and constants without a callback for it, and constructors in the module's own."""
    # Brings the disassembler, for objects that are new.
    from engine.cpu.object_code import Code

    code = Code(elf)
    unseen, added = set(), 0
    for symbol in functions:
        if _HARNESS.fullmatch(symbol.name) or not symbol["st_size"]:
            continue
        used = code.function(symbol["st_value"], symbol["st_size"])
        if _MODULE.fullmatch(symbol.name):
            added += bool(used.calls - {"__tsan_init"} or used.inner_calls or used.accesses or used.locked)
            continue
        plain = any(_ACCESS.match(name) for name in used.calls)
        atomic = any(_ATOMIC.match(name) for name in used.calls)
        if (used.accesses and not plain) or (used.locked and not atomic):
            unseen.add(symbol.name)
    return frozenset(unseen), added
