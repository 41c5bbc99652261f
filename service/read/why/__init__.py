"""The explanation of an incident and what to do about it, in words that its page, the API, the command line and alerts share.

Everything here is derived from the evidence that an incident carries: no query, no clock, and older incidents get as much as they have.
"""
