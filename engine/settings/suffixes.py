"""Which files may hold and launch kernels: CUDA files by their names, headers of any name by what they say."""

CUDA = (".cu", ".cuh")
HEADERS = (".cuh", ".h", ".hpp", ".hh", ".hxx", ".inl", ".inc")
KERNELS = (".cu", *HEADERS)
NAMED = "|".join(end[1:] for end in KERNELS)  # in regular expressions, behind the point
SOURCES = (*KERNELS, ".cpp", ".cc", ".cxx")  # that launch them, too


def may_define(path: str, data: bytes) -> bool:
    """Whether a file may define a kernel; a `.cu` file without one is told so when it is named."""
    return path.endswith(".cu") or (path.endswith(HEADERS) and b"__global__" in data)
