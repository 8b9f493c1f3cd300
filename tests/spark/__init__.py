"""Archive and data source against real clusters, and on a real Spark where there is a JDK."""
