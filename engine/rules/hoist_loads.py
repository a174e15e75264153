"""A load whose address stays the same is made once, into a register.

The compiler does it by itself unless a store, an atomic or a barrier stands between two loads: any of them might change
what is loaded. The rule knows that it cannot, because the launches pass different buffers and the kernel never writes
this one. Source: CUDA C++ Best Practices Guide, "Device Memory Spaces".
"""

from engine.cuda.questions import assigned, called, children, inside, names, text, walk
from engine.rewrite import Edit, Node, Proposals, Scope, Site, Use, proposal
from engine.rules.idioms import StrideLoop, changed_names, runs, stride_loop, with_pragma
from engine.rules.idioms.loads import LOOPS, Load, grouped_loads, loadable

_MOST = 8  # loads moved by one proposal: each takes a register


class HoistLoads:
    """Loop-invariant loads before their loop, and repeated loads of one element once: across stores and barriers."""

    name = "hoist_loads"
    summary = "Load invariant values once"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.manageable or not site.pointers_distinct:
            return
        if any("volatile" in text(n) for n in walk(site.kernel.node) if n.type == "type_qualifier"):
            return
        scope, body = site.scope, site.body
        uses = scope.uses(body)
        if uses is None or any(_unknown(n) for n in walk(body)):
            return
        written = {u.array for u in uses if u.writes}
        reads = [u for u in uses if u.reads and u.array not in written and loadable(scope, u)]
        yield from self._before_loops(site, scope, reads)
        yield from self._repeated(site, scope, reads)
        stored = [u for u in uses if u.array in written and loadable(scope, u)]
        if not any(u.array in written and u.index is None for u in uses):
            yield from self._forwarded(site, scope, stored)

    def _before_loops(self, site: Site, scope: Scope, reads: list[Use]) -> Proposals:
        moved: list[Node] = []
        for node in walk(site.body):
            loop = stride_loop(node)
            if loop is None or node.parent is None or node.parent.type != "compound_statement" or not _fenced(node):
                continue
            steady = [u for u in reads if inside(u.node, loop.body) and u.node not in moved]
            changing = changed_names(node)
            fixed = [u for u in steady if u.index is not None and not u.index.names() & changing]
            found = [g for g in grouped_loads(scope, fixed, node) if _every_time(g.nodes[0], loop.body)][:_MOST]
            if not found:
                continue
            moved += [n for g in found for n in g.nodes]
            line = site.unit.line_of(node.start_byte)
            what = " and ".join(dict.fromkeys(g.written for g in found))
            yield from proposal(
                self.name,
                f"Hoist the load of {what} out of the loop at line {line}",
                site.in_file(*_hoisted(site, loop, found)),
                0.4,
                form="loop",
                line=line,
                loads=len(found),
            )

    def _repeated(self, site: Site, scope: Scope, reads: list[Use]) -> Proposals:
        done: list[Node] = []
        edits: list[Edit] = []
        count, taken, listed = 0, list[str](), list[str]()
        for block in walk(site.body):
            if block.type != "compound_statement":
                continue
            here = [u for u in reads if inside(u.node, block) and u.node not in done and u.index is not None]
            for group in grouped_loads(scope, here, block):
                statement = _statement(group.nodes[0], block)
                after = [n for n in group.nodes if n.end_byte > group.nodes[0].end_byte]
                if statement is None or not after or count >= _MOST or not _always(group.nodes[0], statement):
                    continue
                rest = [s for s in children(block) if s.start_byte >= statement.start_byte]
                if any(names(group.nodes[0]) & changed_names(s) for s in rest):
                    continue
                # Only what stands between the first and the last load keeps the compiler from sharing them.
                if not any(_fence(n) and n.start_byte < after[-1].start_byte for s in rest for n in walk(s)):
                    continue
                if not all(scope.lookup(i, n) == scope.lookup(i, statement) for n in group.nodes for i in names(n)):
                    continue
                name = site.fresh(f"{group.array}_value", taken)
                taken.append(name)
                listed.append(group.written)
                count += 1
                done += group.nodes
                at, indent = statement.start_byte, site.indent_at(statement.start_byte)
                edits.append(Edit.insert(at, f"const {group.type} {name} = {group.written};\n{indent}"))
                edits += [Edit.replace(n, name) for n in group.nodes]
        if edits:
            yield from proposal(
                self.name,
                f"Load {' and '.join(dict.fromkeys(listed))} once instead of after each store",
                site.in_file(*_joined(edits)),
                0.3,
                form="repeat",
                loads=count,
            )

    def _forwarded(self, site: Site, scope: Scope, uses: list[Use]) -> Proposals:
        """`m[i] = value;` and a load of `m[i]` after another store: the value is in a register still."""
        edits: list[Edit] = []
        taken, listed, loads = list[str](), list[str](), 0
        for block in walk(site.body):
            if block.type != "compound_statement":
                continue
            statements = children(block)
            for place, statement in enumerate(statements):
                stored = _plain_store(statement)
                mine = [u for u in uses if stored is not None and u.node == stored.child_by_field_name("left")]
                if stored is None or not mine or len(listed) >= _MOST:
                    continue
                found = _reads_after(scope, uses, mine[0], statements[place + 1 :])
                left, right = stored.child_by_field_name("left"), stored.child_by_field_name("right")
                if not found or left is None or right is None:
                    continue
                name, indent = site.fresh(f"{mine[0].array}_value", taken), site.indent_at(statement.start_byte)
                kind = scope.parameters[mine[0].array].base
                taken.append(name)
                listed.append(text(left))
                loads += len(found)
                # The element's type: what is read back is what was stored, rounded as it was.
                edits.append(Edit.replace(left, f"const {kind} {name}"))
                end = statement.end_byte
                edits.append(Edit.insert(end, f"\n{indent}{text(left)} = {name};"))
                edits += [Edit.replace(n, name) for n in found]
        if edits:
            yield from proposal(
                self.name,
                f"Keep {' and '.join(dict.fromkeys(listed))} in registers after storing",
                site.in_file(*edits),
                0.3,
                form="stored",
                loads=loads,
            )


