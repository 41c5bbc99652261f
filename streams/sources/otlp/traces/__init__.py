"""From the spans of one trace to exchanges, events and ratings. No bytes, no store and no clock: spans come as facts."""
