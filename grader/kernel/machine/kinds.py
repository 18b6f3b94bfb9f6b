"""Kinds of operations of TTIR, by their names."""

LOOPS = ("scf.for", "scf.while")
CONTROL = (*LOOPS, "scf.if")
PASSING = ("scf.yield", "scf.condition")  # they end a region of these, and pass values on
BRANCHES = ("cf.br", "cf.cond_br")
COMBINING = ("tt.reduce", "tt.scan", "tt.map_elementwise")  # they apply a function to elements
ENDS = (*PASSING, *BRANCHES, "tt.return", *(f"{name}.return" for name in COMBINING))
STORES = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")
ACCESSES = ("tt.load", *STORES)
