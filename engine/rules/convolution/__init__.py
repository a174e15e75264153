"""Rules for convolutions: one thread for each output of a layer over images."""
