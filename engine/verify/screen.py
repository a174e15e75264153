"""What a candidate may change at all, read from its text: the device code of its kernels, and how they are launched.

Running a candidate shows what it does on some inputs; its text shows what it could do otherwise: keep results between
launches, look at the clock, behave in another way under the user's compiler, change a kernel that nobody verifies.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from engine.cuda.closure import closure
from engine.cuda.constants import words
from engine.cuda.items import Item, Token, directive_parts, items_of
from engine.cuda.parse import parse
from engine.cuda.phases import NVCC, Form, Reading, as_it_stands, form_of, forms_of
from engine.errors import OptimlError
from engine.model import Program
from engine.settings.suffixes import SOURCES
from engine.spec.constant_memory import changed_declaration
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import specs_in
from engine.spec.tables import split_kernel, tables_of
from engine.verify.allowed_assembly import ADDRESS, allowed_statements
from engine.verify.compiler_arms import compiler_arms
from engine.verify.compiler_names import COMPILER_MACROS, names_by_compiler
from engine.verify.constant_tables import is_constant_table, is_integer_constant
from engine.verify.defences import ALL, Defences
from engine.verify.fixed_arrays import outgrown_array
from engine.verify.launched import counts, uninstantiated, unlaunched
from engine.verify.lexical import added_attribute, added_string, added_talk, odd_form
from engine.verify.loop_counters import added_overflow
from engine.verify.promises import NAME as PROMISE
from engine.verify.promises import promises_hold

_BY_COMPILER = "depends on how it is compiled, so the checked code may differ from the user's build"
# Names that a candidate may not bring in, each with what they would allow. The original may have them.
_FORBIDDEN: tuple[tuple[str, str], ...] = (
    (r"asm|__asm__|__asm", "uses inline assembly, which cannot be screened"),
    (r"printf|vprintf|puts", "prints"),
    (r"__trap|__brkpt|abort|exit|__prof_trigger", "aborts the whole launch"),
    (r"malloc|free|new|delete|alloca|__nv_aligned_device_malloc", "allocates memory on the device heap"),
    (r"cuda[A-Z]\w+|cu(?:Launch|Mem|Ctx|Stream|Event|Graph|Module)\w*", "calls the CUDA runtime from device code"),
    (r"__nvvm_\w+|__builtin_\w+|__nv_\w+|__pm\d|__isShared|__isGlobal", "calls compiler internals"),
    (rf"{COMPILER_MACROS}|__DATE__|__TIME__|__TIMESTAMP__|__FILE__|__LINE__|__COUNTER__|__has_include\w*|_Pragma|__func__|"
     r"__FUNCTION__|__PRETTY_FUNCTION__",
     _BY_COMPILER),
    (r"(?i:\w*optiml\w*)", "refers to this tool"),
    (r"__managed__", "keeps memory that outlives a launch"),
    (r"reinterpret_pointer\w*|__cvta_\w+|__stwt|__ldcv", "bypasses the caches or the address spaces"),
    (r"createpolicy\w*|__prefetch_global_l2_evict_last|cudaAccess\w*|access_property|associate_access_property|annotated_ptr|apply_access_property",
     "keeps data in the persisting part of L2"),
)  # fmt: skip
_RULES = tuple((re.compile(rf"(?:{pattern})\Z"), what) for pattern, what in _FORBIDDEN)
# Headers for device code; none of them makes host code behave in another way.
_HEADERS = re.compile(
    r"<(?:cuda_runtime\.h|cuda_fp16\.h|cuda_bf16\.h|cuda_pipeline\.h|cooperative_groups\.h|cooperative_groups/\w+\.h|"
    r"cub/[\w/]+\.cuh|mma\.h|math_constants\.h|vector_types\.h|cuda/(?:std/\w+|pipeline|barrier))>\Z"
)
_DEVICE = frozenset({"__global__", "__device__"})
_OTHERS = "code other than the kernel and its launch uses"


def screen(original: Program, candidate: Program, spec: KernelSpec, defences: Defences = ALL) -> str | None:
    """Why a candidate is refused for its text alone, in one sentence; None where nothing speaks against it.

    Allowed are changes of the spec's kernels and of what only they use, new device functions, types and constants, and the
    launches of these kernels. `spec` is the original's. Raises SourceError for text that cannot be read.
    """
    if candidate.kernel_file != original.kernel_file or set(candidate.files) != set(original.files):
        return "adds or removes files"
    if arms := compiler_arms(original, candidate):
        reasons = (screen(original, arm, spec, defences) for arm in arms)
        return next((reason for reason in reasons if reason), None)
    try:
        for path in sorted(candidate.files):
            before, after = original.files[path], candidate.files[path]
            if before != after:
                reason = _file(path, before.decode(), after.decode(), original, spec, defences)
                if reason:
                    return reason if path == original.kernel_file else f"{path}: {reason}"
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    reason = (
        _signature(original, candidate, spec) or _constants(original, candidate, spec) or _spec(original, candidate)
    )
    if reason or not defences.counters:
        return reason
    return added_overflow(original, candidate, spec) or outgrown_array(original, candidate, spec)


def _file(
    path: str, before: str, after: str, original: Program, spec: KernelSpec, defences: Defences
) -> str | None:  # fmt: skip
    if path.endswith(".toml"):
        try:
            same = _without_launch(tomllib.loads(before)) == _without_launch(tomllib.loads(after))
        except tomllib.TOMLDecodeError:
            same = False
        return None if same else "changes the kernel spec beyond its launch"
    if not path.endswith(SOURCES):
        return "changes a file that is neither source nor spec"
    if defences.forms and (reason := odd_form(before, after)):
        return reason
    # What two compilers read differently already in the original is screened as each of them reads it.
    for reading, old, new in forms_of(before, after) if defences.forms else as_it_stands(before, after):
        reason = added_talk(old, new) or added_attribute(old, new)
        if reason := reason or _Items(old, new, original, spec, reading).reason() or added_string(old, new):
            return reason
    return None


def _without_launch(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_launch(v) for k, v in value.items() if k != "launch"}
    return [_without_launch(v) for v in value] if isinstance(value, list) else value


def _spec(original: Program, candidate: Program) -> str | None:
    def plain(program: Program) -> list[KernelSpec]:
        specs = specs_in(program, None)
        return [replace(s, origin="", steps=tuple(replace(step, launch=None) for step in s.steps)) for s in specs]

    if original.data == candidate.data:
        return None
    try:
        before = plain(original)
    except OptimlError:
        return None  # the spec stands elsewhere, and what is here is none
    try:
        same = before == plain(candidate)
    except OptimlError:
        same = False
    return None if same else "changes the kernel spec: only its launch may follow the code"


def _signature(original: Program, candidate: Program, spec: KernelSpec) -> str | None:
    old, new = parse(original.data, original.kernel_file), parse(candidate.data, candidate.kernel_file)
    for step in spec.steps:
        try:
            before = [(p.base, p.pointer) for p in old.kernel(step.kernel).parameters]
        except KeyError:
            continue  # in a header, or in what the grammar does not read; the machine code is then all there is
        try:
            after = [(p.base, p.pointer) for p in new.kernel(step.kernel).parameters]
        except KeyError:
            return f"removes the kernel '{step.kernel}'"
        if before != after:
            return f"changes the parameters of '{step.kernel}', which its callers rely on"
    return None


def _constants(original: Program, candidate: Program, spec: KernelSpec) -> str | None:
    changed = changed_declaration(original, candidate, [a.name for a in spec.symbols]) if spec.symbols else ""
    return f"changes the declaration of '{changed}', which host code fills" if changed else None


class _Before:
    """What is known of one file before, and of the program that it is part of."""

    def __init__(self, code: str, original: Program, spec: KernelSpec, reading: Reading) -> None:
        self.items = items_of(code)
        self.names = {t.text for item in self.items for t in _flat(item.tokens)}
        self.kernels = kernels = {step.kernel.rpartition("::")[2] for step in spec.steps}
        self.known = {name for item in self.items for name in item.defines}
        self.ours = _reachable(self.items, kernels)
        texts = [
            form_of(data.decode("utf-8", "replace"), reading).code
            for path, data in original.files.items()
            if not path.endswith(".toml")
        ]
        everything = [item for text in texts for item in items_of(text)]
        self.by_compiler = names_by_compiler(texts, kernels)
        others = [
            item
            for item in everything
            if item.kind == "function" and not set(item.defines) & kernels and not set(item.defines) <= self.ours
        ]
        # Constants that only name the instance of our kernel at its launch are the launch's: that instance is what is verified.
        used = {t.text for item in others for t in _flat(uninstantiated(unlaunched(item, kernels), spec))}
        used |= {t.text for item in everything if _is_host_variable(item) for t in _flat(item.tokens)}
        used |= _in_other_specs(original, spec, kernels)
        self.foreign = _meant(used, everything)
        self.shared = {t.text for item in others if _is_device(item) for t in _flat(item.tokens)} - kernels
        device = [item for item in self.items if _is_device(item)]
        self.launches = sum(counts(item.tokens, ("<", "<", "<")) for item in device)  # from device code
        self.keeps = any(_keeps(item.tokens[len(item.head) - 1 :]) for item in device)
        self.used = _used(self.items, self.ours)


@dataclass(frozen=True)
class _Asked:
    """What `_Before` follows from: it is the same for every candidate of a program."""

    code: str
    digest: str
    reading: Reading
    spec: KernelSpec = field(hash=False)
    original: Program = field(compare=False)


@lru_cache(maxsize=16)
def _before(asked: _Asked) -> _Before:
    return _Before(asked.code, asked.original, asked.spec, asked.reading)


class _Items:
    """One file's items before and after."""

    def __init__(self, before: Form, after: Form, original: Program, spec: KernelSpec, reading: Reading) -> None:
        self.before = _before(_Asked(before.code, original.digest, reading, spec, original))
        self.old, self.new, self.spec = self.before.items, items_of(after.code), spec

    def reason(self) -> str | None:
        for item in self.new:
            reason = self._added_names(item)
            if reason:
                return reason
        added = _used(self.new, _reachable(self.new, self.before.kernels)) - self.before.used
        if odd := sorted(added & self.before.by_compiler):
            return f"{_BY_COMPILER} ('{odd[0][:60]}')"
        return self._directives() or self.outside()

    # ---- names and directives that come in

    def _added_names(self, item: Item) -> str | None:
        words = {t.text for t in item.head}
        lasting = (
            item.kind == "variable" and words & {"__device__", "__managed__"} and not words & {"const", "constexpr"}
        )
        if lasting and not set(item.defines) <= self.before.known:
            return f"keeps a variable that outlives a launch ('{item.defines[0][:60] if item.defines else ''}')"
        copies, _ = allowed_statements(item.tokens)
        for token in _flat(item.tokens):
            if token.kind != "name" or token.text in self.before.names:
                continue
            if token.text == PROMISE and promises_hold(item, self.spec):
                continue
            if token.start in copies or (copies and token.text == ADDRESS):
                continue
            for pattern, what in _RULES:
                if pattern.match(token.text) and not _is_attribute(token.text, item):
                    return f"{what} ('{token.text[:60]}')"
        if item.kind == "function" and _is_device(item):
            body = [t for t in item.tokens if t.kind != "directive"][len(item.head) - 1 :]
            if counts(body, ("<", "<", "<")) > self.before.launches:
                return "launches a kernel from device code"
            if _keeps(body) and not self.before.keeps:
                return "keeps a variable that outlives a launch ('static')"
        return None

    def _directives(self) -> str | None:
        def of(items: Sequence[Item]) -> Counter[tuple[str, str]]:
            found: Counter[tuple[str, str]] = Counter()
            for item in items:
                for token in item.tokens:
                    if token.kind == "directive":
                        found[directive_parts(token.text)] += 1
            return found

        for word, rest in of(self.new) - of(self.old):
            if word == "pragma" and re.match(r"(?:unroll|nounroll)\b", rest):
                continue
            if word == "include" and _HEADERS.match(rest):
                continue
            if word == "define":
                name = re.match(r"\w*", rest)
                if "##" in rest or "#" in rest:
                    return "adds a macro that pastes or quotes its arguments, which hides what it does"
                if name and (name[0] not in self.before.names or self._constant(name[0], rest)):
                    continue
                return f"redefines '{name[0][:60]}', which {_OTHERS}" if name else "redefines a name that the file uses"
            if word == "undef" or word == "define":
                return "redefines a name that the file uses"
            return f"adds or changes the directive '#{word[:20]} {rest[:60]}'"
        return None

    def _constant(self, name: str, rest: str) -> bool:
        """Whether a macro is a number that only our kernels and launches use, and stays one."""
        return name not in self.before.foreign and re.fullmatch(r"\w+\s+\(?\s*\d+[uU]?\s*\)?", rest) is not None

    # ---- what stands outside of our device functions

    def outside(self) -> str | None:
        before, after = list(self._fixed(self.old)), list(self._fixed(self.new))
        if before == after:
            return None
        missing, extra = Counter(before) - Counter(after), Counter(after) - Counter(before)
        named = next(iter([*missing, *extra]), None)
        if named is None:
            return "moves code outside its kernels"
        kind, names, _ = named
        what = f" ('{names[0][:60]}')" if names else ""
        if kind == "device":
            return f"changes device code that other kernels use, or that does not belong to the kernel{what}"
        return f"changes host code or declarations outside the kernel and its launch{what}"

    def _fixed(self, items: Sequence[Item]) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """What has to stay as it is, in order: (kind, names, text of its tokens)."""
        first = items is self.old
        for item in items:
            if item.kind == "directive":
                if item.word == "pragma" or (item.word == "include" and not self._has(item)):
                    continue  # looked at as directives
                if item.word == "define":
                    continue
                yield "host", (), tuple(t.text for t in item.tokens)
            elif item.kind == "function" and _is_device(item):
                mine = (
                    item.defines
                    and set(item.defines) <= self.before.ours
                    and not set(item.defines) & self.before.shared
                )
                is_new = not first and not set(item.defines) & self.before.known
                if not mine and not is_new:
                    yield "device", item.defines, tuple(t.text for t in item.tokens)
            elif item.kind == "function":
                yield "host", item.defines, tuple(t.text for t in unlaunched(item, self.before.kernels))
            elif self._is_new(item, first) or self._is_constant(item, first) or self._is_table(item, first):
                continue
            else:
                yield "host", item.defines, tuple(t.text for t in item.tokens)

    def _has(self, item: Item) -> bool:
        return any(i.word == "include" and i.rest == item.rest for i in self.old)

    def _is_new(self, item: Item, first: bool) -> bool:
        if first or not item.defines or set(item.defines) & self.before.known:
            return False
        if item.kind not in ("type", "using", "typedef", "other"):
            return False
        # A declaration of a device function, or a type or alias of the candidate's own.
        if item.kind == "type":
            return [t.text for t in item.tokens[-2:]] == ["}", ";"]  # and no object of it, which host code would make
        return item.kind != "other" or bool({t.text for t in item.head} & _DEVICE)

    def _is_table(self, item: Item, first: bool) -> bool:
        return not first and not set(item.defines) & self.before.known and is_constant_table(item, self.new)

    def _is_constant(self, item: Item, first: bool) -> bool:
        """An integer constant that only our kernels and their launches use may change; a new constant may come."""
        words = {t.text for t in item.head}
        if item.kind != "variable":
            return False
        if words & {"__device__", "__managed__", "__shared__", "extern", "volatile"} and "constexpr" not in words:
            return False
        if not ({"constexpr", "const"} & words):
            return False
        if any(t.kind == "string" or (t.kind == "name" and t.text in ("new", "asm")) for t in item.tokens):
            return False
        if first or set(item.defines) & self.before.known:
            return not set(item.defines) & self.before.foreign
        return "constexpr" in words or is_integer_constant(item, self.new)


