"""How clients are trained and asked, many at a time: no method's mathematics, no files, no terminal."""
