"""Pure bytes: the Avro codec, decided records, the hash chains, the store keys, the partitioner."""
