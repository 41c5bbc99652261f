"""Prompt injection: attempts of a text to sway the judge, recognized without a judge. Secrets are redacted next door."""
