"""Which experts each token went to, in the form that trainers' clients cut out of a reply.

vLLM writes a base64 string of a `.npy` file, without saying where it begins. Clients look for
`"routed_experts":{"data":"` in the bytes of a reply and take megabytes out of it before they parse
the rest; so `data` comes first, and nothing stands between.

```
"routed_experts":"k05VTVBZ…"  →  "routed_experts":{"data":"…","shape":[9,48,8],"start":0,"dtype":"uint8"}
```

Rows are those of the sequence from `start` on; vLLM has none for the last token, which it never
read. Source: `numpy.lib.format`, version 1 and 2; `vllm.utils.serial_utils`, vLLM 0.32.
"""

from __future__ import annotations

import base64
import json
import re

# The string cannot stand inside of another one, where its quotes would be escaped.
_FIELD = re.compile(rb'"routed_experts":"([A-Za-z0-9+/=]*)"')
_HEADER = re.compile(
    rb"\{'descr': '([^']+)', 'fortran_order': False, 'shape': \((\d+), (\d+), (\d+)\), \}\s*"
)
_MAGIC = b"\x93NUMPY"
_TYPES = {b"|u1": "uint8", b"<u2": "uint16", b"<i4": "int32"}


class RoutedExpertsError(ValueError):
    """vLLM's string is not what it is believed to be."""


def rewritten(piece: bytes, start: int) -> bytes:
    """A reply, or an event of a stream, with its routed experts as objects.

    Args:
        piece: As vLLM wrote it.
        start: Position in the sequence of the first row.

    Errors:
        RoutedExpertsError: see there.
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
    # A view, not a copy: with many tokens, layers and experts this is most of the reply.
    rows = base64.b64encode(memoryview(file)[begin:])
    described = json.dumps({"shape": shape, "start": start, "dtype": kind}, separators=(",", ":"))
    return b'{"data":"' + rows + b'",' + described[1:].encode()
