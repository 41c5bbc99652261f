"""Records to bytes and back: single objects, canonical form, batches to Arrow columns. No rule about what a record may say."""
