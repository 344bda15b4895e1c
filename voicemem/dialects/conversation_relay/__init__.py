"""Twilio's ConversationRelay, and Telnyx's."""
