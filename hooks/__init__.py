"""What pre-commit runs."""
