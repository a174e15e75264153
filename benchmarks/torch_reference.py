"""References for `optiml generate --reference` out of tasks that others wrote in PyTorch: leetgpu-challenges and KernelBench.

A reference is one file, made at run time from a checkout; nothing of a checkout is kept here. From leetgpu-challenges it holds the
challenge's `reference_impl` with what that uses, from KernelBench the classes and the arguments of the model; below them stands one
function with the task's name and parameters. Three things change in what is taken over, so that a reference can be asked in float64 as
well (`engine.generate.oracle`): `float()` and `torch.float32` become the type of the inputs, and assertions about types go.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.generate.task import Task, TaskArgument

# What a challenge's arguments may be for the draw (types of ctypes).
_TYPES = frozenset(
    {"c_float", "c_double", "c_int", "c_int32", "c_int64", "c_uint32", "c_uint8", "c_ubyte", "c_int8", "c_uint16", "c_size_t"}
)  # fmt: skip
_TORCH: Mapping[str, str] = {
    "int8": "int8", "uint8": "uint8", "int16": "int16", "uint16": "uint16", "int32": "int32", "uint32": "uint32",
    "int64": "int64", "uint64": "uint64", "bool": "bool",
}  # fmt: skip


class ReferenceTextError(Exception):
    """A task of a checkout that makes no reference, and why."""


# ---- leetgpu-challenges


def leetgpu_tasks(checkout: Path) -> list[str]:
    """Challenges with exactly one buffer that is written, and arguments that are numbers or buffers of numbers; sorted."""
    found = []
    for path in checkout.glob("challenges/*/*/challenge.py"):
        signature = _method(_challenge(path), "get_solve_signature").body[-1]
        if not isinstance(signature, ast.Return) or not isinstance(signature.value, ast.Dict):
            continue
        written, fits = 0, True
        for value in signature.value.values:
            if not isinstance(value, ast.Tuple) or len(value.elts) != 2:
                fits = False
                continue
            kind = ast.unparse(value.elts[0]).replace("ctypes.", "")
            pointer = kind.startswith("POINTER(")
            fits = fits and kind.removeprefix("POINTER(").removesuffix(")") in _TYPES
            written += pointer and ast.literal_eval(value.elts[1]) != "in"
        if fits and written == 1:
            found.append(path.parent.name)
    return sorted(found)


def leetgpu_reference(checkout: Path, name: str, task: Task) -> str:
    """The text of a reference file. Raises ReferenceTextError."""
    paths = sorted(checkout.glob(f"challenges/*/{name}/challenge.py"))
    if len(paths) != 1:
        raise ReferenceTextError(f"there is no challenge {name}")
    tree = ast.parse(paths[0].read_text(encoding="utf-8"))
    challenge = _challenge(paths[0])
    method = _method(challenge, "reference_impl")
    helpers = {n.name: n for n in challenge.body if isinstance(n, ast.FunctionDef)}
    wanted = _reached({"reference_impl"}, helpers)
    challenge.body = [_widened(helpers[n]) for n in helpers if n in wanted]
    challenge.bases = []
    lines = [*_imports(tree), "_REAL = torch.float32", *_globals(tree, challenge), ast.unparse(challenge)]
    call = ", ".join(a.arg for a in method.args.args[1:])
    return "\n".join([*lines, "", "", *_function(task, [f"Challenge().reference_impl({call})"])]) + "\n"


def _challenge(path: Path) -> ast.ClassDef:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Challenge":
            return node
    raise ReferenceTextError(f"{path.parent.name} has no class Challenge")


def _method(of: ast.ClassDef, name: str) -> ast.FunctionDef:
    found = next((n for n in of.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
    if found is None:
        raise ReferenceTextError(f"{of.name} has no method {name}")
    return found


# ---- KernelBench


def kernelbench_tasks(checkout: Path, levels: Iterable[int]) -> list[str]:
    """The problems of some levels, as `level1/19_ReLU`; sorted."""
    files = [p for level in levels for p in checkout.glob(f"KernelBench/level{level}/*.py")]
    return sorted(f"{p.parent.name}/{p.stem}" for p in files)


def kernelbench_reference(checkout: Path, name: str, task: Task, extra: Mapping[str, str]) -> str:
    """The text of a reference file. Raises ReferenceTextError.

    `extra` maps an input of the task to the parameter of the model that it is (`conv.weight`); all arguments of `forward` are inputs
    or sizes by their names. The model is made once, with its own arguments; every parameter must be an input.
    """
    path = checkout / "KernelBench" / f"{name}.py"
    if not path.is_file():
        raise ReferenceTextError(f"there is no problem {name}")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unknown = sorted(set(extra) - {a.name for a in task.inputs})
    if unknown:
        raise ReferenceTextError(f"{name}: the task has no input {unknown[0]}")
    body = [n for n in tree.body if not (isinstance(n, ast.FunctionDef) and n.name == "get_inputs")]
    body = [n for n in body if not isinstance(n, ast.Import | ast.ImportFrom)]
    held = ", ".join(f'"{of}": {n}' for n, of in extra.items())
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    if model is None:
        raise ReferenceTextError(f"{name} has no class Model")
    given = [a.arg for a in _method(model, "forward").args.args[1:]]
    missing = sorted(set(given) - {a.name for a in task.inputs} - set(task.time[0].sizes))
    if missing:
        raise ReferenceTextError(f"{name}: the task has no input {missing[0]}")
    (output,) = task.outputs
    call = f"torch.func.functional_call(_MODEL, {{{held}}}, ({', '.join(given)},)).reshape({_shape(output)})"
    lines = [
        *_imports(tree), "_REAL = torch.float32", *(ast.unparse(_widened(n)) for n in body), "",
        "_MODEL = Model(*get_init_inputs())",
        f"assert {{name for name, _ in _MODEL.named_parameters()}} <= {set(extra.values()) or '{*()}'}",
    ]  # fmt: skip
    return "\n".join([*lines, "", "", *_function(task, [f"{output.name} = {call}"], empty=False)]) + "\n"


# ---- both


class _Widen(ast.NodeTransformer):
    """`x.float()` and `torch.float32` follow the inputs' type; assertions go."""

    def visit_Assert(self, node: ast.Assert) -> None:
        return None

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in ("float32", "float"):
            return ast.Name("_REAL", ast.Load())
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "float" and not node.args:
            return ast.Call(ast.Attribute(node.func.value, "to", ast.Load()), [ast.Name("_REAL", ast.Load())], [])
        return node


