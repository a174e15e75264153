"""Generators of self-test cases, one module for each class of attack: new texts for each seed, and honest edits that look alike."""
