"""Jobs over topics: each is a function `run(spark, …) -> Result` and a command `penstock spark …`."""
