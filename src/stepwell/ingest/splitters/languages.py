"""The table of languages: by the end of a file's name, how its definitions and its imports look.

A definition is found by its line alone, so that half a file, a dialect, or a mistake in it costs a border at most. A
pattern's `name` is what is defined; one that also matches `holds` has members of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_C_TYPE: Final = r"(?:[A-Za-z_][\w:<>,.?\[\]]*+[\s*&]++){1,8}?"  # no word can be read in two ways, or it takes ages
_NO_CONTROL: Final = (
    r"(?!(?:return|if|else|for|while|switch|do|case|goto|throw|new|delete|using|typedef|await|yield|assert|echo)\b)"
)
_JAVA_WORDS: Final = (
    r"(?:public|private|protected|internal|static|final|abstract|sealed|partial|readonly|open|data|override|suspend"
    r"|inline|async|virtual|default|synchronized|native|export|companion|case|implicit|lazy)\s+"
)


class Language(Struct, frozen=True):
    """How a language is recognised, split, and read for what it refers to."""

    name: str
    suffixes: tuple[str, ...]
    kind: str = "code"
    definition: str = ""  # a pattern of its first line, which is compiled when the first such file comes
    imports: tuple[str, ...] = ()  # patterns of lines
    comments: tuple[str, ...] = ("//", "/*", "*", "@")  # such lines belong to the definition right below them
    separator: str = "."  # between a thing and its member
    is_relative: bool = False  # an import that begins with a dot, or is quoted, names a file from where it stands


def _pattern(*choices: str) -> str:
    return "|".join(f"(?:{choice})" for choice in choices)


_C_LIKE: Final = _pattern(
    r"^\s*(?:typedef\s+|template\s*<[^>]*>\s*|export\s+)*(?P<holds>class|struct|union|namespace|enum(?:\s+class)?)\s+"
    r"(?:\w+\([^)]*\)\s+|__\w+\s+|\[\[[^\]]*\]\]\s*)*(?P<name>[A-Za-z_][\w:]*)[^;=()]*$",
    rf"^\s*{_NO_CONTROL}(?:template\s*<[^>]*>\s*)?{_C_TYPE}(?P<name1>[A-Za-z_~][\w:~]*)\s*\([^;]*$",
    r"^#\s*define\s+(?P<name2>[A-Za-z_]\w*)",
    r"^(?P<name3>[A-Za-z_]\w*)\s*\([^;]*\)\s*\{?\s*$",
)
_JAVA_LIKE: Final = _pattern(
    rf"^\s*(?:{_JAVA_WORDS})*(?P<holds>class|interface|enum|record|struct|namespace|object|trait|@interface)\s+"
    r"(?P<name>[A-Za-z_][\w.]*)",
    rf"^\s*(?:{_JAVA_WORDS})*(?:fun|def|func)\s+(?:<[^>]*>\s*)?(?P<name1>[A-Za-z_][\w.]*)",
    rf"^\s+(?:{_JAVA_WORDS})*{_NO_CONTROL}(?:<[^>]*>\s*)?{_C_TYPE}(?P<name2>[A-Za-z_]\w*)\s*\([^;]*$",
    rf"^\s+(?:{_JAVA_WORDS})+(?P<name3>[A-Z]\w*)\s*\([^;]*$",
)
_SCRIPT: Final = _pattern(
    r"^\s*(?:export\s+|default\s+|declare\s+|abstract\s+)*(?P<holds>class|interface|namespace|module|enum)\s+"
    r"(?P<name>[A-Za-z_$][\w$.]*)",
    r"^\s*(?:export\s+|default\s+|declare\s+|async\s+)*function\s*\*?\s*(?P<name1>[A-Za-z_$][\w$]*)",
    r"^(?:export\s+|default\s+|declare\s+)*(?:const|let|var|type)\s+(?P<name2>[A-Za-z_$][\w$]*)\s*[:=<]",
    rf"^\s+(?:static\s+|async\s+|get\s+|set\s+|public\s+|private\s+|protected\s+|readonly\s+|override\s+|\*\s*)*"
    rf"{_NO_CONTROL}(?!function\b|catch\b)(?P<name3>#?[A-Za-z_$][\w$]*)\s*(?:<[^>]*>)?\([^;]*\{{\s*$",
)

LANGUAGES: Final = (
    Language(
        "python",
        (".py", ".pyi", ".pyw"),
        definition=_pattern(r"^\s*(?P<holds>class)\s+(?P<name>\w+)", r"^\s*(?:async\s+)?def\s+(?P<name1>\w+)"),
        imports=(
            r"^[ \t]*from[ \t]+(?P<module>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#;]+)",
            r"^[ \t]*import[ \t]+(?P<names>[^\n#;]+)",
        ),
        comments=("#", "@"),
    ),
    Language(
        "javascript",
        (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue", ".svelte"),
        definition=_SCRIPT,
        imports=(
            r"""\bfrom\s+["'](?P<module>[^"'\n]+)["']""",
            r"""^\s*import\s+["'](?P<module>[^"'\n]+)["']""",
            r"""\b(?:require|import)\(\s*["'](?P<module>[^"'\n]+)["']\s*\)""",
        ),
        is_relative=True,
    ),
    Language(
        "go",
        (".go",),
        definition=_pattern(
            r"^func\s+(?:\([^)]*?\*?(?P<owner>[A-Za-z_]\w*)(?:\[[^\]]*\])?\)\s*)?(?P<name>[A-Za-z_]\w*)",
            r"^type\s+(?P<name1>[A-Za-z_]\w*)",
            r"^(?:var|const)\s+(?P<name2>[A-Za-z_]\w*)",
        ),
        imports=(r'^\s*(?:import\s+)?(?:[\w.]+\s+)?"(?P<module>[\w./~-]+)"\s*$',),
        comments=("//",),
    ),
    Language(
        "rust",
        (".rs",),
        definition=_pattern(
            r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+)?(?P<holds>mod|trait|impl(?:<[^{]*?>)?(?:\s+[^{]*?\sfor)?)\s+"
            r"&?(?P<name>[A-Za-z_]\w*)[^;]*$",
            r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:default\s+|const\s+|async\s+|unsafe\s+|extern\s+(?:\"[^\"]*\"\s+)?)*"
            r"(?:fn|struct|enum|union|type|static|const)\s+(?:mut\s+)?(?P<name1>[A-Za-z_]\w*)",
            r"^\s*macro_rules!\s*(?P<name2>[A-Za-z_]\w*)",
        ),
        imports=(
            r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+(?P<module>[\w:]+)",
            r"^\s*mod\s+(?P<module>\w+)\s*;",
        ),
        comments=("//", "/*", "*", "#["),
        separator="::",
    ),
    Language(
        "java",
        (".java", ".kt", ".kts", ".scala", ".cs", ".groovy", ".gradle", ".swift", ".dart"),
        definition=_JAVA_LIKE,
        imports=(r"^\s*(?:import|using)\s+(?:static\s+)?(?P<module>[A-Za-z_][\w.]*)",),
    ),
    Language(
        "c",
        (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".ipp", ".cu", ".m", ".mm", ".ino"),
        definition=_C_LIKE,
        imports=(r'^\s*#\s*(?:include|import)\s*"(?P<module>[^"\n]+)"',),
        comments=("//", "/*", "*", " *", "static", "inline", "extern", "template", "const", "void", "int", "struct"),
        separator="::",
        is_relative=True,
    ),
    Language(
        "ruby",
        (".rb", ".rake", ".gemspec"),
        definition=_pattern(
            r"^\s*(?P<holds>class|module)\s+(?P<name>[A-Z][\w:]*)",
            r"^\s*def\s+(?:self\.)?(?P<name1>[A-Za-z_]\w*[?!=]?)",
        ),
        imports=(r"""^\s*require(?:_relative)?[\s(]+["'](?P<module>[^"'\n]+)["']""",),
        comments=("#",),
    ),
    Language(
        "php",
        (".php",),
        definition=_pattern(
            r"^\s*(?:abstract\s+|final\s+|readonly\s+)*(?P<holds>class|interface|trait|enum)\s+(?P<name>[A-Za-z_]\w*)",
            r"^\s*(?:(?:public|private|protected|static|final|abstract)\s+)*function\s+&?(?P<name1>[A-Za-z_]\w*)",
        ),
        imports=(
            r"^\s*use\s+(?P<module>[\w\\]+)",
            r"""\b(?:require|include)(?:_once)?[\s(]+["'](?P<module>[^"'\n]+)["']""",
        ),
        comments=("//", "/*", "*", "#"),
    ),
    Language(
        "shell",
        (".sh", ".bash", ".zsh", ".ksh", ".bats"),
        definition=_pattern(
            r"^(?:function\s+)?(?P<name>[A-Za-z_][\w:-]*)\s*\(\s*\)", r"^function\s+(?P<name1>[\w:-]+)"
        ),
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
    """The end of a file's name that says what it is: from its last dot, or the whole name."""
    name = source.rpartition("/")[2].lower()
    return name if name in _BY_SUFFIX or "." not in name else name[name.rindex(".") :]


def language_of(source: str) -> Language | None:
    """The language of a file, by its name."""
    return _BY_SUFFIX.get(ending(source))
