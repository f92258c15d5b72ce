"""What policies keep of one prompt, head by head and token by token, and the page of `kvjax show`."""
