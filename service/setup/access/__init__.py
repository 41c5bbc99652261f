"""Access to the server: connections, operators, tokens, sign-ins, and the audit log of changes."""
