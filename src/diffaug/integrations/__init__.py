"""Export to and import from other libraries."""
