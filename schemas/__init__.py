"""The contracts: Avro schemas, generated records, codec, bounds and errors."""
