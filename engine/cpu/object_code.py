"""Machine code of an object's functions: which of them access memory beyond their own frame, and what they call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import capstone
from capstone import x86

_WRITABLE, _ALLOCATED = 1, 2  # SHF_WRITE, SHF_ALLOC
_LOCK = 0xF0
_CLOBBERED = ("RAX", "RCX", "RDX", "RSI", "RDI", "R8", "R9", "R10", "R11")  # by a call, in the System V convention


@dataclass(frozen=True)
class ObjectUse:
    """What one function does: imports that it calls, calls of the object's own functions and of addresses, and accesses, plain and
    locked, beyond its frame and read-only data."""

    calls: frozenset[str] = frozenset()
    inner_calls: int = 0
    accesses: int = 0
    locked: int = 0


class Code:
    """The machine code of one object of x86-64. For other machines every function has no accesses: nothing is claimed."""

    def __init__(self, elf: Any) -> None:
        self._sections = [s for s in elf.iter_sections() if s["sh_flags"] & _ALLOCATED and s["sh_type"] != "SHT_NOBITS"]
        self._writable = [
            (s["sh_addr"], s["sh_addr"] + s["sh_size"], s.name)
            for s in elf.iter_sections()
            if s["sh_flags"] & _WRITABLE
        ]
        self._imports = _imports(elf)
        self._reader = None
        if elf.get_machine_arch() == "x64":
            self._reader = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
            self._reader.detail = True
        self._stubs = self._plt(elf)

    def function(self, address: int, size: int) -> ObjectUse:
        """The use of the function at an address. Raises ValueError where its code cannot be read."""
        if self._reader is None:
            return ObjectUse()
        found = list(self._reader.disasm(self._bytes(address, size), address))
        if not found or found[-1].address + found[-1].size != address + size:
            raise ValueError("has code that cannot be read")
        calls, inner, accesses, locked = set(), 0, 0, 0
        safe = {x86.X86_REG_RSP}
        for instruction in found:
            called = self._called(instruction, x86)
            if called is not None:
                inside = (
                    called == "" and instruction.group(x86.X86_GRP_JUMP) and self._within(instruction, address, size)
                )
                inner += called == "" and not inside
                calls.add(called)
            elif instruction.id not in (x86.X86_INS_LEA, x86.X86_INS_NOP):
                outside = sum(
                    operand.type == x86.X86_OP_MEM and not self._harmless(instruction, operand.mem, safe, x86)
                    for operand in instruction.operands
                )
                if instruction.prefix[0] == _LOCK or instruction.id == x86.X86_INS_XCHG:
                    locked += outside
                else:
                    accesses += outside
            self._track(instruction, safe, x86)
        return ObjectUse(frozenset(calls - {""}), inner, accesses, locked)

    def _called(self, instruction: Any, x86: Any) -> str | None:
        """The import that an instruction calls or jumps to, "" for another place, None for what is neither."""
        if not (instruction.group(x86.X86_GRP_CALL) or instruction.group(x86.X86_GRP_JUMP)):
            return None
        target = instruction.operands[0] if instruction.operands else None
        if target is not None and target.type == x86.X86_OP_IMM:
            return self._stubs.get(target.imm, "")
        if target is not None and target.type == x86.X86_OP_MEM and target.mem.base == x86.X86_REG_RIP:
            return self._imports.get(instruction.address + instruction.size + target.mem.disp, "")
        return ""

    def _within(self, instruction: Any, address: int, size: int) -> bool:
        target = instruction.operands[0] if instruction.operands else None
        return target is not None and 0 <= target.imm - address < size

    def _track(self, instruction: Any, safe: set[int], x86: Any) -> None:
        """Keep the registers that hold the address of the frame, of read-only data, or of one of the runtime's constants."""
        if instruction.group(x86.X86_GRP_CALL):
            safe -= {getattr(x86, f"X86_REG_{name}") for name in _CLOBBERED}
            return
        operands = instruction.operands
        if len(operands) > 1 and operands[0].type == x86.X86_OP_REG:
            target, source = operands[0].reg, operands[1]
            if instruction.id in (x86.X86_INS_ADD, x86.X86_INS_SUB, x86.X86_INS_AND) and target in safe:
                return
            holds = False
            if instruction.id == x86.X86_INS_LEA:
                holds = self._harmless(instruction, source.mem, safe, x86)
            elif instruction.id == x86.X86_INS_MOV and source.type == x86.X86_OP_REG:
                holds = source.reg in safe
            elif instruction.id == x86.X86_INS_MOV and source.type == x86.X86_OP_MEM:
                slot = instruction.address + instruction.size + source.mem.disp
                name = self._imports.get(slot, "") if source.mem.base == x86.X86_REG_RIP else ""
                holds = name.startswith("optiml_")
            if holds:
                safe.add(target)
                return
        safe -= set(instruction.regs_access()[1]) - {x86.X86_REG_RSP}

    def _harmless(self, instruction: Any, memory: Any, safe: set[int], x86: Any) -> bool:
        if memory.base == x86.X86_REG_RIP:
            address = instruction.address + instruction.size + memory.disp
            return not any(low <= address < high and not name.startswith(".got") for low, high, name in self._writable)
        return memory.base in safe or memory.index in safe or memory.segment == x86.X86_REG_FS

    def _bytes(self, address: int, size: int) -> bytes:
        for section in self._sections:
            start = section["sh_addr"]
            if start <= address and address + size <= start + section["sh_size"]:
                return bytes(section.data()[address - start : address - start + size])
        raise ValueError("has a function outside its code")

    def _plt(self, elf: Any) -> Mapping[int, str]:
        """Addresses of the stubs through which imports are called."""
        stubs: dict[int, str] = {}
        if self._reader is None:
            return stubs
        for name in (".plt", ".plt.sec", ".plt.got"):
            section = elf.get_section_by_name(name)
            if section is None:
                continue
            start = section["sh_addr"]
            for instruction in self._reader.disasm(section.data(), start):
                operands = instruction.operands
                if instruction.group(x86.X86_GRP_JUMP) and operands and operands[0].type == x86.X86_OP_MEM:
                    slot = instruction.address + instruction.size + operands[0].mem.disp
                    stubs[start + (instruction.address - start) // 16 * 16] = self._imports.get(slot, "")
                    stubs[instruction.address] = self._imports.get(slot, "")
        return stubs


def _imports(elf: Any) -> Mapping[int, str]:
    """Names of the symbols whose addresses the loader writes, by the slot."""
    found = {}
    symbols = elf.get_section_by_name(".dynsym")
    for name in (".rela.plt", ".rela.dyn"):
        section = elf.get_section_by_name(name)
        for relocation in section.iter_relocations() if section is not None else ():
            if relocation["r_info_sym"]:
                found[relocation["r_offset"]] = symbols.get_symbol(relocation["r_info_sym"]).name
    return found
