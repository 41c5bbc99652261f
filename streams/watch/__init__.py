"""The watch: keeps baselines fresh, applies the rules of drift, and makes incidents of what they find."""
