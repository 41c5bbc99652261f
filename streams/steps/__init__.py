"""The steps: what each stage does with a batch."""
