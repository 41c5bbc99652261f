"""Completion for shells: a table of all commands made from the code, answers from it, and a script per shell.

Nothing here loads a command: a shell waits for the answer at each Tab.
"""
