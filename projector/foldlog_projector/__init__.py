"""The projector daemon."""
