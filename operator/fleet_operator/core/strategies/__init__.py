"""One file a strategy; each turns a view of a rollout into its next step."""
