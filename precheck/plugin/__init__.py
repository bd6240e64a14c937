"""What pytest sees of precheck; nothing else in the package knows pytest."""
