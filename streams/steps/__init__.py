"""The steps: each stage's logic over a batch."""
