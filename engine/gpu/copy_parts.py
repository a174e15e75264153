"""In how many parts a reference copy reads and writes, so that both go on together from its first thread to its last."""

# Of what is read and of what is written. A thread has a vector of each part.
PARTS = ((1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (3, 2), (4, 3))


def copy_parts(read_bytes: int, written_bytes: int) -> tuple[int, int]:
    """Those of `PARTS` whose ratio is closest to that of the bytes.

    Kernels of several arrays read each of them and write others all along: parts of one array stand for them. More written than
    read is as fast with what is left written last.
    """
    wanted = max(1, read_bytes) / max(1, written_bytes)

    def distance(parts: tuple[int, int]) -> float:
        ratio = parts[0] / parts[1] / wanted
        return max(ratio, 1 / ratio)

    return min(PARTS, key=distance)
