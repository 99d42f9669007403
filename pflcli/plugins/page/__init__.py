"""The page of ``pfl report``: its sentences, its charts as Vega-Lite specifications, and the HTML around them."""
