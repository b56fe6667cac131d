"""Everything that a run is made of: what its program gave, its device, its method with wrappers, its protection."""
