"""From the judge's answers on a run to a result: aggregates, scores of the dimensions, documents, reports."""