def _plain_store(statement: Node) -> Node | None:
    """The assignment of `a[i] = value;`."""
    inner = children(statement)
    if statement.type != "expression_statement" or len(inner) != 1 or inner[0].type != "assignment_expression":
        return None
    sign, left = inner[0].child_by_field_name("operator"), inner[0].child_by_field_name("left")
    plain = sign is not None and text(sign) == "=" and left is not None and left.type == "subscript_expression"
    return inner[0] if plain else None


def _reads_after(scope: Scope, uses: list[Use], stored: Use, rest: list[Node]) -> list[Node]:
    """The loads of the stored element up to the next statement that may change it, where a store comes in between."""
    found: list[Node] = []
    fenced = False
    moving = names(stored.node)
    for statement in rest:
        here = [u for u in uses if u.array == stored.array and inside(u.node, statement)]
        if moving & changed_names(statement) or any(_orders(n) for n in walk(statement)):
            break
        if any(u.writes for u in here):
            # `m[i] = b * m[i] + …` still reads the old value first, in the plain form.
            break
        same = [u.node for u in here if u.index == stored.index and u.reads]
        if any(scope.lookup(n, node) != scope.lookup(n, stored.node) for node in same for n in names(node)):
            break
        if fenced:
            found += same
        fenced = fenced or any(_fence(n) for n in walk(statement))
    return found


def _orders(node: Node) -> bool:
    """Whether other threads may change the element here."""
    return node.type == "call_expression" and called(node).startswith(("__sync", "atomic", "__threadfence"))


def _joined(edits: list[Edit]) -> list[Edit]:
    """The edits with insertions at one place made into one, in order."""
    inserted: dict[int, str] = {}
    for edit in edits:
        if edit.span.start == edit.span.end:
            inserted[edit.span.start] = inserted.get(edit.span.start, "") + edit.text
    others = [e for e in edits if e.span.start != e.span.end]
    return [Edit.insert(at, written) for at, written in inserted.items()] + others


def _unknown(node: Node) -> bool:
    """Whether the node is something that may write anywhere."""
    return node.type in ("gnu_asm_expression", "lambda_expression", "goto_statement")


def _fence(node: Node) -> bool:
    """Whether the compiler must take it that memory changes here."""
    if node.type == "call_expression":
        name = called(node)
        return name.startswith(("__sync", "atomic", "__threadfence"))
    target = assigned(node)
    return target is not None and target.type in ("subscript_expression", "pointer_expression", "field_expression")


def _fenced(loop: Node) -> bool:
    return any(_fence(n) for n in walk(loop))


def _every_time(node: Node, body: Node) -> bool:
    """Whether every iteration makes this load: in a plain statement of the body, before any jump."""
    statement = _statement(node, body) if body.type == "compound_statement" else body
    if statement is None or not _always(node, statement):
        return False
    jumps = ("break_statement", "continue_statement", "return_statement")
    return not any(n.type in jumps and n.start_byte < node.start_byte for n in walk(body))


def _statement(node: Node, block: Node) -> Node | None:
    """The statement of the block that holds the node."""
    current: Node | None = node
    while current is not None and current.parent != block:
        current = current.parent
    return current


def _always(node: Node, statement: Node) -> bool:
    """Whether the expression is evaluated whenever the statement is reached."""
    current: Node | None = node
    if statement.type not in ("expression_statement", "declaration", "if_statement"):
        return False
    while current is not None and current != statement:
        above = current.parent
        if above is None:
            return False
        if above.type == "conditional_expression" and above.child_by_field_name("condition") != current:
            return False
        sign = above.child_by_field_name("operator") if above.type == "binary_expression" else None
        short = sign is not None and text(sign) in ("&&", "||")
        if short and above.child_by_field_name("right") == current:
            return False
        if above.type == "if_statement" and above.child_by_field_name("condition") != current:
            return False
        if above.type in ("compound_statement", "lambda_expression", *LOOPS):
            return False
        current = above
    return current is not None


def _surely_runs(loop: StrideLoop) -> bool:
    first, bound = text(loop.start), text(loop.bound)
    return first.isdigit() and bound.isdigit() and int(first) < int(bound)


def _hoisted(site: Site, loop: StrideLoop, found: list[Load]) -> list[Edit]:
    taken: list[str] = []
    lines, edits = [], []
    indent = site.indent_at(loop.node.start_byte)
    for load in found:
        name = site.fresh(f"{load.array}_value", taken)
        taken.append(name)
        # A loop that never runs loads nothing, and the element may not exist.
        none = f"static_cast<{load.type}>(0)" if " " in load.type else f"{load.type}()"
        value = load.written if _surely_runs(loop) else f"{runs(loop)} ? {load.written} : {none}"
        lines.append(f"const {load.type} {name} = {value};\n{indent}")
        edits += [Edit.replace(n, name) for n in load.nodes]
    start = with_pragma(loop.node)
    return [Edit.insert(start, "".join(lines)), *edits]
