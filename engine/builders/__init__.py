"""Candidates are read, written and built beside the search: in worker processes, so that it does not hold up who feeds the device."""
