"""Rows of a matrix: who works on them, in how many passes."""
