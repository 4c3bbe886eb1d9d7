"""The table of languages: by the ending of a file name, the patterns of definitions and imports.

A definition is found by its line alone, so that half a file, a dialect, or a syntax error costs a border at most. In a
pattern, the group `name` (or `name1`, `name2`, …) is what is defined. A match of the group `holds` says that the
definition has members of its own, and `owner` names the type of a method that stands outside of it.

Patterns must be linear: a line of any file must be matched quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

# One to eight words of a C type. Possessive quantifiers make sure that no word can be read in two ways; otherwise a
# long line would take exponential time.
_C_TYPE: Final = r"(?:[A-Za-z_][\w:<>,.?\[\]]*+[\s*&]++){1,8}?"
# A statement such as `return f(x)` looks like a function definition in C.
_NO_CONTROL: Final = (
    r"(?!(?:return|if|else|for|while|switch|do|case|goto|throw|new|delete|using|typedef|await|yield|assert|echo)\b)"
)
# Modifiers of the languages that look like Java.
_JAVA_WORDS: Final = (
    r"(?:public|private|protected|internal|static|final|abstract|sealed|partial|readonly|open|data|override|suspend"
    r"|inline|async|virtual|default|synchronized|native|export|companion|case|implicit|lazy)\s+"
)


class Language(Struct, frozen=True):
    """The rules of one language.

    - `suffixes`: endings of file names, or whole names such as `makefile`.
    - `definition`: a pattern of a definition's first line. It is a text, and compiled when the first such file comes,
      because most runs need few languages.
    - `imports`: patterns of lines that name other modules.
    - `import_words`: texts of which such a line has at least one. A text without any is not searched.
    - `comments`: prefixes of lines that belong to the definition right below them.
    - `separator`: stands between a thing and its member in a name.
    - `is_relative`: an import that begins with a dot, or is quoted, names a file relative to the importing one.
    """

    name: str
    suffixes: tuple[str, ...]
    kind: str = "code"
    definition: str = ""
    imports: tuple[str, ...] = ()
    import_words: tuple[str, ...] = ("",)
    comments: tuple[str, ...] = ("//", "/*", "*", "@")
    separator: str = "."
    is_relative: bool = False


def _pattern(*choices: str) -> str:
    """Return a pattern that matches any of the choices."""
    return "|".join(f"(?:{choice})" for choice in choices)


# In order: types, functions with a keyword (Kotlin, Scala, Swift), methods, and constructors.
_JAVA_LIKE: Final = _pattern(
    rf"^\s*(?:{_JAVA_WORDS})*(?P<holds>class|interface|enum|record|struct|namespace|object|trait|@interface)\s+"
    r"(?P<name>[A-Za-z_][\w.]*)",
    rf"^\s*(?:{_JAVA_WORDS})*(?:fun|def|func)\s+(?:<[^>]*>\s*)?(?P<name1>[A-Za-z_][\w.]*)",
    rf"^\s+(?:{_JAVA_WORDS})*{_NO_CONTROL}(?:<[^>]*>\s*)?{_C_TYPE}(?P<name2>[A-Za-z_]\w*)\s*\([^;]*$",
    rf"^\s+(?:{_JAVA_WORDS})+(?P<name3>[A-Z]\w*)\s*\([^;]*$",
)
LANGUAGES: Final = (
    Language(
        "python",
        (".py", ".pyi", ".pyw"),
        imports=(
            r"^[ \t]*from[ \t]+(?P<module>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#;]+)",
            r"^[ \t]*import[ \t]+(?P<names>[^\n#;]+)",
        ),
        import_words=("import",),
        comments=("#", "@"),
    ),
    Language(
        "javascript",
        (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue", ".svelte"),
        imports=(
            r"""\bfrom\s+["'](?P<module>[^"'\n]+)["']""",
            r"""^\s*import\s+["'](?P<module>[^"'\n]+)["']""",
            r"""\b(?:require|import)\(\s*["'](?P<module>[^"'\n]+)["']\s*\)""",
        ),
        import_words=("from", "import", "require"),
        is_relative=True,
    ),
    Language(
        "go",
        (".go",),
        imports=(r'^\s*(?:import\s+)?(?:[\w.]+\s+)?"(?P<module>[\w./~-]+)"\s*$',),
        comments=("//",),
    ),
    Language(
        "rust",
        (".rs",),
        imports=(
            r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+(?P<module>[\w:]+)",
            r"^\s*mod\s+(?P<module>\w+)\s*;",
        ),
        import_words=("use", "mod"),
        comments=("//", "/*", "*", "#["),
        separator="::",
    ),
    Language(
        "java",
        (".java", ".cs"),
        imports=(r"^\s*(?:import|using)\s+(?:static\s+)?(?P<module>[A-Za-z_][\w.]*)",),
        import_words=("import", "using"),
    ),
    Language(
        "kotlin",
        (".kt", ".kts", ".scala", ".groovy", ".gradle", ".swift", ".dart"),
        definition=_JAVA_LIKE,
        imports=(r"^\s*(?:import|using)\s+(?:static\s+)?(?P<module>[A-Za-z_][\w.]*)",),
        import_words=("import", "using"),
    ),
    Language(
        "c",
        (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".ipp", ".cu", ".m", ".mm", ".ino"),
        imports=(r'^\s*#\s*(?:include|import)\s*"(?P<module>[^"\n]+)"',),
        import_words=("include", "import"),
        comments=("//", "/*", "*"),
        separator="::",
        is_relative=True,
    ),
    Language(
        "ruby",
        (".rb", ".rake", ".gemspec"),
        imports=(r"""^\s*require(?:_relative)?[\s(]+["'](?P<module>[^"'\n]+)["']""",),
        import_words=("require",),
        comments=("#",),
    ),
    Language(
        "php",
        (".php",),
        imports=(
            r"^\s*use\s+(?P<module>[\w\\]+)",
            r"""\b(?:require|include)(?:_once)?[\s(]+["'](?P<module>[^"'\n]+)["']""",
        ),
        import_words=("use", "require", "include"),
        comments=("//", "/*", "*", "#"),
    ),
    Language(
        "shell",
        (".sh", ".bash", ".zsh", ".ksh", ".bats"),
        imports=(r"^\s*(?:source|\.)\s+[\"']?(?P<module>[\w./-]+)",),
        comments=("#",),
        is_relative=True,
    ),
    Language(
        "lua",
        (".lua",),
        definition=_pattern(r"^\s*(?:local\s+)?function\s+(?P<name>[A-Za-z_][\w.:]*)"),
        imports=(r"""\brequire[\s(]+["'](?P<module>[^"'\n]+)["']""",),
        comments=("--",),
    ),
    Language(
        "perl",
        (".pl", ".pm", ".t"),
        definition=_pattern(r"^\s*package\s+(?P<name>[\w:]+)", r"^\s*sub\s+(?P<name1>\w+)"),
        imports=(r"^\s*(?:use|require)\s+(?P<module>[A-Z][\w:]*)",),
        comments=("#",),
    ),
    Language(
        "elixir",
        (".ex", ".exs"),
        definition=_pattern(r"^\s*(?P<holds>defmodule|defprotocol)\s+(?P<name>[\w.]+)", r"^\s*defp?\s+(?P<name1>\w+)"),
        imports=(r"^\s*(?:alias|import|use)\s+(?P<module>[A-Z][\w.]*)",),
        comments=("#", "@"),
    ),
    Language(
        "haskell",
        (".hs",),
        definition=_pattern(
            r"^(?:data|newtype|type|class|instance)\s+(?P<name>[A-Z]\w*)", r"^(?P<name1>[a-z_]\w*)\s*::"
        ),
        imports=(r"^import\s+(?:qualified\s+)?(?P<module>[A-Z][\w.]*)",),
        comments=("--",),
    ),
    Language(
        "sql",
        (".sql",),
        definition=_pattern(
            r"^\s*(?i:create)\s+(?:(?i:or\s+replace|temp|temporary|unique|materialized)\s+)*"
            r"(?i:table|view|index|function|procedure|trigger|type)\s+(?i:if\s+not\s+exists\s+)?(?P<name>[\w.\"]+)"
        ),
        comments=("--",),
    ),
    Language(
        "interface",
        (".proto", ".thrift", ".graphql", ".gql"),
        definition=_pattern(
            r"^(?:message|service|enum|struct|type|interface|input|union|scalar|query|mutation|fragment)\s+(?P<name>\w+)"
        ),
        imports=(r'^\s*(?:import|include)\s+"(?P<module>[^"\n]+)"',),
        comments=("//", "#", "/*", "*"),
    ),
    Language(
        "build",
        (".mk", "makefile", "dockerfile", ".dockerfile", ".tf", ".hcl", ".cmake", "cmakelists.txt"),
        definition=_pattern(
            r"^(?P<name>[A-Za-z_.][\w./-]*)\s*:(?![=:])",
            r"^(?i:from)\s+(?P<name1>\S+)",
            r'^(?:resource|module|variable|output|data|provider|locals)\s*(?P<name2>[\w" .-]*)\{',
            r"^(?i:function|macro|add_executable|add_library)\s*\(\s*(?P<name3>\w+)",
        ),
        comments=("#", "//"),
    ),
    Language(
        "sections",
        (".toml", ".ini", ".cfg", ".conf", ".editorconfig", ".service", ".desktop"),
        kind="text",
        definition=_pattern(r"^\s*\[+\s*(?P<name>[^\]\n]+?)\s*\]+"),
        comments=("#", ";"),
    ),
    Language(
        "keys",
        (".yaml", ".yml"),
        kind="text",
        definition=_pattern(r"""^(?P<name>["']?[A-Za-z_/][\w./ -]*["']?)\s*:(?:\s|$)"""),
        comments=("#",),
    ),
    Language("style", (".css", ".scss", ".less"), imports=(r"""@import\s+["'](?P<module>[^"'\n]+)["']""",)),
)

_BY_SUFFIX: Final[Mapping[str, Language]] = {suffix: each for each in LANGUAGES for suffix in each.suffixes}


def ending(source: str) -> str:
    """Return the ending of a file name that says what it is: from its last dot, or the whole name. In lower case."""
    name = source.rpartition("/")[2].lower()
    return name if name in _BY_SUFFIX or "." not in name else name[name.rindex(".") :]


def language_of(source: str) -> Language | None:
    """Return the language of a file by its name, or None."""
    return _BY_SUFFIX.get(ending(source))
