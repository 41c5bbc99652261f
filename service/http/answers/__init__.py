"""Bodies and answers of the API, field by field: one definition for validation and documentation."""
