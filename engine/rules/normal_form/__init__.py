"""Other spellings of a kernel's code, written as the rules read it."""
