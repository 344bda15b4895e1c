"""APIs of other products, so that their clients work unchanged: one room for each, which nothing else needs.

A room holds its routes, its use cases and its commands. One line of `app` registers it, and one of `cli`; the service
starts without it.
"""
