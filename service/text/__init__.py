"""The lowest floor: texts of numbers, times, terms, cursors and addresses, for people and programs. Imports nothing of `service`."""
