"""Scripts, and what starts and watches the workers of a run."""
