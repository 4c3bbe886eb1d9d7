"""The table of grammars: for each language with a tree-sitter parser, which nodes of its trees are definitions.

A grammar comes as a wheel with the package and is loaded when the first file of its language is split. Nothing is
downloaded. All other languages have patterns in `languages`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import tree_sitter
from msgspec import Struct

_SCRIPT_SUFFIXES: Final = (".js", ".jsx", ".mjs", ".cjs")


class Grammar(Struct, frozen=True):
    """The rules of one grammar.

    - `module` and `function`: the Python module of the grammar, and its function that returns the parser's table.
    - `suffixes`: the endings of file names.
    - `functions`: types of nodes that are definitions without members; what is inside belongs to them.
    - `holders`: types of nodes that are definitions with members, such as classes.
    - `assigned`: types of nodes that define the function which they assign to a name, if it is one.
    - `separator`: stands between a thing and its member in a name.
    """

    module: str
    suffixes: tuple[str, ...]
    functions: frozenset[str]
    holders: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    separator: str = "."
    function: str = "language"


def _types(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SCRIPT_FUNCTIONS: Final = _types(
    """function_declaration generator_function_declaration method_definition function_signature method_signature
    abstract_method_signature type_alias_declaration"""
)
_SCRIPT_HOLDERS: Final = _types(
    "class_declaration abstract_class_declaration interface_declaration internal_module module enum_declaration"
)
_SCRIPT_ASSIGNED: Final = _types(
    "lexical_declaration variable_declaration expression_statement public_field_definition field_definition pair"
)
_C_FUNCTIONS: Final = _types(
    "function_definition preproc_function_def inline_method_definition type_definition alias_declaration"
)
_C_HOLDERS: Final = _types(
    "class_specifier struct_specifier union_specifier enum_specifier namespace_definition concept_definition"
)

GRAMMARS: Final = (
    Grammar("tree_sitter_python", (".py", ".pyi", ".pyw"), _types("function_definition"), _types("class_definition")),
    Grammar("tree_sitter_javascript", _SCRIPT_SUFFIXES, _SCRIPT_FUNCTIONS, _SCRIPT_HOLDERS, _SCRIPT_ASSIGNED),
    Grammar(
        "tree_sitter_typescript",
        (".ts", ".mts", ".cts", ".vue", ".svelte"),
        _SCRIPT_FUNCTIONS,
        _SCRIPT_HOLDERS,
        _SCRIPT_ASSIGNED,
        function="language_typescript",
    ),
    Grammar(
        "tree_sitter_typescript",
        (".tsx",),
        _SCRIPT_FUNCTIONS,
        _SCRIPT_HOLDERS,
        _SCRIPT_ASSIGNED,
        function="language_tsx",
    ),
    Grammar("tree_sitter_go", (".go",), _types("function_declaration method_declaration type_declaration")),
    Grammar(
        "tree_sitter_rust",
        (".rs",),
        _types("function_item function_signature_item struct_item enum_item union_item type_item macro_definition"),
        _types("impl_item trait_item mod_item"),
        separator="::",
    ),
    Grammar(
        "tree_sitter_java",
        (".java",),
        _types("method_declaration constructor_declaration compact_constructor_declaration"),
        _types(
            """class_declaration interface_declaration enum_declaration record_declaration
            annotation_type_declaration"""
        ),
    ),
    Grammar("tree_sitter_c", (".c",), _C_FUNCTIONS, _C_HOLDERS, separator="::"),
    Grammar(
        "tree_sitter_cpp",
        (".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".ipp", ".cu", ".m", ".mm", ".ino"),
        _C_FUNCTIONS,
        _C_HOLDERS,
        separator="::",
    ),
    Grammar(
        "tree_sitter_c_sharp",
        (".cs",),
        _types(
            """method_declaration constructor_declaration destructor_declaration operator_declaration
            property_declaration indexer_declaration event_declaration delegate_declaration local_function_statement"""
        ),
        _types(
            """class_declaration interface_declaration struct_declaration enum_declaration record_declaration
            namespace_declaration"""
        ),
    ),
    Grammar(
        "tree_sitter_ruby", (".rb", ".rake", ".gemspec"), _types("method singleton_method"), _types("class module")
    ),
    Grammar(
        "tree_sitter_php",
        (".php",),
        _types("function_definition method_declaration"),
        _types("class_declaration interface_declaration trait_declaration enum_declaration"),
        function="language_php",
    ),
    Grammar("tree_sitter_bash", (".sh", ".bash", ".zsh", ".ksh", ".bats"), _types("function_definition")),
)

_BY_SUFFIX: Final[Mapping[str, Grammar]] = {suffix: each for each in GRAMMARS for suffix in each.suffixes}


def grammar_of(suffix: str) -> Grammar | None:
    """Return the grammar for the ending of a file name, or None."""
    return _BY_SUFFIX.get(suffix)


@lru_cache(maxsize=len(GRAMMARS))
def parser_of(grammar: Grammar) -> tree_sitter.Parser:
    """Return a parser. It is made once in a process, because loading a grammar takes some milliseconds."""
    table: object = getattr(importlib.import_module(grammar.module), grammar.function)()
    return tree_sitter.Parser(tree_sitter.Language(table))
