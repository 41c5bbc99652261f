"""Typed answers about stored records, one module per entity. Knows no caller: no web framework, no terminal, no HTML."""