def _flat(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens, with the names in directives as tokens of their own."""
    for token in tokens:
        if token.kind == "directive":
            for match in re.finditer(r"[A-Za-z_]\w*", directive_parts(token.text)[1]):
                yield Token("name", match[0], token.start, token.end)
        else:
            yield token


def _is_attribute(name: str, item: Item) -> bool:
    # `__nv_bfloat16` and its intrinsics are types, not internals; `free` and `new` may be names of fields.
    return name.startswith("__nv_bfloat16") or name.startswith("__nv_cvt") or name.startswith("__nv_fp")


def _is_device(item: Item) -> bool:
    words = {t.text for t in item.head}
    return item.kind == "function" and bool(words & _DEVICE) and "__host__" not in words


def _is_host_variable(item: Item) -> bool:
    """Whether it is memory of the host's, which other files may know by its extent."""
    words = {t.text for t in item.head}
    return item.kind == "variable" and not words & {"const", "constexpr", "__device__", "__constant__", "__managed__"}


def _in_other_specs(original: Program, spec: KernelSpec, kernels: set[str]) -> frozenset[str]:
    """The names in template arguments and launches that other specs of the file declare: they follow its constants as code does."""
    path = spec.origin.rpartition(":")[0]
    files = {original.kernel_file: original.data}
    if path.endswith(".toml") and path in original.files:
        files[path] = original.files[path]
    return _declared(tuple(files.items()), path, spec.origin, frozenset(kernels))


@lru_cache(maxsize=16)
def _declared(files: tuple[tuple[str, bytes], ...], path: str, own: str, kernels: frozenset[str]) -> frozenset[str]:
    program = Program(dict(files), files[0][0])
    try:
        tables = tables_of(program, path)
    except OptimlError:  # the spec came from elsewhere, and what these files say of others is not known
        return frozenset(words(" ".join(data.decode("utf-8", "replace") for _, data in files[1:])))
    texts: list[str] = []
    for table in tables:
        if table.origin == own:
            continue
        chain = table.data.get("chain")
        for entry in chain if isinstance(chain, list) else ({**table.data, "kernel": table.kernel},):
            if isinstance(entry, dict):
                name, arguments = split_kernel(str(entry.get("kernel")))
                texts.append(arguments)
                if name.rpartition("::")[2] not in kernels:
                    texts += _strings(entry.get("launch"))
    return frozenset(words(" ".join(texts)))


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for one in value for text in _strings(one)]
    return [value] if isinstance(value, str) else []


