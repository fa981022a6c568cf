"""What every other part rests on: errors, units, recipes, records, the run folder, seeds. Standard library only."""
