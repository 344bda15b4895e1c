"""APIs of other products, so that their clients work unchanged: a package for each, which no other package needs.

A package has its routes, use cases and commands. One line of `app` registers it, and one of `cli`; the service starts
without it.
"""
