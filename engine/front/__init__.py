"""Analysis of candidates' text beside the search: in worker processes, so that it does not hold up who feeds the device."""
