"""What the GitHub Action runs."""
