"""The weights of each token: tracking, stamps in replies, and the demands of requests."""
