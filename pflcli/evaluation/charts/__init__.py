"""Charts as Vega-Lite specifications: plain dictionaries that become a PNG, an SVG, a PDF, or part of a page."""
