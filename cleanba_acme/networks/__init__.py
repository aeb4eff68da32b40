"""Haiku networks: one `apply` for the actor and for the learner."""
