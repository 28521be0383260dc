"""The moving picture of the front page: the same story by a hand-written loop and by rlfleet.

Three workers generate for clients behind a Service. A trainer publishes versions, and one engine is
killed on the way. Every token is recomputed afterwards. `make race` records both sides into
bench/results/race.json, from which `make generate` draws the picture.
"""
