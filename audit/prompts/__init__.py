"""The prompts that ask a judge about an exchange, and the answers as checked values. Nothing here calls a judge."""
