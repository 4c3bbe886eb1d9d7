"""What a part refers to: imports, calls, links and mentions, as far as its text says."""

import pytest

from tests.support.ingest import parts


def refs(source: str, text: str) -> list[str]:
    return [ref for part, _ in parts(source, text) for ref in part.outline.refs]


@pytest.mark.parametrize(
    "source, text, expected",
    [
        ("a.py", "import os, sys as s\n", ["os", "sys"]),
        ("a.py", "from a.b import (\n    c,\n    d as e,\n)\n", ["a.b", "a.b.c", "a.b.d"]),
        ("a.py", "from x import *\n", ["x"]),
        ("src/p/q/a.py", "from . import c\n", ["src.p.q", "src.p.q.c"]),
        ("src/p/q/a.py", "from ..d import e\n", ["src.p.d", "src.p.d.e"]),
        ("a.py", "class C(Base, m.Other):\n    x = 1\n", ["Base", "m.Other"]),
        ("a.py", "x = helper(len(y))\nself.z.run()\n", ["helper", "z.run"]),
        ("a.py", "def f(x):\n    return f(x) + other (x)\n", ["other"]),
        ("src/a.ts", "import {x} from './lib/x';\nimport 'react';\n", ["src/lib/x", "react"]),
        ("src/a.js", "const y = require('../y.js')\n", ["y.js"]),
        ("a.go", 'import (\n\t"fmt"\n\t"a.b/c"\n)\n', ["fmt", "a.b/c"]),
        ("a.rs", "use crate::a::b;\nmod c;\n", ["crate::a::b", "c"]),
        ("src/a.c", '#include "util/list.h"\n#include <stdio.h>\n', ["src/util/list.h"]),
        ("A.java", "import java.util.List;\nimport static a.B.c;\n", ["java.util.List", "a.B.c"]),
        ("bin/a.sh", "source ./lib.sh\n. other.sh\n", ["bin/lib.sh", "other.sh"]),
        ("docs/a.md", "[x](../src/a.py#f) [y](b.md 'title')\n[z]: /c.md\n", ["src/a.py#f", "docs/b.md", "c.md"]),
        ("a.md", "[x](https://example.org) [y](#here) [z](mailto:me@example.org)\n", []),
        (
            "a.md",
            "see `Index.catch_up`, `run()` and ``src/a.py``, not `a b` or ``` ` ```\n",
            ["Index.catch_up", "run", "src/a.py"],
        ),
        ("docs/a.rst", "see `the other <other.rst>`_\n", ["docs/other.rst"]),
        ("a.txt", "import os\nhelper()\n", []),
    ],
)
def test_references(source: str, text: str, expected: list[str]) -> None:
    assert refs(source, text) == expected


def test_what_is_defined_here_is_no_reference() -> None:
    """Nor is what every program calls."""
    assert refs("a.py", "def f():\n    if (x): print(f())\n    return isinstance(y, str)\n") == []
