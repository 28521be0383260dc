"""Dynamo's engine routes, `POST /engine/*`, on the admin port: flat names, `control/*`, `update/*`."""
