"""Forms of code that several rules look for."""
