"""Losses: pure functions on `[T, B]` data that leave dummy steps out."""
