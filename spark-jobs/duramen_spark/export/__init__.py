"""Export: archived records as rows of Delta and Iceberg tables."""
