"""Results of evaluations: aggregates, scores of the dimensions, documents, reports."""
