"""Splitters: for each kind of text, where its parts begin.

A splitter is a function `borders(lines)` that returns `lines.Border`s, or None if the text is not of its kind. It does
not decide about sizes: `windows` merges and cuts. So a splitter may miss a border, or find one too many, and still
every byte is in exactly one part.

- `python`: by the syntax tree (`python_tree`); `syntax_tree` with the table `grammars`: by the trees of tree-sitter;
  `definitions` with the table `languages`: other languages, by patterns of lines.
- `headings`: Markdown, reStructuredText, AsciiDoc and Org; `turns`: conversations in JSONL.
- `references`: the names and files that a part refers to.

All functions are pure and depend on the text alone. Patterns are linear in the length of a line, and long lines are
skipped, because the texts come from anywhere.
"""
