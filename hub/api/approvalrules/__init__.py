"""ApprovalRules: rules that accept clusters and approve requests without a person."""
