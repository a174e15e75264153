"""OptiML's engine: takes a CUDA file to a faster one that is proven equal and measured."""
