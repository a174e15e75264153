"""OptiML's engine: takes a CUDA file to a faster one that is checked against it and measured."""
