"""What can go wrong: one class for each kind, all below `Error`.

A message says what failed, why, and what to do now. The attributes `what`, `why`, `instead`, `id`, `session`, `holder`,
`until` and `limit` hold its parts where the kind has them, else `None`.
"""

from __future__ import annotations

__all__ = [
    "Ambiguous",
    "Busy",
    "ClockBack",
    "Closed",
    "Config",
    "Conflict",
    "Corrupt",
    "Error",
    "Fenced",
    "File",
    "Forked",
    "Held",
    "Import",
    "Invalid",
    "Io",
    "Key",
    "Newer",
    "NoSpace",
    "NotFound",
    "NotResumable",
    "Pruned",
    "ReadOnly",
    "Refused",
    "TooLarge",
    "Unavailable",
    "Unsupported",
]


class Error(Exception):
    """Whatever Milepost could not do."""

    what: str | None = None
    why: str | None = None
    instead: str | None = None
    id: str | None = None
    session: str | None = None
    holder: str | None = None
    until: str | None = None
    limit: str | None = None


class NotFound(Error, LookupError):
    """The thing asked for is not there."""


class Conflict(Error):
    """Someone else wrote first. `what` is `head`, `record`, `exists` or `branches`. Read again and decide anew."""


class Held(Error):
    """Someone else holds the session: `holder`, until `until`."""


class Fenced(Error):
    """The session was taken over. Stop working on it."""


class Invalid(Error, ValueError):
    """What was given is not allowed."""


class TooLarge(Error, ValueError):
    """The limit `limit` was passed."""


class Corrupt(Error):
    """Stored data are damaged. What is whole can still be read."""


class Pruned(Error):
    """The state there was given up by pruning."""


class Key(Error):
    """A key is missing, wrong or destroyed."""


class Newer(Error):
    """Written by a newer version, or not by Milepost at all."""


class NoSpace(Error, OSError):
    """The disk is full. Nothing was stored."""


class ReadOnly(Error, OSError):
    """The store cannot be written to."""


class ClockBack(Error):
    """The clock shows a time long before what is already stored."""


class Io(Error, OSError):
    """The device failed while writing: this write may or may not be there."""


class Busy(Error):
    """Another process kept the store locked for too long. Nothing was stored."""


class Unavailable(Error, ConnectionError):
    """The server that holds the store cannot be reached. Nothing was stored."""


class Unsupported(Error, NotImplementedError):
    """This store cannot do that."""


class Closed(Error):
    """The store was closed."""


class Ambiguous(Error, LookupError):
    """A shortened id, or a label, fits several things."""


class NotResumable(Error):
    """A session cannot go on from there."""


class Refused(Error):
    """What was asked makes no sense here."""


class Config(Error, ValueError):
    """A setting is wrong."""


class Import(Error, ValueError):
    """What is to be imported is damaged, changed, or of another form."""


class File(Error, OSError):
    """A file or directory could not be read or written."""


class Forked(Error):
    """It belongs to the process that this one was forked from."""
