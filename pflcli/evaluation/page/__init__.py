"""The page of ``pfl report``: what it says, its charts as Vega-Lite specifications, and the HTML around them."""
