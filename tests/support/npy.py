"""Files of numpy without numpy."""

from __future__ import annotations

import base64


def npy(kind: str, shape: tuple[int, ...], rows: bytes, *, version: int = 1) -> str:
    """A `.npy` file in base64, as numpy writes it: its header is padded to 64 bytes.

    Args:
        kind: The type of the values, e.g. `|u1`.
        shape: The shape of the array.
        rows: Its bytes.
        version: The version of the format.
    """
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    size = 2 if version == 1 else 4
    header += " " * (-(8 + size + len(header) + 1) % 64) + "\n"
    head = b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(size, "little")
    return base64.b64encode(head + header.encode() + rows).decode()
