"""Rewrite the routed experts of tokens into the form that trainers' clients read.

vLLM writes a base64 string of a `.npy` file, without the position of its first row. Clients search the
bytes of a reply for `"routed_experts":{"data":"` and cut out megabytes before they parse the rest. So
`data` comes first, with nothing before it.

```
"routed_experts":"k05VTVBZ…"  →  "routed_experts":{"data":"…","shape":[9,48,8],"start":0,"dtype":"uint8"}
```

The first row belongs to position `start` of the sequence. vLLM has no row for the last token, because
it never reads that token. Source: `numpy.lib.format`, version 1 and 2, and
`vllm.utils.serial_utils` of vLLM.
"""

from __future__ import annotations

import base64
import json
import re

# A JSON string cannot contain this pattern, because its quotes would be escaped.
_FIELD = re.compile(rb'"routed_experts":"([A-Za-z0-9+/=]*)"')
_HEADER = re.compile(
    rb"\{'descr': '([^']+)', 'fortran_order': False, 'shape': \((\d+), (\d+), (\d+)\), \}\s*"
)
_MAGIC = b"\x93NUMPY"
_TYPES = {b"|u1": "uint8", b"<u2": "uint16", b"<i4": "int32"}


class RoutedExpertsError(ValueError):
    """vLLM's string does not have the expected form."""


def rewritten(piece: bytes, start: int) -> bytes:
    """Return a reply, or an event of a stream, with its routed experts as objects.

    Args:
        piece: Bytes from vLLM.
        start: Position of the first row in the sequence.

    Errors:
        RoutedExpertsError: vLLM's string does not have the expected form.
    """
    if b'"routed_experts":"' not in piece:
        return piece
    return _FIELD.sub(lambda found: b'"routed_experts":' + _object(found.group(1), start), piece)


def _object(encoded: bytes, start: int) -> bytes:
    file = base64.b64decode(encoded)
    if not file.startswith(_MAGIC) or file[6] not in (1, 2):
        raise RoutedExpertsError("routed experts are not a .npy file")
    size = 2 if file[6] == 1 else 4
    begin = 8 + size + int.from_bytes(file[8 : 8 + size], "little")
    header = _HEADER.fullmatch(file, 8 + size, begin)
    if header is None or (kind := _TYPES.get(header.group(1))) is None:
        raise RoutedExpertsError("routed experts have an unknown form")
    shape = [int(each) for each in header.group(2, 3, 4)]
    # A view instead of a copy: this may be most of the reply.
    rows = base64.b64encode(memoryview(file)[begin:])
    described = json.dumps({"shape": shape, "start": start, "dtype": kind}, separators=(",", ":"))
    return b'{"data":"' + rows + b'",' + described[1:].encode()
