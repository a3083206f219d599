"""A soak: many workers at many runs, killed and stopped at random, and what holds then."""
