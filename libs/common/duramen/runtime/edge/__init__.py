"""What the public ports do with requests and answers before and behind their routes."""
