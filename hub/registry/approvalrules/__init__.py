"""ApprovalRules and the decisions by them."""
