"""A real S3-compatible server for tests, from a Maven jar, and what is asked of it."""
