"""Whether code does only what one thread can do alone."""

import re
from collections.abc import Callable, Iterator, Sequence

from tree_sitter import Node

from engine.cuda.kernel import Function, Unit
from engine.cuda.macros import function_macros
from engine.cuda.math_functions import MATH_FUNCTIONS
from engine.cuda.parse import once_a_node
from engine.cuda.syntax import CASTS, THREAD_NAMES, called, is_integer_type, is_unroll, names, root_name, text, walk

_UNSAFE_IN_MACRO = re.compile(
    r"[;{}#]|\b(?:threadIdx|blockIdx|blockDim|gridDim|warpSize|return|goto|break|continue|asm|__shared__|__sync\w*|__shfl\w*|"
    r"atomic\w*|if|for|while|do|switch)\b|(?<![=<>!])=(?!=)|\+\+|--"
)

# An instruction that the language has no function for: of a value, into a variable.
APPROXIMATION = r"(?:ex2|lg2|rsqrt|sqrt)\.approx\.ftz\.f32 %0, %1;?"
_APPROXIMATED = re.compile(rf'asm\s*\(\s*"{APPROXIMATION}"\s*:\s*"=f"\s*\(\w+\)\s*:\s*"f"\s*\([^:"]*\)\s*\)')


# Of programmatic dependent launch: done once more they change nothing.
_REPEATABLE = frozenset({"cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion"})
_BRANCHES = frozenset({"preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "preproc_defined"})


def local_only(
    unit: Unit, node: Node, allowed: frozenset[str] = frozenset(), headers: Callable[[], Sequence[Unit]] = tuple
) -> bool:
    """Whether the code below the node does only what one thread can do alone.

    Holds where every call is a math function, a cast, one of `allowed` or a method of one, or a function of the same file that is so,
    or one of `headers` that takes values only; no barrier, shuffle, atomic, goto, lambda or shared memory occurs, no assembly but an
    approximation in a function, and macros hold plain expressions.
    """
    macros = function_macros(unit.data, unit.path)
    functions: dict[str, tuple[Function, ...]] = {
        f.name: (f,) for f in unit.functions if f.qualifier in ("device", "host device")
    }
    seen: set[str] = set()

    def defined(name: str) -> tuple[Function, ...]:
        if name not in functions:
            found = [f for u in headers() for f in u.functions if f.name == name and f.qualifier != "host"]
            functions[name] = tuple(found) if all(_takes_values(f) for f in found) else ()
        return functions[name]

    def fine(part: Node, *, function: bool = False) -> bool:
        for n in walk(part):
            if n.type in ("lambda_expression", "goto_statement", "labeled_statement"):
                return False
            # In the code itself those who ask would have to know that it changes a variable.
            if n.type == "gnu_asm_expression" and not (function and _APPROXIMATED.fullmatch(text(n))):
                return False
            if n.type.startswith("preproc") and not is_unroll(n) and not (function and n.type in _BRANCHES):
                return False
            if n.type in ("identifier", "__shared__") and text(n) in ("__shared__", "asm", "__asm__"):
                return False
            if n.type == "identifier" and _UNSAFE_IN_MACRO.search(unit.macros.get(text(n), "")):
                return False
            if n.type == "call_expression":
                name = called(n)
                if computes(n) or (name or _owner(n)) in allowed or name in _REPEATABLE:
                    continue
                if name in macros:
                    if any(_UNSAFE_IN_MACRO.search(body) for _, body in macros[name]):
                        return False
                    continue
                if not defined(name):
                    return False
                if name not in seen:
                    seen.add(name)
                    for one in defined(name):
                        if names(one.node) & THREAD_NAMES or not fine(one.node, function=True):
                            return False
        return True

    return fine(node) and "__shared__" not in text(node)


def _owner(call: Node) -> str:
    """The variable whose method is called: `image` of `image.ptr(y)`; "" for other calls."""
    function = call.child_by_field_name("function")
    owner = function.child_by_field_name("argument") if function is not None else None
    plain = function is not None and function.type == "field_expression" and owner is not None
    return text(owner) if plain and owner is not None and owner.type == "identifier" else ""


def computes(call: Node) -> bool:
    """Whether what is called changes nothing: a math function, or a conversion."""
    function, name = call.child_by_field_name("function"), called(call)
    if function is not None and function.type == "parenthesized_expression":
        # `(real)(a + b)`: the grammar cannot know that the name is a type's.
        return [n.type for n in function.named_children] == ["identifier"]
    return name in MATH_FUNCTIONS or name in CASTS or (name != "" and is_integer_type(name))


def _takes_values(function: Function) -> bool:
    """Whether it cannot change anything of its caller's: each parameter is a value, or leads to what is const."""
    return all(p.const or not ("*" in p.type or "&" in p.type) for p in function.parameters)


@once_a_node
def written(node: Node) -> frozenset[str]:
    """Names of variables (or arrays) that the code below the node may change; "" where a target cannot be told."""
    return frozenset(_targets(node))


def _targets(node: Node) -> Iterator[str]:
    for n in walk(node):
        if n.type == "assignment_expression":
            target = n.child_by_field_name("left")
        elif n.type == "update_expression":
            target = n.child_by_field_name("argument")
        elif n.type == "pointer_expression" and n.children and n.children[0].type == "&":
            target = n.child_by_field_name("argument")
            if n.parent is not None and _is_load_hint(n.parent):
                continue
        else:
            continue
        if target is not None:
            yield root_name(target)


def _is_load_hint(arguments: Node) -> bool:
    call = arguments.parent
    function = call.child_by_field_name("function") if call is not None and call.type == "call_expression" else None
    return function is not None and text(function) in ("__ldg", "__ldcs", "__ldca", "__ldcg")


def pure(node: Node) -> bool:
    """Whether evaluating the expression changes nothing: no assignment, and only math functions are called."""
    for n in walk(node):
        if n.type in (
            "assignment_expression",
            "update_expression",
            "lambda_expression",
            "new_expression",
            "comma_expression",
        ):
            return False
        if n.type == "call_expression" and not computes(n):
            return False
    return True


@once_a_node
def pure_value(node: Node) -> bool:
    """Whether the expression changes nothing that the rules can see (calls were checked for the whole kernel)."""
    return not any(assigned(n) is not None or n.type in ("comma_expression", "lambda_expression") for n in walk(node))


def assigned(node: Node) -> Node | None:
    """What an assignment or update changes; None for other nodes."""
    if node.type == "assignment_expression":
        return node.child_by_field_name("left")
    return node.child_by_field_name("argument") if node.type == "update_expression" else None
