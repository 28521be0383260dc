"""Names the WeightVersions that exist, where one is not found."""

from __future__ import annotations

from difflib import get_close_matches

from rlfleet.errors import RlfleetError
from rlfleet.ports import Kind, Place

_MOST_NAMED = 10


async def hint(place: Place, name: str) -> str:
    """The end of a message for a name that does not exist.

    Empty if it exists, where there are no others, and if the account may not list them.
    """
    try:
        found = await place.all(Kind.WEIGHTS)
    except RlfleetError:
        return ""
    there = sorted(one["metadata"]["name"] for one in found)
    if name in there or not there:
        return ""
    near = get_close_matches(name, there, n=3)
    if near:
        return f". Did you mean {' or '.join(near)}?"
    more = len(there) - _MOST_NAMED
    return f". There are: {', '.join(there[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"
