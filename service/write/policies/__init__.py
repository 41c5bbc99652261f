"""The policy file of a server: read, checked, compared and replaced. The rules of a policy itself are in `audit.policy`."""
