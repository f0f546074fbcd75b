"""From a specification and a schema to the partial columns of cells, and from finished cells to results."""
