"""Administration as pages, for admins of every project: access, the policy, retention and erasure, and the audit log."""
