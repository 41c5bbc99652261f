"""Agents of real frameworks, each as short as its own documentation has it, and instrumented as that says."""
