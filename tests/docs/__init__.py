"""The README and the site: blocks of code run as pasted and show what the page says, and links lead somewhere."""
