"""How sure a number is: confidence intervals, paired comparisons and the warm-up of a simulation.

Pure functions of arrays. Every interval says by which method it was made, and where a method does
not hold there is a `Refusal` with what would be needed instead of an interval.
"""
