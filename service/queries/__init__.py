"""Questions of analysts: each is answered by a process of its own, from a snapshot, within limits."""
