"""Agora's Conversational AI Engine, and apps of the TEN framework: what they tell their clients."""
