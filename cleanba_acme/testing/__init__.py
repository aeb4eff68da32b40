"""Fakes that check what they are given."""
