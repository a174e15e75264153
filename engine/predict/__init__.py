"""Speed prediction without a GPU: machine code, occupancy and counted accesses against the target's figures."""
