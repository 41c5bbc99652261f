"""Completion for shells: a table of all commands made from the code, answers from it, and a script per shell.

No module here loads a command, because a shell waits for the answer at each Tab.
"""
