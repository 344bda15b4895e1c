"""Sessions: recording their events, their life cycle, their read models, and live tails of them."""
