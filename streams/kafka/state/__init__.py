"""State topics: what a stage keeps of its sessions, compacted, and its copy on local disk."""
