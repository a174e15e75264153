"""The language model as a proposer: asked for edits, never trusted, never over its budget."""
