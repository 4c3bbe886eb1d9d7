"""Docstrings: what is cut from a function, what stands in its place, and what stays as it is."""

import pytest

from stepwell.assembly.docstrings import without_docstrings

LONG = "Returns what was asked for, with all that belongs to it."

METHOD = f'''\
    @property
    async def total(
        self,
    ) -> int:
        r"""{LONG}

At the left margin, which no dedent survives.
        """
        return self._total  # é
'''


def test_a_mark_with_the_lines() -> None:
    """What follows keeps its line: the mark says which ones are missing."""
    assert without_docstrings(METHOD, 40) == (
        "    @property\n    async def total(\n        self,\n    ) -> int:\n"
        '        """… (lines 44-47)"""\n        return self._total  # é\n'
    )
    assert '"""…"""' in without_docstrings(METHOD, None)
    one_line = f'def f():\n    """{LONG}"""\n    return 1\n'
    assert without_docstrings(one_line, 1) == 'def f():\n    """… (line 2)"""\n    return 1\n'


def test_methods_of_a_class() -> None:
    """Each of them; the docstring of the class says what it is, and stays."""
    text = (
        f'class A:\n    """{LONG}"""\n\n    def f(self):\n        """{LONG}"""\n        return 1\n\n    def g(self):\n'
    )
    text += f"        '''{LONG}\n        '''\n        return 2"
    cut = without_docstrings(text, 1)
    assert cut.count(LONG) == 1
    assert cut.splitlines()[4] == '        """… (line 5)"""'
    assert cut.splitlines()[8] == '        """… (lines 9-10)"""'
    compile(cut, "cut", "exec")


@pytest.mark.parametrize(
    "text",
    [
        f'"""{LONG}"""\n\nx = 1',
        f'def f():\n    """{LONG}"""',
        f'def f(): """{LONG}"""; return 1',
        f'def f():\n    """{LONG}"""; x = 1\n    return x',
        f'def f():\n    x = """{LONG}"""\n    return x',
        f'def f():\n    return """{LONG}"""\n',
        'def f():\n    """Short."""\n    return 1',
        f'def f(:\n    """{LONG}"""\n    return 1',
        f'    def f(self):\n        """{LONG}"""\n        return 1\nelse:\n',
        f'def f():\r    """{LONG}"""\r    return 1',
        f'def f():\n    b"""{LONG}"""\n    return 1',
        f'def f():\n    """{LONG}\0"""\n    return 1',
        "",
    ],
)
def test_what_stays_as_it_is(text: str) -> None:
    """Other strings, functions that have nothing else, what would save nothing, and what does not parse."""
    assert without_docstrings(text, 1) == ""


def test_line_ends_of_windows() -> None:
    cut = without_docstrings(f'def f():\r\n    """{LONG}\r\n    """\r\n    return 1\r\n', 1)
    assert cut == 'def f():\r\n    """… (lines 2-3)"""\n    return 1\r\n'
