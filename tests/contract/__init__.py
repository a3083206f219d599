"""One suite of behaviour for every backend of the log and of the store."""
