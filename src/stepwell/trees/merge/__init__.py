"""Three-way merge of one file, without a tree: the caller gives the versions and gets the merged one.

Entry points:

    file_merge.merge              merge three versions of a file: content and mode
    text_merge.merge_text         merge three texts with git, hunk by hunk

The package imports the domain's values, and runs git. It changes no file but temporary ones of its own.

Invariants:

- A merge depends on the versions alone, not on the user's git configuration.
- Edits outside of the hunks are merged, and belong to every resolution.
"""
