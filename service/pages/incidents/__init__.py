"""The pages of incidents."""
