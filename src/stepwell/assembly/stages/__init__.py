"""The stages of the assembly pipeline, one to a module.

Each module has the type of its stage (a `Callable`), its variants, and `COMPONENTS`: the variants by name, the default
first. Stages are pure functions: they read bodies through the view that they are given, keep no state between two
calls, and read no clock.

The order is that of `stepwell.assembly.pipeline`: select, allocate, fuse, expand, dedupe, score, pack (which calls
depth), order, preamble and skeleton. A stage may import values and texts of `stepwell.assembly`, and earlier stages;
never the pipeline.

Numbers without another reason were measured on meetings, code and prose; none of them is sensitive.
"""
