"""The projection's storage behind one protocol: memory and RocksDB."""
