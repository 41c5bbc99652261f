"""Lists of a project that sort by heading, filter by the address, go on by a cursor, and are exported: each is a table of columns."""
