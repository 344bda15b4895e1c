"""The bytes of each project's journals, counted while they are bounded, in the transactions that change them.

Triggers of the writer's own connection count, so that no way to add or delete entries can be forgotten, and nothing is
paid where there is no bound. The counts are in the file, so that a restart reads nothing else.
"""

from __future__ import annotations

import apsw

from voicemem.errors import CannotStart
from voicemem.store.sqlite.database.transactions import transaction

COUNT_ROWS = """
    create temp trigger if not exists count_{table}_{when} after {when} on main.{table} begin
        insert into stored_bytes select project, 0 from streams
        where key = {row}.stream and project not in (select project from stored_bytes);
        update stored_bytes set bytes = bytes {sign} length({row}.{column})
        where project = (select project from streams where key = {row}.stream);
    end
"""
COUNTED = (("journal", "payload"), ("archives", "runs"))
CHANGES = (("insert", "new", "+"), ("delete", "old", "-"))
SELECT_IS_COUNTED = "select exists (select 1 from stored_bytes)"
COUNT_ALL = """
    insert into stored_bytes select project, sum(size) from (
        select stream, length(payload) as size from journal union all select stream, length(runs) from archives
    ) join streams on key = stream group by project
"""
FORGET_ALL = "delete from stored_bytes"
SELECT_IS_FULL = "select 1 from stored_bytes where project = ? and bytes >= ?"


def begin_counting(connection: apsw.Connection) -> None:
    """Count from now on; where nothing was counted before, the whole store is read once. Raises `CannotStart`."""
    try:
        with transaction(connection):
            if not is_counted(connection):
                connection.execute(COUNT_ALL)
            for table, column in COUNTED:
                for when, row, sign in CHANGES:
                    connection.execute(COUNT_ROWS.format(table=table, column=column, when=when, row=row, sign=sign))
    except apsw.Error as error:
        raise CannotStart(f"The stored bytes cannot be counted: {error}.") from None


def forget_counts(connection: apsw.Connection) -> None:
    """Drop what was counted, since it will not be kept up. Raises `CannotStart`."""
    try:
        if is_counted(connection):
            connection.execute(FORGET_ALL)
    except apsw.Error as error:
        raise CannotStart(f"The counts of stored bytes cannot be dropped: {error}.") from None


def is_counted(connection: apsw.Connection) -> bool:
    ((counted,),) = connection.execute(SELECT_IS_COUNTED)
    return bool(counted)


def is_full(connection: apsw.Connection, project: str, quota: int) -> bool:
    """Whether a project has used up its bytes, as of what the transaction has inserted."""
    return connection.execute(SELECT_IS_FULL, (project, quota)).fetchone() is not None
