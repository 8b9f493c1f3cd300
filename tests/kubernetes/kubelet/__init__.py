"""End to end on real nodes: the chart is installed, used, hurt and taken away."""
