"""OptiML-G: a kernel from a sentence, by a mixture of strategies, held against a reference in NumPy or CuPy."""
