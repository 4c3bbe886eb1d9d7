"""A process that ends without a word."""


def main(_encoded: str) -> int:
    return 0
