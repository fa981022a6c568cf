"""Pure arithmetic from budget and measurements to a plan. No torch, no files, no clock."""
