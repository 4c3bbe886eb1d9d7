"""Borders of programs by the syntax trees of tree-sitter: at functions, and at the members of large classes.

The parser tolerates errors: what it cannot read becomes a node of its own, and the definitions around it are found all
the same. The lines between two definitions are a stretch without a name.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from stepwell import limits
from stepwell.ingest.splitters.grammars import Grammar, parser_of
from stepwell.ingest.splitters.languages import Language
from stepwell.ingest.splitters.lines import Border, Lines, Role

_WHOLE_BYTES_MAX: Final = 1_000  # of a class that stays one part with its members
_NAME_CHARS_MAX: Final = 120
_FUNCTION_VALUES: Final = frozenset(
    {"arrow_function", "function_expression", "generator_function", "class", "function", "object"}
)
"""Types of nodes that define something when they are assigned to a name."""
_TRANSPARENT_TYPES: Final = """
    ERROR ambient_declaration arguments arrow_function block body_statement call_expression class_body declaration
    declaration_list decorated_definition enum_body enum_body_declarations export_statement expression_statement
    field_declaration field_declaration_list file_scoped_namespace_declaration function_expression if_statement
    interface_body internal_module linkage_specification namespace_definition object parenthesized_expression
    preproc_elif preproc_else preproc_if preproc_ifdef statement_block template_declaration
