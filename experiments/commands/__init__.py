"""Sub-commands of `kvjax`, one a file."""
