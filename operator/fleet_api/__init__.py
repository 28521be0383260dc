"""The RL API: one address at which trainers read and change the weights of fleets."""