"""
_TRANSPARENT: Final = frozenset(_TRANSPARENT_TYPES.split())
"""Types of nodes whose children are looked at as if they stood in place of them."""
_OPENING: Final = b"([{"
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"()[]{}")
_SCRIPT: Final = re.compile(rb"<script\b[^>]{0,200}>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_TYPE_NAME: Final = re.compile(r"[A-Za-z_]\w*")


def borders(lines: Lines, grammar: Grammar, language: Language) -> list[Border] | None:
    """Return the borders of definitions, and of the stretches between them.

    None means that there is no definition, or that the text is nested so deeply that a parser would take minutes.
    """
    if _is_nested_too_deeply(lines.data):
        return None
    is_page = lines.data[:1] == b"<" or b"<script" in lines.data[: limits.INGEST_SNIFFED_BYTES]
    data = _scripts_only(lines.data) if is_page and b"</script>" in lines.data else lines.data
    tree = parser_of(grammar).parse(data)
    found = [*_Walk(lines, grammar, language).borders(tree.root_node)]
    return found if any(each.name for each in found) else None


def _is_nested_too_deeply(data: bytes) -> bool:
    """Return True if more brackets are open at one place than in any program.

    Some grammars take a time that is quadratic in that number, and a parse cannot be stopped.
    """
    depth = 0
    for bracket in data.translate(None, _NO_BRACKETS):
        depth = depth + 1 if bracket in _OPENING else max(0, depth - 1)
        if depth > limits.SYNTAX_BRACKETS_MAX:
            return True
    return False


class _Walk:
    """One walk over the tree of a file, in the order of the text. It lives for one call of `borders`."""

    def __init__(self, lines: Lines, grammar: Grammar, language: Language) -> None:
        self._lines: Final = lines
        self._grammar: Final = grammar
        self._comments: Final = language.comments
        self._above = 0
        """The line before which no comment of the next definition begins."""

    def borders(self, root: Node) -> Iterator[Border]:
        """Yield the borders of a file."""
        yield from self._children(root, "", 0)

    def _children(self, node: Node, scope: str, depth: int) -> Iterator[Border]:
        """Yield the borders of the definitions among the children of a node, and of those that wrap one."""
        for child in node.named_children:
            definition, name = self._definition(child)
            if definition is not None and name:
                yield from self._of_definition(child, definition, scope, name, depth)
            elif child.type in _TRANSPARENT and depth < limits.SYNTAX_DEPTH_MAX:
                yield from self._children(child, scope, depth + 1)

    def _of_definition(self, outer: Node, node: Node, scope: str, name: str, depth: int) -> Iterator[Border]:
        """Yield the border of a definition, those of its members if it is large, and that of what follows it."""
        first, last = self._first_line(outer), self._line(node.end_byte)
        qualified = f"{scope}{self._grammar.separator}{name}" if scope else name
        is_holder = node.type in self._grammar.holders or node.type in {"class", "object"}
        is_open = is_holder and node.end_byte - node.start_byte > _WHOLE_BYTES_MAX
        yield Border(first, qualified, scope, role=Role.DEFINITION)
        self._above = self._line(node.start_byte) + 1
        if is_open and depth < limits.SYNTAX_DEPTH_MAX:
            body = node.child_by_field_name("body") or node
            yield from self._children(body, qualified, depth + 1)
        self._above = max(self._above, last + 1)
        yield Border(last + 1, "", scope, role=Role.REST)

    def _definition(self, node: Node) -> tuple[Node | None, str]:
        """Return the definition that a node is or wraps, with its name; None if it is none."""
        grammar, kind = self._grammar, node.type
        if kind in grammar.functions or kind in grammar.holders:
            has_body = kind not in {"struct_specifier", "class_specifier", "enum_specifier", "union_specifier"}
            return (node, _name(node)) if has_body or node.child_by_field_name("body") else (None, "")
        if kind in grammar.assigned:
            return _assigned(node)
        if kind in {"export_statement", "template_declaration", "decorated_definition"}:
            inner = next((each for each in node.named_children[::-1] if self._definition(each)[1]), None)
            return (None, "") if inner is None else self._definition(inner)
        return None, ""

    def _first_line(self, node: Node) -> int:
        """Return the line on which a definition begins, with the comments and attributes right above it."""
        begin = self._line(node.start_byte)
        texts = self._lines.texts
        while begin > self._above and texts[begin - 1].lstrip().startswith(self._comments):
            begin -= 1
        return begin

    def _line(self, byte: int) -> int:
        return max(0, min(bisect_right(self._lines.starts, byte) - 1, len(self._lines) - 1))


def _name(node: Node) -> str:
    """Return the name of a definition: that of its field, of its declarator in C, or of its type in `impl`."""
    if node.type == "type_declaration":  # of Go: the name is that of the only type in it, or of the first
        node = next((each for each in node.named_children if each.child_by_field_name("name")), node)
    named = node.child_by_field_name("name")
    if named is None and node.type == "impl_item":
        named = node.child_by_field_name("type")
        return _shortened(named, only_identifier=True)
    if named is None:
        named = _declarator(node)
    receiver = node.child_by_field_name("receiver")
    if receiver is not None and (owner := _identifiers(receiver)):
        return f"{owner[-1]}.{_shortened(named)}"
    return _shortened(named)


def _identifiers(node: Node) -> list[str]:
    """Return the names of the receiver of a method in Go, without the parameters of its type."""
    text = (node.text or b"").decode(errors="replace").partition("[")[0]
    return _TYPE_NAME.findall(text)


def _declarator(node: Node) -> Node | None:
    """Return the innermost declarator of a definition in C: the name of the function or type."""
    inner = node.child_by_field_name("declarator")
    for _ in range(limits.SYNTAX_DEPTH_MAX):
        below = None if inner is None else inner.child_by_field_name("declarator")
        if below is None and inner is not None and inner.type in {"reference_declarator", "parenthesized_declarator"}:
            below = next(iter(inner.named_children), None)
        if below is None:
            return inner
        inner = below
    return inner


def _assigned(node: Node) -> tuple[Node | None, str]:
    """Return the function, class or object that a statement assigns to a name, and the name."""
    holder = next((each for each in node.named_children if each.type == "variable_declarator"), node)
    if node.type == "expression_statement":
        holder = next(iter(node.named_children), node)
        if holder.type == "internal_module":
            return holder, _name(holder)
    value = holder.child_by_field_name("value") or holder.child_by_field_name("right")
    if value is None or value.type not in _FUNCTION_VALUES:
        return None, ""
    target = (
        holder.child_by_field_name("name")
        or holder.child_by_field_name("left")
        or holder.child_by_field_name("property")
        or holder.child_by_field_name("key")
    )
    name = _shortened(target).replace(".prototype.", ".").removeprefix("module.exports.").removeprefix("exports.")
    return value, name.strip("\"'")


def _shortened(node: Node | None, *, only_identifier: bool = False) -> str:
    """Return the text of a node in one line, as long as a name may be."""
    text = "" if node is None or node.text is None else " ".join(node.text.decode(errors="replace").split())
    if only_identifier and (found := _TYPE_NAME.search(text)):
        return found[0]
    return text[:_NAME_CHARS_MAX].strip("\"'")


def _scripts_only(page: bytes) -> bytes:
    """Return a page with blanks in place of everything but its scripts, so that all positions stay."""
    found = bytearray(re.sub(rb"[^\r\n]", b" ", page))
    for script in _SCRIPT.finditer(page):
        found[script.start(1) : script.end(1)] = script[1]
    return bytes(found)
