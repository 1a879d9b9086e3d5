"""A plain second implementation of the rules of prefix caches, swap, cancellation and sessions."""
