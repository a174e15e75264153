"""Finds the kernel spec of a kernel: in comments of its file, or in an optiml.toml from its folder upwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.cuda.compile_command import compile_command
from engine.cuda.kernel import Unit
from engine.cuda.load import add_headers, add_unit
from engine.cuda.parse import parse
from engine.errors import SpecError, UsageError
from engine.model import Program
from engine.spec.kernel_spec import CompileOptions, KernelSpec
from engine.spec.reader import spec_of
from engine.spec.spec_checks import MAX_BYTES
from engine.spec.tables import SPEC_NAME, Table, split_kernel, tables_of


def find_spec(
    root: Path, file: Path, kernel: str | None = None, *, limit_bytes: int = MAX_BYTES
) -> tuple[KernelSpec, str | None]:
    """The spec of a kernel in `file`, and the repository-relative path of the optiml.toml it was read from.

    Looks at the file's own `// optiml:` comments, then at each optiml.toml from its folder up to `root`. The path is None
    for a spec in comments. `kernel` may carry template arguments. Raises UsageError for a file that cannot be read, for
    several kernels with a spec where none is named, and for a kernel without one; SpecError for a spec that is wrong.
    """
    project = project_options(root, file)
    found, unit = _tables(root, file, project)
    owner, table, spec_path = _choose(found, unit, kernel, str(file))
    spec = spec_of(owner, table, limit_bytes=limit_bytes, compile=project)
    for folder in set(spec.compile.include) - set(project.include):
        if not (root / folder).resolve().is_relative_to(root.resolve()) or not (root / folder).is_dir():
            where = table.where("compile", "include")
            raise SpecError(f"the include folder '{folder}' is not a folder of this repository", where)
    return spec, spec_path


def described(root: Path, file: Path) -> dict[str, str]:
    """The kernels of a file that have a spec, right or wrong, and where it stands: name -> `path:line`. Raises as `find_spec`."""
    found = _tables(root, file, project_options(root, file))[0]
    return {name: table.origin for (name, _), (_, table, _) in found.items()}


def partial_table(root: Path, file: Path, kernel: str) -> Table | None:
    """What comments say of a kernel's spec where they leave its timing cases open: a draft completes it. Raises as `find_spec`."""
    for (name, _), (_, table, path) in _tables(root, file, project_options(root, file))[0].items():
        if name in (kernel, kernel.rpartition("::")[2]) and path is None and not {"time", "chain"} & table.data.keys():
            return table
    return None


def project_options(root: Path, file: Path) -> CompileOptions:
    """What the project's own compile command gives the compiler of a file; a spec may add to it."""
    try:
        path = file.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return CompileOptions()
    command = compile_command(root, path)
    std = command.std or CompileOptions.std
    return CompileOptions(command.defines, command.include, std, command.unit)


_Found = Mapping[tuple[str, str], tuple[Program, Table, str | None]]


def _tables(root: Path, file: Path, project: CompileOptions) -> tuple[_Found, Unit]:
    root, path = root.resolve(), file.resolve()
    if not path.is_relative_to(root):
        raise UsageError(f"the file is outside {root}", str(file))
    relative = path.relative_to(root).as_posix()
    try:
        files = {relative: path.read_bytes()}
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", str(file)) from None
    add_headers(files, relative, root, project.include)  # types may have their names there
    add_unit(files, project.unit, root, project.include)
    found: dict[tuple[str, str], tuple[Program, Table, str | None]] = {}
    program = Program(files, relative)
    for table in tables_of(program, None):
        found[split_kernel(table.kernel)] = (program, table, None)
    for name, data in _spec_files(root, path.parent):
        beside = Program({**files, name: data}, relative)
        for table in tables_of(beside, name):
            if not table.comment:
                found.setdefault(split_kernel(table.kernel), (beside, table, name))
    return found, parse(program.data, relative)


def _spec_files(root: Path, folder: Path) -> Iterable[tuple[str, bytes]]:
    for level in (folder, *folder.parents):
        path = level / SPEC_NAME
        if path.is_file():
            relative = path.relative_to(root).as_posix()
            # A link could make the contents of any file of the machine part of a message.
            if path.is_symlink() or path.stat().st_size > 2**20:
                raise SpecError("is a link or exceeds 1 MiB; ignored", relative, "put the spec itself there")
            try:
                yield relative, path.read_bytes()
            except OSError as error:
                raise SpecError(f"cannot be read ({error.strerror})", relative) from None
        if level == root:
            return


def _choose(found: _Found, unit: Unit, kernel: str | None, file: str) -> tuple[Program, Table, str | None]:
    names = sorted(t.kernel for _, t, _ in found.values())
    if kernel is None:
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            raise UsageError(f"has specs for several kernels: {', '.join(names)}", file, "give one with --kernel")
        if not unit.kernels:
            raise UsageError("contains no kernel (no __global__ function)", file, "give a file with a kernel")
        raise UsageError("has no kernel spec", file, f"run 'optiml init {file}' to draft one")
    base, arguments = split_kernel(kernel)
    matches = [v for (b, a), v in found.items() if base in (b, b.split("::")[-1]) and (not arguments or a == arguments)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        several = ", ".join(sorted(t.kernel for _, t, _ in matches))
        raise UsageError(f"has several specs for '{kernel}': {several}", file, "give one with its template arguments")
    there = sorted(k.qualified for k in unit.kernels)
    if base in {n for k in unit.kernels for n in (k.name, k.qualified)}:
        raise UsageError(f"has no spec for the kernel '{kernel}'", file, f"run 'optiml init {file} --kernel {base}'")
    raise UsageError(
        f"has no kernel '{kernel[:100]}'", file, f"it has {', '.join(there)}" if there else "it has no kernel"
    )
