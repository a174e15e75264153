"""Commands that measure, and the records they leave."""
