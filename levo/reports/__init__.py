"""reports: cost, QA and the page, from finished shards. Knows no GPU."""
