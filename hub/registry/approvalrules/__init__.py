"""ApprovalRules and their decisions."""
