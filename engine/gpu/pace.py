"""Whether the host kept the device fed while programs were timed: the events' clock against the host's. Imported by both sides."""

HOST_OVER_EVENTS = 2.0  # a batch that took the host twice what the events say was disturbed
_LEAST_SPOILT, _SPOILT = 2, 0.25  # batches that one comparison may lose to the host, and what part of them


class Pace:
    """Over the batches of one comparison, of which there are at most so many.

    What the host disturbed is timed again, but not for ever: from then on it counts, and the comparison is told to be disturbed.
    """

    def __init__(self, batches: int) -> None:
        self._left = max(_LEAST_SPOILT, int(_SPOILT * batches))
        self.worst = 0.0  # the host's time over the events', of what counts

    def spoilt(self, host_us: float, span_us: float) -> bool:
        """Whether a batch does not count."""
        gap = host_us / max(span_us, 1.0)
        if gap > HOST_OVER_EVENTS and self._left:
            self._left -= 1
            return True
        self.worst = max(self.worst, gap)
        return False
