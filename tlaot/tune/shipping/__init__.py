"""What goes into the package: its folders and manifest, its weight, the oldest systems that it runs on."""
