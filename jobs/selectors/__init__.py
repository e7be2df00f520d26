"""Reading. Fetching is the permission check: strangers get the answer that a missing job gets."""
