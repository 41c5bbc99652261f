"""The explanation of an incident and the recommended actions, in words shared by its page, the API, the command line and alerts.

Everything here is derived from the incident's evidence, without queries or a clock; older incidents with less evidence get a shorter one.
"""
