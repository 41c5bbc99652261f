"""The part of a run that the judge is shown: an allow-list of texts, scrubbed, marked and cut to size."""
