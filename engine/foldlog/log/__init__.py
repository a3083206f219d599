"""The two logs behind one protocol: memory and SQLite."""
