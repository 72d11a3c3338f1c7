"""Where records go besides the terminal: files, loggers, and services that show metrics."""
