"""Bodies and answers of the API, field by field: one definition for checking and for the documentation."""
