"""Snippets with holes."""

from __future__ import annotations

import re
from importlib import resources
from textwrap import indent

import pytest

from engine.cuda.parse import parse
from engine.rewrite.snippet_template import Snippet, template

SNIPPETS = sorted(f.name.removesuffix(".cu") for f in resources.files("engine.rules").joinpath("snippets").iterdir())


def test_holes_are_filled_and_lines_without_value_go() -> None:
    snippet = Snippet("$head\nvoid $f() {\n    $body\n}\n")
    assert snippet.holes == ("head", "f", "body")
    assert snippet.render(head="", f="g", body="a();\n\nb();") == "void g() {\n    a();\n\n    b();\n}\n"
    with pytest.raises(KeyError):
        snippet.render(head="", f="g")


def test_sections() -> None:
    parts = Snippet("//: first\nint $a;\n//: second\n$a = 1;\n").sections()
    assert {name: part.render(a="x") for name, part in parts.items()} == {"first": "int x;\n", "second": "x = 1;\n"}


@pytest.mark.parametrize("name", SNIPPETS)
def test_every_snippet_is_cuda(name: str) -> None:
    whole = template("engine.rules", name)
    sections = [part.text for part in whole.sections().values()] or [whole.text]
    if any(text.count("{") != text.count("}") for text in sections):  # they stand around what others write
        sections = ["".join(sections)]
    for text in sections:
        text += "}\n" * (text.count("{") - text.count("}"))  # what it opens around a rule's own statements
        code = text if "__device__" in text else f"void f() {{\n{indent(text, ' ')}}}\n"
        # A hole alone on its line stands for statements.
        code = re.sub(r"^(\s+\$\w+)\n", r"\1;\n", code.replace("$header\n", ""), flags=re.M)
        assert not parse(code.encode()).errors
