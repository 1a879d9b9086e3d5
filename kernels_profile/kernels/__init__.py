"""Our Triton kernels, each with a torch reference beside it; torch and triton are needed here only.

Importing the package loads neither: import the module of the kernel you want. Start reading in
`launch.py` (what one launch is), then `linear.py`. `compiling.py` compiles every kernel at every
configuration without a GPU, `checking.py` compares each with its reference.
"""
