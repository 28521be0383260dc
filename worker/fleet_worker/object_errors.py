"""Errors of object stores as refusals. Texts of a store are not shown: they are untrusted, and may be long."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import PreconditionError

from fleet_worker.errors import Refusal
from fleet_worker.object_stores import REQUEST_SECONDS
from fleet_worker.protocol import Reason

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,40})</Code>")
_SECRET = "the Secret of spec.weights.objectStore"  # noqa: S105 - a name for messages
_RIGHTS = "list the bucket and read its objects"


def replaced(name: str) -> Refusal:
    """Return the refusal of an object that is not the one that was listed."""
    return Refusal(
        Reason.CHECKPOINT_CHANGED,
        f"{name} was replaced in the store while the worker read it; publish the new object under another version",
    )


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turn errors of the library into refusals.

    Args:
        uri: Of the object or the prefix that is read in the block.
    """
    try:
        yield
    except Refusal:
        raise
    except PreconditionError as error:
        raise replaced(uri.rpartition("/")[2]) from error
    except FileNotFoundError as error:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND, f"the store has listed {uri}, and does not have it"
        ) from error
    except Exception as error:  # each class of the library, and its general one
        raise Refusal(Reason.SOURCE_UNREADABLE, cause_of(error, uri)) from error


def cause_of(error: Exception, uri: str, *, secret: str = _SECRET, rights: str = _RIGHTS) -> str:
    """Return the cause and the remedy of an error of the library, which may hold an answer of the store.

    Args:
        error: The error.
        uri: Of the object or the prefix.
        secret: The Secret with the keys, for the remedy.
        rights: The rights that the keys need, for the remedy.
    """
    if isinstance(error, MemoryError):
        why = "answers with more than a listing or an error has. Check that the endpoint is one of an object store"
    else:
        why = _why(str(error), secret, rights)
    return f"the store of {'/'.join(uri.split('/')[:3])} {why}"


def _why(text: str, secret: str, rights: str) -> str:
    status, code = (found[1] if (found := each.search(text)) else "" for each in (_STATUS, _CODE))
    tight = "".join(text.split())  # a cause of the TLS library is printed over several lines
    answer = f"answers with status {status}" + (f" ({code})" if code else "")
    is_alone = "//169.254." in text or "//metadata" in text or "Generic S3 error: Missing" in text
    causes = (
        (
            is_alone,
            f"needs keys, and the pod has no identity: put keys into {secret}, or name a service account",
        ),
        (
            "GCP credential error" in text or "CryptoProvider error" in text,
            f"needs another key: GOOGLE_SERVICE_ACCOUNT_KEY in {secret} is not the JSON of a service account",
        ),
        (
            status in {"401", "403"} or code.endswith("UserNotFound"),
            f"{answer}. Check the keys in {secret}, or the pods' role: it must {rights}",
        ),
        (
            "invalid path" in text,
            "lists an object whose name has an empty part, or . or .. in it. Remove this object",
        ),
        (status == "404", f"{answer}. Check the name of the bucket, and the endpoint"),
        (
            status.startswith("3") or "redirect" in text,
            "redirects the worker. Set the region and the endpoint of the bucket",
        ),
        (bool(status), answer),
        (
            "InvalidCertificate(Expired" in tight,
            "has a certificate that has expired, by the clock of the worker's node. Renew it at the store",
        ),
        (
            "InvalidCertificate(NotValidYet" in tight,
            "has a certificate that is not valid yet, by the clock of the worker's node. Compare the clocks",
        ),
        (
            "InvalidCertificate(NotValidForName" in tight,
            "has a certificate of another name. Set an endpoint that the certificate names",
        ),
        (
            "certificate" in text.lower(),
            "has a certificate that the worker does not trust. Put its authority into the key ca.crt of the Secret",
        ),
        (
            "timed out" in text or "TimedOut" in text,
            f"does not answer in time: a request has {REQUEST_SECONDS} s",
        ),
        (True, "cannot be reached. Check its endpoint, and whether a NetworkPolicy permits it"),
    )
    return next(remedy for applies, remedy in causes if applies)
