"""A method among real sites: the server, a site, and the messages between them, which are files."""
