"""The order of things: watches, queue, reconcile, lease. Decides nothing."""
