"""Who is compared with small bodies, a module for each kind; `everybody` has all of them."""
