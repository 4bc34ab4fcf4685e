"""The doctor: what storage a node has, whether GPUDirect engages, and what starves the GPUs.

How to add a subject:

1. `<subject>.py` (split before it passes 450 lines): pure parsers `text -> value` that never raise, pure judgements
   `value -> list[Finding]`. Every kind of finding is a `FindingId` constant; findings are made from it
   (`NFS_ONE_TCP.warn(subject, what, Evidence(line, source))`), so an undeclared id cannot occur. What is new to you is
   `kinds.LINE_UNKNOWN.unknown(...)` with the line; never branch on a file name, or on a literal of one sample.
2. A `Kind` for each text the user may hand to `stoker doctor explain`: `detect` from content alone, strict enough not
   to see other kinds' texts (a test runs every sample through every kind), `explain`, and `compare` for counters.
   Flattened `.tree` texts are of kind `sysfs-tree`: each subject declares its own under that name, with a `detect` for
   the paths it knows. `texts.py` has sections (`==> name <==`), trees, numbers, `key=value` words.
3. A `Check` for what it reads on a node: `run(node, target)` asks the `Node` (which answers `Missing(reason)`, never
   raises) and hands texts to the same parsers. Checks run at the same time, 2 s in all; `per_target`: once a target.
   What a path lies on is `identity.identify(node, path)`.
   Its id is one of C01 to C23; what a live check leaves out stands in `registry.LEFT_OUT`, with the reason.
4. `SUBJECT = Subject(name, ids, kinds, checks)`, and a line in `registry.SUBJECTS`.
5. Modules into section 6 of docs/design.md, and a block for the subject into docs/reference/findings.md: a test holds
   the page to the ids, and prints what to put there. A test for each row of tests/unit/doctor/samples/INDEX.md; the
   tests over all samples and the fuzz test take new kinds by themselves.

Two moments of one thing (`NAME-t0`, `NAME-t1` in a folder, or files in a row) go to `Kind.compare`. The attribution of
a stall reads two moments too, but wants numbers: `signals.py` has its own readers, `stall.py` the verdict. What a
ledger says comes from `stoker.meter`, which lies beside this room: the command line joins the two.
"""
