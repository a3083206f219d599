"""A copy of a run up to a revision, under another id, as records that an import carries.

Invariants:
- The parent is only read, and every record of it is checked on the way.
- Whoever forks the same revision under the same id again makes the same import: one that a crash
  cut off goes on. Only its last record differs, which is there last.
- A batch id that the copied records used stays used.
"""

from collections.abc import Iterator
from hashlib import blake2b

from foldlog.core.document import document
from foldlog.core.forks import RUN_FORKED, changed_effects
from foldlog.core.proposals import Proposal
from foldlog.core.state import RunState
from foldlog.core.values import Author
from foldlog.fold import Fold
from foldlog.version import __version__
from foldlog.views import View, fold_run
from foldlog.wire.chain import ZERO
from foldlog.wire.envelope import batch_id_text, encode_proposal, readdressed
from foldlog.wire.imports import ImportPart, parts_of
from foldlog.wire.records import Record, encode_record
from foldlog.wire.slots import STATE_FORMAT


def parts_of_fork(
    view: View, run_id: str, revision: int, new_id: str, author: Author, log_time: int
) -> list[ImportPart] | None:
    """The parts of an import that makes the fork; None if the run has no such revision.

    ``log_time`` (microseconds) is that of the record that closes it. Malformed if a proposal is
    too large under the new id, or the parent made too many effects since.
    """
    working, _ = fold_run(view, run_id, revision=revision)
    parent = working.run(run_id).state()
    if revision < 1 or parent.header.revision != revision:
        return None
    fork_id = _fork_id(parent, new_id)
    fold = view.fold_of_a_run()
    records = [encode_record(record) for record in _copied(view, fold, parent, new_id)]
    now = view.run(run_id).state()
    last = _last(parent, now, new_id, batch_id_text(fork_id), author, log_time)
    records.append(encode_record(fold.restate(last._replace(sequence=len(records) + 1))))
    return parts_of(new_id, records, author, fork_id)


def _fork_id(parent: RunState, new_id: str) -> bytes:
    """The id of the import: which revision of which history becomes which run."""
    header, whole = parent.header, blake2b(digest_size=16, person=b"foldlog.fork")
    for text in (header.run_id, str(header.revision), header.chain, new_id):
        data = text.encode()
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.digest()


def _copied(view: View, fold: Fold, parent: RunState, new_id: str) -> Iterator[Record]:
    """The parent's records up to its revision as those of the new run."""
    for place, (record, _) in enumerate(view.chain(parent.header.run_id), start=1):
        if record.revision_before >= parent.header.revision:
            return
        proposal = None if record.proposal is None else readdressed(record.proposal, new_id)
        yield fold.restate(
            record._replace(
                run_id=new_id,
                sequence=place,
                proposal=proposal,
                previous=ZERO,
                duplicate_of=None,
                imported=None,
            )
        )


def _last(
    parent: RunState, now: RunState, new_id: str, batch_id: str, author: Author, log_time: int
) -> Record:
    """The record that closes the fork."""
    header = parent.header
    event = {
        "type": RUN_FORKED,
        "run_id": header.run_id,
        "revision": header.revision,
        "chain": header.chain,
        "effects": changed_effects(document(parent)["effects"], document(now)["effects"]),
    }
    proposal = Proposal(
        run_id=new_id,
        batch_id=batch_id,
        author=author,
        events=(event,),
        expected_revision=header.revision,
    )
    return Record(
        sequence=1,
        run_id=new_id,
        position=0,
        batch_id=batch_id,
        outcome="accepted",
        revision_before=header.revision,
        revision_after=header.revision + 1,
        rules_version=parent.value("rules"),
        appended_at=log_time,
        log_time=log_time,
        build=__version__,
        decider="",
        state_format=STATE_FORMAT,
        previous=ZERO,
        chain=ZERO,
        proposal=encode_proposal(proposal),
    )
