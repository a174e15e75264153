"""GitHub: knows pull requests, and of the engine its public functions and result types."""
