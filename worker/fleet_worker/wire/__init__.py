"""What goes over the wire: one thin folder a surface, in front of one agent.

`public` guards and stamps vLLM's own routes; `admin` is the operator's protocol. Later surfaces
translate to the same agent calls (one weight path) and the same stamps (one token path).
"""