def _keeps(tokens: Sequence[Token]) -> bool:
    """Whether a body declares a static variable that is neither shared nor a constant."""
    for i, token in enumerate(tokens):
        if token.text == "static":
            near = {t.text for t in tokens[max(0, i - 2) : i + 4]}
            if not near & {"__shared__", "constexpr"}:
                return True
    return False


def _used(items: Sequence[Item], functions: set[str]) -> set[str]:
    """The names in the bodies of these functions."""
    return {t.text for item in items if set(item.defines) & functions for t in _flat(item.tokens) if t.kind == "name"}


def _reachable(items: Sequence[Item], kernels: set[str]) -> set[str]:
    """Names of device functions that the kernels use, directly or not; the kernels among them."""
    uses: dict[str, set[str]] = {}
    for item in items:
        if _is_device(item):
            for name in item.defines:
                uses.setdefault(name, set()).update(t.text for t in _flat(item.tokens) if t.kind == "name")
    return closure(kernels & uses.keys(), lambda name: uses[name] & uses.keys())


def _meant(used: set[str], items: Sequence[Item]) -> set[str]:
    """The names in use, and those that macros and variables among them are made of."""
    made_of: dict[str, set[str]] = {}
    for item in items:
        defines = item.defines
        if item.kind == "directive":
            named = re.match(r"\w+", item.rest) if item.word == "define" else None
            defines = (named[0],) if named else ()
        elif item.kind != "variable":
            continue
        for name in defines:
            made_of.setdefault(name, set()).update(t.text for t in _flat(item.tokens))
    return closure(used, lambda name: made_of.get(name, ()))


def host_difference(before: str, after: str, original: Program, spec: KernelSpec) -> str | None:
    """Why two texts differ beside the spec's kernels, what they alone use, and their launches; None where they do not.

    For texts after preprocessing, where macros and conditions are gone. `original` is the program before it.
    """
    old, new = form_of(before, NVCC), form_of(after, NVCC)
    return None if old.code == new.code else _Items(old, new, original, spec, NVCC).outside()
