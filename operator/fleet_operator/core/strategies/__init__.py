"""One file per strategy. A strategy turns a view of a rollout into its next step."""
