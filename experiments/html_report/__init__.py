"""``phasewise report``: one HTML page that opens offline, made from bundles of results alone.

`command` is what the command line calls. Each view has a module that turns a bundle into plain
values (`summary_view`, `cdf_view`, `time_view`, `class_view`, `timeline_view`, `worst_view`,
`attribution_view`, `runs_view`); `page` puts them into `static/report.html` with the scripts that
draw them. Bundles are read one after the other, so that memory is that of the largest one (of one
with replications, that of all its runs).
"""
