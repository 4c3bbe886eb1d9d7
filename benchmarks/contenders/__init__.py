"""The contenders of the small-body benchmark, a module for each kind; `registry` lists all of them."""
