"""A team's own rule comes from its own package."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from engine.errors import UsageError
from engine.rules import registry
from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, make

RULE = """
from engine.rewrite.proposal import proposal
from engine.cuda.kernel import Edit, Span

class Note:
    name = "{name}"
    summary = "Write a comment above the kernel"

    def propose(self, site):
        at = site.declaration_start
        yield from proposal(self.name, self.summary, site.in_file(Edit(Span(at, at), "// seen\\n")), 0.1)
"""


def install(folder: Path, name: str, text: str) -> None:
    module = f"team_rule_{name}"
    sys.modules.pop(module, None)
    (folder / f"{module}.py").write_text(text)
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[optiml.rules]\n{name} = {module}:Note\n")


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda kind: str(tmp_path))
    return tmp_path


def test_an_installed_package_registers_a_rule(site_packages: Path) -> None:
    install(site_packages, "note", RULE.format(name="note"))
    found = registry.rules.__wrapped__()
    assert [rule.name for rule in found][-1] == "note"
    (proposal,) = found[-1].propose(make(SCALE, SCALE_LAUNCH))
    assert proposal.summary == "Write a comment above the kernel"


def test_a_package_in_a_checkout_registers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "checkout", "raise SystemExit('untrusted code ran')")
    assert "checkout" not in [rule.name for rule in registry.rules.__wrapped__()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RULE.format(name="unroll"), "two rules are named 'unroll'"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("class Note:\n    name = summary = 'nothing'", "AttributeError"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(site_packages: Path, text: str, message: str) -> None:
    install(site_packages, "bad", text)
    with pytest.raises(UsageError, match=message):
        registry.rules.__wrapped__()
