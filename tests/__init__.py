"""The tests of foldlog; what several of them share is imported from here as `tests.NAME`."""
