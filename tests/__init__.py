"""The tests, by lanes: a folder says what its tests need.

law      reads the source, the docs and the files of deploy/
unit     the package's own code: threads and files, but no socket, no process, no App
contract what every store promises, on each engine
service  a service in the test's own process, on real sockets
process  programs, and what may have to be installed: browsers, proxies, strace, Node
support  helpers of all of these
fuzz     fuzzers, for hours
"""
