"""Incidents of all projects: the filters of an address, the list, and who may be the assignee."""
