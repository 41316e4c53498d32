from datetime import timedelta

import pytest

from hollow.faults import Faults
from machinery.errors import InvalidError


def test_faults_are_named_as_on_the_command_line() -> None:
    assert Faults.named("slow=1500ms", "not-live") == Faults(slow=timedelta(seconds=1.5), not_live=True)


def test_no_word_means_healthy() -> None:
    assert Faults.named() == Faults()


def test_the_document_of_faults_reads_back_as_the_same_faults() -> None:
    faults = Faults(slow=timedelta(seconds=2), error=True, hang=True, not_live=True, no_livez=True, stall_after_write=3)
    assert Faults.from_document(faults.document()) == faults
    assert Faults().document() == {}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("broken", 'no fault is called "broken": use error, hang'),
        ("slow", "slow=2s"),
        ("slow=-1s", "slow=2s"),
        ("stall-after-write=0", "from 1 on"),
        ("stall-before-write", "from 1 on"),
    ],
)
def test_a_word_that_is_no_fault_is_refused_with_those_that_are(word: str, said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        Faults.named(word)
