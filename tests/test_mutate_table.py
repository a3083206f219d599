"""The table of event types under mutation: a sample, since the whole is a command of its own."""

from __future__ import annotations

from foldlog.core.catalogue import CATALOGUE
from tests.mutate_table import SEEDS, corpus, has_marks, mutations, noticed

SHARE = 5  # One mutation of so many; all of them: python -m tests.mutate_table


def test_a_sample_of_mutations_is_noticed() -> None:
    """Whatever is taken from a row of the table, a decision or a law shows it."""
    by_type = corpus(SEEDS)
    sample = list(mutations())[::SHARE]
    assert [str(mutation) for mutation in sample if noticed(mutation, by_type) is None] == []


def test_every_row_has_the_contracts_marks() -> None:
    """Commuting, floating and reporting types are those that the contract marks."""
    assert [row.name for row in CATALOGUE.values() if not has_marks(row)] == []
