"""Typed answers about what is stored, one module per entity. Knows no caller: no web framework, no terminal, no HTML."""
