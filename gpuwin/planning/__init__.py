"""From specification and schema to the partial columns of cells, from what is handed in to their types, and back."""
