"""The pictures of the docs that show runs, each made by one command: `make pictures`.

`plotting` compares two algorithms for the page "Plotting", `symptoms` trains healthy and sick runs for the page "It
does not learn", `gallery` runs the examples, `lander` films what the docs open with, `published` draws a recipe beside
the score that its source published.
"""
