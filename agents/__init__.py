"""One folder per agent: its settings, and its builder."""