def _widened(node: ast.stmt) -> ast.stmt:
    changed: ast.stmt = ast.fix_missing_locations(_Widen().visit(node))
    for inner in ast.walk(changed):
        # No prose of others goes into a prompt.
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner) is not None:
            inner.body = inner.body[1:]
        if isinstance(inner, ast.stmt) and getattr(inner, "body", None) == []:
            inner.body = [ast.Pass()]  # type: ignore[attr-defined]
    return changed


def _imports(tree: ast.Module) -> list[str]:
    """The imports that a reference can do without its checkout; PyTorch first."""
    lines = ["import torch"]
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
            text = ast.unparse(node)
            if module.partition(".")[0] not in ("core", "ctypes") and text not in lines:
                lines.append(text)
    return lines


def _globals(tree: ast.Module, user: ast.AST) -> list[str]:
    """Functions and constants of a module that `user` reaches, in their order."""
    defined: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            defined |= {t.id: node for t in node.targets if isinstance(t, ast.Name)}
    names = {n.id for n in ast.walk(user) if isinstance(n, ast.Name)}
    wanted = _reached(names & defined.keys(), defined)
    return [ast.unparse(_widened(defined[n])) for n in defined if n in wanted]


def _reached(names: set[str], defined: Mapping[str, ast.stmt]) -> set[str]:
    """The names that those given use, directly or by way of others, themselves included."""
    wanted, queue = set(names), list(names)
    while queue:
        for node in ast.walk(defined[queue.pop()]):
            used = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if used in defined and used not in wanted:
                wanted.add(used)
                queue.append(used)
    return wanted


def _function(task: Task, body: list[str], *, empty: bool = True) -> list[str]:
    """The function that the oracle calls: the output is made `empty` for those who fill it, and returned."""
    (output,) = task.outputs
    parameters = [a.name for a in task.arguments if a.role != "out"]
    parameters += [name for name in task.time[0].sizes if name not in parameters]
    real = next((a.name for a in task.inputs if a.type in ("float", "double", "half", "bfloat16")), None)
    lines = [f"def {task.wrapper}({', '.join(parameters)}):"]
    if real:
        lines += ["    global _REAL", f"    _REAL = {real}.dtype", "    torch.set_default_dtype(_REAL)"]
    if output.role == "out" and empty:
        lines.append(f"    {output.name} = {_empty(output)}")
    lines.append("    with torch.no_grad():")
    return [*lines, *(f"        {line}" for line in body), f"    return {output.name}"]


def _empty(output: TaskArgument) -> str:
    dtype = f"torch.{_TORCH[output.type]}" if output.type in _TORCH else "_REAL"
    return f"torch.zeros({_shape(output)}, dtype={dtype})"


def _shape(output: TaskArgument) -> str:
    """Its extents as Python: in a task `/` divides whole numbers."""
    return f"({', '.join(re.sub(r'/+', '//', extent) for extent in output.shape)},)"


def drawn(names: Iterable[str], count: int, seed: int) -> list[str]:
    """`count` of the names, by a seed, sorted."""
    there = sorted(names)
    return sorted(random.Random(seed).sample(there, min(count, len(there))))
