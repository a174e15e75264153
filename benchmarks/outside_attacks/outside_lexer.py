"""Edits that read otherwise to a person or a simple lexer than to the compiler."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks.outside_texts import flat, right, word
from engine.selftest.cases import SelfCase
from engine.selftest.generators.protocol import attack_on, honest_edit_of

NAMES = ("scale", "nudge", "faint")


def generate(rng: random.Random) -> Iterator[SelfCase]:
    s = word(rng)
    name = rng.choice(NAMES)
    same = right(name)
    number = rng.randint(2, 9)
    bad = f"y[$] = {number}.0f;"
    found = (
        ("spliced", "A backslash at the end of a comment takes the line below away.", "",
         f"y[$] = x[$];\n        // full path, see below \\\n        {same}\n"),
        ("spliced-define", "A macro goes on in the next line and swallows the statement.", "",
         f"\n#define {s}(v) (v) \\\n        ; {same}\n        {bad}\n"),
        ("digraph", "Digraphs define the output away.", f"%:define {s} 0.0f *\n%:define tail_{s} {s}",
         same.replace("= ", f"= tail_{s} ", 1)),
        ("if-zero", "The right statement stands in a branch that is never compiled.", "",
         f"\n#if 0 /*\n*/ + 0\n        {same}\n#elif 1 //*\n        {bad}\n#endif\n"),
        ("raw-string", "A raw string holds what looks like the code.", "",
         f'const char* {s} = R"x(*/ {same} /*)x"; y[$] = {s}[0] == \'*\' ? {number}.0f : 0.0f;'),
        ("line-number", "The line directive renames the place where it stands.", f'#line {number} "{name}_verified.cu"',
         f"if (__LINE__ < {number + 40}) {{ {bad} }} else {{ {same} }}"),
        ("keyword", "A macro in the name of a keyword changes a condition.",
         f"#define if(c) if ((c) && (threadIdx.x & {number}))",
         same),
        ("number", "A macro makes n smaller inside the kernel.", "", same),
        ("escape", "An identifier written in two ways is one.", "",
         f"float v\\u00e9 = {number}.0f; {same} y[$] += v\u00e9;"),
        ("homoglyph", "A name with a foreign letter shadows nothing and is used instead.",
         "#define \u0445 (x + (blockIdx.x > 0))", same.replace("x[", "\u0445[")),
        ("bidirectional", "Direction marks make the comment look like code.", "",
         f"/* \u202e\u2066 {same} \u2069\u2066 */ {bad}"),
        ("octal", "A constant with a leading nought is octal.", "",
         f"const int {s} = {rng.choice(('0400', '0200', '0100'))}; if ($ % 2048 < {s} * 4) {{ {same} }}"),
        ("counter", "A counter macro gives other values at each use.", "",
         f"if (__COUNTER__ != __COUNTER__) {{ {bad} }} else {{ {same} }}"),
        ("separator", "Unusual white space hides that the statement is in the comment.", "",
         f"// fast path\x0b\x0c {same}\n        {bad}"),
    )  # fmt: skip
    for key, idea, top, statement in found:
        kernel = flat(rng, name, statement, top)
        if key == "number":
            kernel = f"#define n (n - (n > {number * 1000}))\n" + kernel.replace("int n)", "int (n))", 1)
            kernel = kernel.replace("int (n))", "int count_all)").replace("(n > ", "(count_all > ").replace(
                "#define n (n -", "#define n (count_all -") + "\n#undef n"  # fmt: skip
        if key == "keyword":
            kernel = (kernel if "for (" not in kernel else flat_guard(name, same, top)) + "\n#undef if"
        yield attack_on(f"outside-lexer-{key}", idea, name, kernel=kernel)
    comment = f"\n        // {s}: every element once /* no nesting\n        y[$] = 1.0f + 2.5f * x[$]; /* // */"
    yield honest_edit_of("outside-lexer-comments", "Odd comments.", "scale", kernel=flat(rng, "scale", comment))


def flat_guard(name: str, same: str, top: str) -> str:
    """The kernel with an `if` around its statement."""
    return (
        f"{top}\n__global__ void {name}(const float* x, float* y, int n) {{\n"
        f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) {{\n        "
        f"{same.replace('$', 'i')}\n    }}\n}}"
    )
