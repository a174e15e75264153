"""From an address in a kernel's object to the line of its source, through what was inlined."""

import bisect
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Lines:
    """Reads the debug information of one object when first asked.

    `line(offset)` is the 1-based line of `path` to which the code before `offset` belongs; 0 where it is not known. Code
    that was inlined from our headers counts as the line that called it.
    """

    def __init__(self, object_path: Path, path: str, include: Path) -> None:
        self._object, self._path, self._include = object_path, path, str(include)
        self._rows: list[tuple[int, str, int]] | None = None
        self._calls: list[tuple[int, int, int, str, int]] = []  # low, high, depth, file, line of the call

    def frames(self, offset: int) -> list[tuple[str, int]]:
        """(file, line) from the innermost function outward."""
        if self._rows is None:
            self._rows = []
            try:
                self._load()
            except Exception:  # debug information is a help, never a reason to fail
                self._rows, self._calls = [], []
        if offset <= 0 or not self._rows:
            return []
        pc = offset - 1
        i = bisect.bisect_right(self._rows, pc, key=lambda row: row[0]) - 1
        found = [] if i < 0 else [self._rows[i][1:]]
        around = sorted((c for c in self._calls if c[0] <= pc < c[1]), key=lambda c: -c[2])
        return [*found, *((file, line) for _, _, _, file, line in around)]

    def line(self, offset: int) -> int:
        return self.place(offset)[1]

    def place(self, offset: int) -> tuple[str, int]:
        """(file, line) of the source: the file is "" where it is `path`, the line 0 where it is not known."""
        frames = self.frames(offset)
        for file, line in frames:
            if file == self._path:
                return "", line
        for file, line in frames:
            if not file.startswith((self._include, "/usr", "optiml_entries")) and "optiml_" not in file:
                return file, line
        return "", 0

    def _load(self) -> None:
        # Only a finding needs its line.
        from elftools.elf.elffile import ELFFile

        with self._object.open("rb") as stream:
            elf = ELFFile(stream)
            info: Any = elf.get_dwarf_info()
            rows: list[tuple[int, str, int]] = []
            for unit in info.iter_CUs():
                program = info.line_program_for_CU(unit)
                if program is None:
                    continue
                names = _file_names(program)
                for entry in program.get_entries():
                    state = entry.state
                    if state is not None:
                        rows.append((state.address, names.get(state.file, ""), 0 if state.end_sequence else state.line))
                self._walk(unit.get_top_DIE(), 0, names, info)
            self._rows = sorted(rows, key=lambda row: row[0])

    def _walk(self, die: Any, depth: int, names: dict[int, str], info: Any) -> None:
        if die.tag == "DW_TAG_inlined_subroutine":
            line = die.attributes.get("DW_AT_call_line")
            file = die.attributes.get("DW_AT_call_file")
            for low, high in _ranges(die, info):
                self._calls.append(
                    (low, high, depth, names.get(file.value, "") if file else "", line.value if line else 0)
                )
        for child in die.iter_children():
            if child.tag in (
                "DW_TAG_subprogram",
                "DW_TAG_inlined_subroutine",
                "DW_TAG_lexical_block",
                "DW_TAG_namespace",
            ):
                self._walk(child, depth + 1, names, info)


def _file_names(program: Any) -> dict[int, str]:
    header = program.header
    folders = [d if isinstance(d, bytes) else b"" for d in header["include_directory"]]
    result: dict[int, str] = {}
    for number, entry in enumerate(header["file_entry"], 1):
        name = entry.name.decode("utf-8", "replace")
        folder = folders[entry.dir_index - 1].decode("utf-8", "replace") if 0 < entry.dir_index <= len(folders) else ""
        result[number] = f"{folder}/{name}" if folder else name
    return result


def _ranges(die: Any, info: Any) -> Iterable[tuple[int, int]]:
    low, high = die.attributes.get("DW_AT_low_pc"), die.attributes.get("DW_AT_high_pc")
    if low and high:
        end = high.value if high.form == "DW_FORM_addr" else low.value + high.value
        return [(low.value, end)]
    attribute = die.attributes.get("DW_AT_ranges")
    if not attribute:
        return []
    top = die.cu.get_top_DIE().attributes.get("DW_AT_low_pc")
    base = top.value if top else 0
    found = []
    for entry in info.range_lists().get_range_list_at_offset(attribute.value):
        if hasattr(entry, "base_address"):
            base = entry.base_address
        else:
            found.append((base + entry.begin_offset, base + entry.end_offset))
    return found
