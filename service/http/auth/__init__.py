"""Authentication: tokens, cookies, sign-in, and the audit trail of changes."""
