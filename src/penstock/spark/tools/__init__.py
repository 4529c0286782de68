"""Around Spark: sessions, Java, progress, pages, errors in plain words."""
