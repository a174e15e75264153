"""The file that defines the kernel of a target: often a header of the one that was named."""

from __future__ import annotations

from engine.commands.targets import KernelTarget
from engine.cuda.load import add_headers, kernels_of_headers, repository_root
from engine.cuda.parse import parse
from engine.spec.find import project_options
from engine.spec.tables import split_kernel


def where_defined(target: KernelTarget) -> list[KernelTarget]:
    """The target itself; where a file that it includes defines the kernel that is named (or any, and it none), that file."""
    if target.file.is_dir():
        return [target]
    root = repository_root(target.file)
    path = target.file.relative_to(root.resolve()).as_posix()
    data = target.file.read_bytes()
    name = split_kernel(target.kernel)[0].rpartition("::")[2] if target.kernel else ""
    own = [kernel.name for kernel in parse(data, path).kernels]
    if own and (not name or name in own):
        return [target]
    files = {path: data}
    add_headers(files, path, root, project_options(root, target.file).include)
    return [
        KernelTarget(root / header, target.kernel, header)
        for header, names in kernels_of_headers(files, path).items()
        if not name or name in [n.rpartition("::")[2] for n in names]
    ] or [target]
