"""The strategies. A strategy turns a view of a rollout into its next step."""
