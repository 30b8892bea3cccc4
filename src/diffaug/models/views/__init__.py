"""How one view of a sentence is made to differ from the other."""
