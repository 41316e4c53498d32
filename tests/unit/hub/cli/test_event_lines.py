"""What hubctl prints of Events as they come."""

import pytest

from hub.cli.events import Documents, Lines

FIRST = {
    "metadata": {"name": "a"},
    "type": "Warning",
    "reason": "Because",
    "message": "it\nhappened",
    "involvedObject": {"kind": "ManagedCluster", "name": "edge1"},
    "lastTimestamp": "2026-01-01T00:00:01Z",
}
AGAIN = {**FIRST, "count": 3, "series": {"lastObservedTime": "2026-01-01T00:00:09.123456Z"}}


def test_an_event_that_comes_stands_below_the_others_and_one_that_goes_is_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.first({"items": [FIRST]})
    lines.event("MODIFIED", AGAIN)
    lines.event("DELETED", FIRST)
    header, first, again = capsys.readouterr().out.splitlines()
    assert header.split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert first.split()[:4] == ["2026-01-01T00:00:01Z", "Warning", "Because", "managedcluster/edge1"]
    assert first.endswith("it happened"), "one line, whatever a message holds"
    assert (again.split()[0], again.endswith("it happened (x3)")) == ("2026-01-01T00:00:09Z", True)
    assert header.index("MESSAGE") == first.index("it happened") == again.index("it happened")


def test_events_as_documents_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    documents = Documents("json")
    documents.first({"items": [FIRST]})
    documents.event("ADDED", AGAIN)
    documents.event("DELETED", AGAIN)
    assert capsys.readouterr().out.count('"reason": "Because"') == 2
