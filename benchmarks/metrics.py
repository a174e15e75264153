"""Print the sizes and couplings of the code: `make metrics`. `tests/test_metrics.py` keeps what was reached."""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "engine"
_ANALYSIS = ("engine/rules/", "engine/rewrite/", "engine/cuda/", "engine/spec/usage.py")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Module:
    """One parsed module: its dotted name, its path from the repository's root, its text."""

    name: str
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The statements of the tree, and what is no expression within them: there are definitions and imports."""
        found: list[ast.AST] = []
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, ast.expr | ast.expr_context):
                found.append(node)
                waiting += ast.iter_child_nodes(node)
        return found

    @cached_property
    def comments(self) -> Mapping[int, str]:
        """Comment by line; lines that hold nothing else are those of `comment_lines`."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}

    @property
    def lines(self) -> int:
        """Lines of the file, empty ones included, as `wc -l` counts."""
        return self.text.count("\n")


@dataclass(frozen=True)
class Metrics:
    """Every number of the table, with what stands behind it."""

    analysis_lines: int
    engine_lines: int
    package_cycles: list[list[str]]
    local_imports: int
    local_imports_without_reason: list[str]
    functions_with_8_parameters: list[str]
    functions_with_7_parameters: list[str]
    rules_import_lines: int
    modules_of_one_name: dict[str, list[str]]
    classes_of_one_name: dict[str, list[str]]


def load(root: Path = ROOT, package: str = PACKAGE) -> list[Module]:
    """Read every module of a package, sorted by path."""
    found = []
    for path in sorted((root / package).rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found.append(Module(".".join(parts), path.relative_to(root).as_posix(), path.read_text()))
    return found


def room(module: str) -> str:
    """The package below the top one that a module is in; for a module at the top, its own name."""
    return ".".join(module.split(".")[:2])


def imports(modules: Sequence[Module]) -> Graph:
    """Which room imports which, imports for type checkers and within functions included."""
    known = {m.name for m in modules}
    edges: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in module.nodes:
            for target in _imported(node):
                name = target if target in known else target.rpartition(".")[0]
                if name in known and room(name) != room(module.name):
                    edges[room(module.name)].add(room(name))
    return edges


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            yield f"{node.module}.{alias.name}"
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name


def cycles(edges: Graph) -> list[list[str]]:
    """Sets of rooms that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen: set[str] = set()
        todo = list(edges[start])
        while todo:
            if (room := todo.pop()) not in seen:
                seen.add(room)
                todo += edges.get(room, ())
        reached[start] = seen
    found = {
        tuple(sorted({a} | {b for b in reached[a] if a in reached.get(b, ())})) for a in reached if a in reached[a]
    }
    return [list(group) for group in sorted(found)]


def local_imports(module: Module) -> list[tuple[int, bool]]:
    """Line of each import within a function, and whether a comment beside or above it (or its block) gives a reason."""
    found = {(n.lineno, n.end_lineno or 0) for n in _within_functions(module.tree, False)}
    said: dict[int, bool] = {}
    lines = module.text.splitlines()
    block: dict[int, bool] = {}  # by last line: whether the block of imports that ends there has a reason
    for first, last in sorted(found):
        above = block.get(first - 1, False) or lines[first - 2].lstrip().startswith("#")
        said[first] = above or any(_is_reason(module.comments.get(n, "")) for n in range(first, last + 1))
        block[last] = above
    return sorted(said.items())


def _within_functions(node: ast.AST, inside: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            if inside:
                yield child
        elif not isinstance(child, ast.expr):  # no expression holds one
            yield from _within_functions(child, inside or isinstance(child, _FUNCTIONS))


def _is_reason(comment: str) -> bool:
    text = comment.lstrip("# ")
    return bool(text) and (not text.startswith(("noqa", "type:")) or " - " in text)


def wide_functions(modules: Sequence[Module], least: int) -> list[str]:
    """Functions with at least so many parameters; `self` and `cls` of a method do not count."""
    found = []
    for module in modules:
        for owner in module.nodes:
            for node in ast.iter_child_nodes(owner):
                if (
                    isinstance(node, _FUNCTIONS)
                    and (count := _parameters(node, isinstance(owner, ast.ClassDef))) >= least
                ):
                    found.append(f"{module.path}:{node.lineno} {node.name} ({count})")
    return found


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool) -> int:
    named = [*node.args.posonlyargs, *node.args.args]
    if method and named and named[0].arg in ("self", "cls"):
        named.pop(0)
    return len(named) + len(node.args.kwonlyargs)


def modules_of_one_name(modules: Sequence[Module]) -> dict[str, list[str]]:
    """Modules of different folders that share a file name; a verb in `commands` is named after what it runs."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        if not module.path.endswith("__init__.py") and not module.path.startswith(f"{PACKAGE}/commands/"):
            by_name[Path(module.path).name].append(module.path)
    return {name: paths for name, paths in sorted(by_name.items()) if len(paths) > 1}


def classes_of_one_name(modules: Sequence[Module]) -> dict[str, list[str]]:
    """Classes that share a name."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                by_name[node.name].append(f"{module.path}:{node.lineno}")
    return {name: paths for name, paths in sorted(by_name.items()) if len(paths) > 1}


def measure(root: Path = ROOT) -> Metrics:
    """All numbers, from the tree as it is."""
    modules = load(root)
    local = [(m, line, reason) for m in modules for line, reason in local_imports(m)]
    rules = [m for m in modules if m.path.startswith("engine/rules/")]
    return Metrics(
        analysis_lines=sum(m.lines for m in modules if m.path.startswith(_ANALYSIS)),
        engine_lines=sum(m.lines for m in modules),
        package_cycles=cycles(imports(modules)),
        local_imports=len(local),
        local_imports_without_reason=[f"{m.path}:{line}" for m, line, reason in local if not reason],
        functions_with_8_parameters=wide_functions(modules, 8),
        functions_with_7_parameters=wide_functions(modules, 7),
        rules_import_lines=sum(
            (n.end_lineno or n.lineno) - n.lineno + 1
            for m in rules
            for n in m.nodes
            if isinstance(n, ast.Import | ast.ImportFrom)
        ),
        modules_of_one_name=modules_of_one_name(modules),
        classes_of_one_name=classes_of_one_name(modules),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the numbers, and with `--list` what stands behind them; `--json` prints both for programs."""
    parser = argparse.ArgumentParser(prog="make metrics", description=__doc__)
    parser.add_argument("--list", action="store_true", help="list functions, imports and names behind the numbers")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parsed = parser.parse_args(arguments)
    measured = asdict(measure())
    if parsed.json:
        json.dump(measured, sys.stdout, indent=1)
        print()
        return 0
    for name, value in measured.items():
        print(f"{name.replace('_', ' '):32} {value if isinstance(value, int) else len(value)}")
        if parsed.list and not isinstance(value, int):
            for item in value:
                print("   ", f"{item}: {', '.join(value[item])}" if isinstance(value, dict) else item)
    return 0


if __name__ == "__main__":
    sys.exit(main())
