"""Evidence that no agent reports and a transcript shows: unused outputs, unsupported claims, skills not followed."""
