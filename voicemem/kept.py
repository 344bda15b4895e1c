"""What the LLM is shown of what is kept beside the call: working memory, and data when somebody asks for them."""

from __future__ import annotations

from voicemem.config import SessionConfig
from voicemem.documents import Document, WorkingMemoryConfig, data_shown, form_for, form_of, shown
from voicemem.events import Fields
from voicemem.memories import Memories
from voicemem.state import State


async def user_message(memories: Memories, project: str, settings: SessionConfig) -> Fields | None:
    """The system message of the document that a session shares with the others of its user, if it does."""
    section = settings.working_memory
    if section is None or section.scope != "user" or settings.user_id is None:
        return None
    stream = await memories.journal.user(project, settings.user_id)
    document = None if stream is None else (await memories.at(stream)).state.document
    return message_of(document, section)


def kept_messages(state: State, settings: SessionConfig, of_user: Fields | None, data: bool) -> tuple[Fields, ...]:
    """The system messages of a session. Its own document is shown where it is configured, or was written."""
    section, own = settings.working_memory, state.document
    messages = [] if of_user is None else [of_user]
    if section is not None and section.scope == "session":
        messages.append(message_of(own, section))
    elif section is None and own is not None and own.content is not None:
        messages.append(message_of(own, WorkingMemoryConfig()))
    if data and state.data:
        messages.append({"role": "system", "content": data_shown(state.data)})
    return tuple(messages)


def message_of(document: Document | None, section: WorkingMemoryConfig) -> Fields:
    document = document or Document()
    form = form_for(document.content, document.form, form_of(section))
    return {"role": "system", "content": shown(document.content, form, section.scope, section.tools)}
