"""Texts below everything: numbers, times, words, cursors and addresses as people and programs read them. Imports nothing of `service`."""
