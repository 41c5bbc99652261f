"""Lists of a project, each declared as a table of columns: sorted by headings, filtered by the address, paged by cursor, exported."""
